"""From the opening of a task until all is folded that its last owner may have crashed at: how carefully it goes on meanwhile."""

from collections.abc import Callable, Mapping

from onefold.processor.core.abc import Identity
from onefold.processor.core.values import Record
from onefold.processor.runtime.quarantine import BATCH, CRASHES_MAX, WINDOW, Quarantine


class Recovery:
    """Of one life of a task.

    Attributes:
        quarantine: what is written of it.
    """

    def __init__(self) -> None:
        self.quarantine = Quarantine()
        self._ends: dict[str, int] = {}
        self._went_well = 0

    def begin(self, identities: Mapping[str, Identity]) -> None:
        """The inputs end there now: what a crash was at lies below."""
        self._ends = {topic: identity.end for topic, identity in identities.items()}
        self._went_well = 0

    @property
    def records_max(self) -> int:
        """How many records the next transaction may have."""
        return BATCH[self.quarantine.level]

    @property
    def one_by_one(self) -> bool:
        """Whether each record is folded alone, and a note written before."""
        return self.quarantine.level == 2

    def poisonous(self, record: Record) -> dict[Record, str]:
        """The record, and why it is a dead letter, if it was crashed at often enough; else nothing."""
        if self.quarantine.poisonous(record.topic, record.offset):
            return {record: f"the processor crashed {CRASHES_MAX} times at this record"}
        return {}

    def went_well(self, records: int) -> None:
        """A transaction more is true, of so many records."""
        self._went_well += records

    def caught_up(self, offsets_next: Mapping[str, int]) -> bool:
        """Whether all is folded that was there when the task was opened."""
        return all(offsets_next[topic] >= end for topic, end in self._ends.items())

    def relax(self, offsets_next: Mapping[str, int], write: Callable[[Quarantine], None]) -> None:
        """Be less careful when that is due: `write` makes it true."""
        if self.quarantine.clean:
            return
        if self.caught_up(offsets_next):
            write(Quarantine())
        elif self._went_well >= WINDOW[self.quarantine.level]:
            self._went_well = 0
            write(self.quarantine.relaxed())
