"""One partition of a decision log on the simulated log (see `core.decision_log.DecisionLog`)."""

from collections.abc import Sequence

from onefold.processor.core.abc import Identity
from onefold.processor.testing.log import SimulatedLog


class SimulatedDecisionLog:
    """Keeps the promises of Kafka's, deterministically.

    `late`: when it is a list, appends are kept in it instead, as if they were long under way: append them by hand.
    """

    def __init__(self, log: SimulatedLog, topic: str, partition: int) -> None:
        self._log = log
        self._topic = topic
        self._partition = partition
        self._offset = 0
        self.late: list[bytes] | None = None

    def identity(self) -> Identity:
        """Which topic it is now, and what it holds."""
        return self._log.identity(self._topic, self._partition)

    def seek(self, offset: int) -> None:
        """Read from there on."""
        self._offset = offset

    def append(self, value: bytes) -> None:
        """It lies there at once, unless it is late."""
        if self.late is None:
            self._log.append(self._topic, None, value, partition=self._partition)
        else:
            self.late.append(value)

    def read(self, timeout_s: float) -> Sequence[tuple[int, bytes | None]]:
        """All that is there; there is nothing to wait for."""
        found, self._offset = self._log.read(self._topic, self._partition, self._offset)
        return [(offset, entry.value) for offset, entry in found]

    def close(self) -> None:
        """Leave."""
