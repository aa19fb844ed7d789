"""The records that a task has read and that no decision covers yet."""

from collections.abc import Mapping

from onefold.processor.core.abc import Inputs
from onefold.processor.core.errors import Refused
from onefold.processor.core.values import Record

# So many records that others have decided are read and left out; of more it reads none. A consumer that seeks drops what it has
# and may stand for half a second: should the winner die just then, all do.
SKIP_MAX = 10_000


class InputBuffer:
    """The records of one task. `decided` is per input topic the offset after the last decision, wherever the inputs are read.

    Args:
        wait_s: how long to wait for a first record.
    """

    def __init__(self, inputs: Inputs, wait_s: float) -> None:
        self._inputs = inputs
        self._wait_s = wait_s
        self.records: list[Record] = []

    def read(self, decided: Mapping[str, int], count_max: int) -> None:
        """Read on, until there are so many records."""
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
            # The inputs may have lost what is decided already.
            self._start_at(decided)
            return
        self.records += [record for record in found if record.offset >= decided[record.topic]] if behind else found

    def drop(self, decided: Mapping[str, int]) -> None:
        """Drop the records before these offsets: a decision covers them."""
        if all(self._position(topic, offset) <= offset for topic, offset in decided.items()):
            self.records = []
        else:
            self.records = [record for record in self.records if record.offset >= decided[record.topic]]

    def markers_after(self, decided: Mapping[str, int]) -> dict[str, int] | None:
        """Where the inputs end when there are only markers after what is decided; None when there are records, or nothing."""
        if self.records or all(self._position(topic, offset) <= offset for topic, offset in decided.items()):
            return None
        return {topic: max(offset, self._position(topic, offset)) for topic, offset in decided.items()}

    def _position(self, topic: str, otherwise: int) -> int:
        return self._inputs.positions().get(topic, otherwise)

    def _start_at(self, decided: Mapping[str, int]) -> None:
        """Not at the positions: a read that failed has gone beyond records of another input that it has not given."""
        self.records = []
        self._inputs.seek(decided)
