"""Topic in memory, as input of simulated sinks."""

from typing import Protocol

from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.landing.protocols import Reach

NAME = "made_up"
TOPIC = f"{NAME}.notes"
SUMS = f"{TOPIC}.sums"
#: Range of the topic: some offsets are markers, and a partition does not begin at zero.
REACH = {(TOPIC, 0): Reach(100, 131), (TOPIC, 1): Reach(7, 29)}


class Topic(Protocol):
    """Partitions of a topic for the sinks."""

    @property
    def reach(self) -> dict[Partition, Reach]:
        """Present range, with markers."""

    @property
    def finished(self) -> bool:
        """Whether no further records will come."""

    def offsets(self, key: Partition) -> list[int]:
        """Offsets with a record."""


class MemoryTopic:
    """A complete topic from the beginning."""

    reach = REACH
    finished = True

    def offsets(self, key: Partition) -> list[int]:
        """Offsets with a record; all others are markers."""
        return [offset for offset in range(REACH[key].start, REACH[key].end) if offset % 5]
