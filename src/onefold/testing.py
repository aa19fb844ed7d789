"""The test kit: try a pipeline in milliseconds, and crash it anywhere, without a broker.

    from onefold.testing import TopologyDriver

    driver = TopologyDriver(TOPOLOGY, contracts="avro")
    driver.send("parcels.scans", {"parcel": "P1", "place": "Bern", "at": 2})
    driver.crash_at("before_commit")
    driver.run()
    assert driver.read("parcels.places") == [{"parcel": "P1", "place": "Bern", "at": 2}]

`TopologyDriver` runs the real loop, the real `fold` and the real codec on a log in memory. The log commits, aborts, fences and
leaves gaps like a broker.

For a pipeline with a `Tick`, the test controls the time: `driver.tick(at_ms)`.

`STEPS` are the names of the steps for `crash_at`. The driver raises `Crash` at the step. A handler that raises `Crash` ends its
process, like a segmentation fault.
"""

from onefold.processor.core.steps import STEPS
from onefold.processor.testing import Crash, TopologyDriver

__all__ = ["STEPS", "Crash", "TopologyDriver"]
