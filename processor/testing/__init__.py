"""The test kit: test a pipeline in milliseconds without a broker, with a crash at any step.

`TopologyDriver` runs the real task, the real `fold` and the real codec on a simulated log. The log commits, aborts, fences and
leaves gaps like a broker. The same protocol tests run on the simulated session and on a real broker.
"""

from onefold.processor.testing.driver import Crash, TopologyDriver
from onefold.processor.testing.log import SimulatedLog
from onefold.processor.testing.session import SimulatedSession

__all__ = ["Crash", "SimulatedLog", "SimulatedSession", "TopologyDriver"]
