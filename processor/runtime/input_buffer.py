"""The buffer of records that a task has read, and that no decision covers yet."""

from collections.abc import Mapping

from onefold.processor.core.abc import Inputs
from onefold.processor.core.errors import Refused
from onefold.processor.core.values import Record

# Up to this number, the buffer reads and skips records that peers have decided; beyond, the consumer seeks. A seek drops
# fetched records and may take half a second. If the author crashed during the peers' seeks, the task would stall.
SKIP_MAX = 10_000


class InputBuffer:
    """The undecided records of one task.

    The argument `decided` of the methods is the offset after the last decision by input topic, independent of the read
    positions.

    Args:
        wait_s: how long to wait for a first record.
    """

    def __init__(self, inputs: Inputs, wait_s: float) -> None:
        self._inputs = inputs
        self._wait_s = wait_s
        self.records: list[Record] = []

    def read(self, decided: Mapping[str, int], count_max: int) -> None:
        """Read further records, up to `count_max` in the buffer. Waits only if the buffer is empty."""
        behind = sum(max(0, offset - self._position(topic, offset)) for topic, offset in decided.items())
        if behind > SKIP_MAX:
            self._start_at(decided)
            behind = 0
        room = count_max - len(self.records)
        if room <= 0:
            return
        try:
            found = self._inputs.poll(room + behind, 0.0 if self.records else self._wait_s)
        except Refused:
            if not behind:
                raise
            # The inputs may have lost records that are decided already.
            self._start_at(decided)
            return
        self.records += [record for record in found if record.offset >= decided[record.topic]] if behind else found

    def drop(self, decided: Mapping[str, int]) -> None:
        """Drop the records before the given offsets, which a decision covers."""
        if all(self._position(topic, offset) <= offset for topic, offset in decided.items()):
            self.records = []
        else:
            self.records = [record for record in self.records if record.offset >= decided[record.topic]]

    def markers_after(self, decided: Mapping[str, int]) -> dict[str, int] | None:
        """The read positions, if only markers follow the last decision. None if records follow, or nothing."""
        if self.records or all(self._position(topic, offset) <= offset for topic, offset in decided.items()):
            return None
        return {topic: max(offset, self._position(topic, offset)) for topic, offset in decided.items()}

    def _position(self, topic: str, otherwise: int) -> int:
        return self._inputs.positions().get(topic, otherwise)

    def _start_at(self, decided: Mapping[str, int]) -> None:
        """Seek to the decided offsets, not to the read positions.

        The positions are wrong after a failed read: one input may have advanced past records that the read never returned.
        """
        self.records = []
        self._inputs.seek(decided)
