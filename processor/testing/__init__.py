"""The test kit: try a pipeline of yours in milliseconds, crash it anywhere, without a broker.

`TopologyDriver` runs the real loop, the real `fold` and the real codec on a simulated log that commits, aborts, fences and
leaves gaps as a broker was measured to. The same protocol tests run on the simulated session and on a real broker.
"""

from onefold.processor.testing.driver import Crash, TopologyDriver
from onefold.processor.testing.log import SimulatedLog
from onefold.processor.testing.session import SimulatedSession

__all__ = ["Crash", "SimulatedLog", "SimulatedSession", "TopologyDriver"]
