"""The test kit: try a pipeline in milliseconds, and crash it anywhere, without a broker.

    from onefold.testing import TopologyDriver

    driver = TopologyDriver(TOPOLOGY, contracts="avro")
    driver.send("parcels.scans", {"parcel": "P1", "place": "Bern", "at": 2})
    driver.crash_at("before_commit")
    driver.run()
    assert driver.read("parcels.places") == [{"parcel": "P1", "place": "Bern", "at": 2}]

`TopologyDriver` runs the real loop, the real `fold` and the real codec on a log in memory, which commits, aborts, fences and
leaves gaps as a broker was measured to.

Time passes when the test says so: `driver.tick(at_ms)`, of a pipeline that declares a `Tick`.

`STEPS` are the names of the places where `crash_at` can crash it. `Crash` is what it raises there: a handler that raises it
ends its process, as a segmentation fault would.
"""

from onefold.processor.core.steps import STEPS
from onefold.processor.testing import Crash, TopologyDriver

__all__ = ["STEPS", "Crash", "TopologyDriver"]
