"""What simulated sinks land: a topic whose records are all there, and a decision log of two tasks. In memory."""

import random
from collections.abc import Sequence
from typing import Protocol

from onefold.processor.core.decision import Kind, Proposal, Range
from onefold.spark_sink.decisions import Seen, log_of
from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.landing.protocols import Reach

NAME = "made_up"
TOPIC = f"{NAME}.notes"
SUMS = f"{TOPIC}.sums"
LOG = log_of(NAME)
#: What the topic holds: some offsets are markers, and the log of a partition does not begin at zero.
REACH = {(TOPIC, 0): Reach(100, 131), (TOPIC, 1): Reach(7, 29)}


class Topic(Protocol):
    """What is landed record by record: partitions of a topic."""

    @property
    def reach(self) -> dict[Partition, Reach]:
        """What it holds now, markers included."""

    @property
    def finished(self) -> bool:
        """Nothing more will come."""

    def offsets(self, key: Partition) -> list[int]:
        """Those that have a record."""


class MemoryTopic:
    """Holds all of it from the beginning."""

    reach = REACH
    finished = True

    def offsets(self, key: Partition) -> list[int]:
        """All others are markers."""
        return [offset for offset in range(REACH[key].start, REACH[key].end) if offset % 5]


class MemoryLog:
    """A decision log with two tasks: what replicas propose side by side. It knows by itself which proposals come true.

    Each that comes true writes notes with numbers of its own. What the others write would be seen: it has other numbers.
    """

    def __init__(self, dice: random.Random) -> None:
        self.records: dict[Partition, list[tuple[Proposal | None, list[int]]]] = {}
        self.true: dict[Partition, list[int]] = {}
        for partition, count in ((0, 18), (1, 11)):
            self._propose(dice, (LOG, partition), count)

    @property
    def reach(self) -> dict[Partition, Reach]:
        return {key: Reach(0, len(records)) for key, records in self.records.items()}

    def seen(self, key: Partition, offset: int) -> Seen:
        proposal, numbers = self.records[key][offset]
        return Seen(offset, offset, len(numbers), proposal)

    def _propose(self, dice: random.Random, key: Partition, count: int) -> None:
        records, true, task = self.records.setdefault(key, []), self.true.setdefault(key, []), key[1]
        version, at = 1, 0

        def add(version: int, start: int, end: int, kind: Kind = Kind.STEP, numbers: Sequence[int] = ()) -> None:
            proposal = Proposal(task, version, {"in": Range("id-in", start, end)}, "somebody", None, kind)
            records.append((proposal, [*numbers]))

        def lose() -> None:
            """Whatever may lie there: of the version before, of another start, of the other task, a second opening, a note."""
            lost = [-len(records) - 1]
            match dice.randrange(5):
                case 0:
                    add(version - 1, at, at + 3, numbers=lost)
                case 1:
                    add(version, at + 1, at + 3, numbers=lost)
                case 2:
                    records.append((Proposal(1 - task, version, {"in": Range("id-in", at, at + 3)}, "other"), lost))
                case 3:
                    add(version + 5, at, at, Kind.OPEN, lost)
                case _:
                    records.append((None, []))

        add(1, 0, 2, numbers=[-1000])  # before it was ever opened
        add(1, 0, 0, Kind.OPEN)
        for _ in range(count):
            if dice.random() < 0.6:
                lose()
            numbers = [1000 * task + len(true) + n for n in range(dice.randrange(4))]
            add(version, at, at + 3, numbers=numbers)
            true += numbers
            version, at = version + 1, at + 3
