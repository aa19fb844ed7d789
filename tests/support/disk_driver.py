"""A driver whose tasks keep state on a simulated disk, which outlives the driver's crashes."""

from typing import Any

from onefold.processor.core.steps import DISK_STEPS, STEPS
from onefold.processor.core.topology import Topology
from onefold.processor.runtime.state_manager import AUTO, StateManager
from onefold.testing import TopologyDriver
from tests.support.simulated_disk import SimulatedDisk, SimulatedFiles


class DiskDriver(TopologyDriver):
    """State goes to disk above `memory_bytes`."""

    _steps = (*STEPS, *DISK_STEPS)

    def __init__(self, topology: Topology, memory_bytes: int = 0, **more: Any) -> None:
        super().__init__(topology, **more)
        self.files = SimulatedFiles()
        self.wall_s = 0.0
        self._memory_bytes = memory_bytes

    def kill(self) -> None:
        super().kill()
        self.files.kill()

    def _keeping(self, partition: int) -> StateManager:
        return StateManager(
            self.topology,
            self.codec,
            partition,
            kind=AUTO,
            disk=SimulatedDisk(self.files, f"{self.topology.name}/{partition}"),
            memory_bytes=self._memory_bytes,
            wall=lambda: self.wall_s,
            step=self._step,
        )
