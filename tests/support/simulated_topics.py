"""What simulated sinks land: a topic whose records are all there, in memory."""

from typing import Protocol

from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.landing.protocols import Reach

NAME = "made_up"
TOPIC = f"{NAME}.notes"
SUMS = f"{TOPIC}.sums"
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
