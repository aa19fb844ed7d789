"""A verifier's log that withholds the records of some topics."""

from collections.abc import Callable, Iterable
from typing import Any

from onefold.verify.kafka import Kafka
from onefold.verify.log import Log, Place
from onefold.verify.record import ReadRecord


class Withholding(Log):
    """Topics of a broker, without records of the withheld ones."""

    def __init__(self, client: dict[str, Any], topics: Iterable[str], withheld: set[str]) -> None:
        super().__init__(client, topics)
        self._withheld = withheld
        self._paused: set[Place] = set()

    def read(
        self, ends: dict[Place, int], take: Callable[[ReadRecord], None], alive: Callable[[], object] = lambda: None
    ) -> None:
        super().read({}, take)  # a consumer can pause only assigned partitions
        wanted = {place for place in self.places if place[0] in self._withheld}
        for places, held in ((wanted - self._paused, True), (self._paused - wanted, False)):
            if places:
                self.hold(places, held)
        self._paused = wanted
        super().read({place: end for place, end in ends.items() if place not in wanted}, take, alive)


def withholding(withheld: set[str]) -> Kafka:
    """Kafka for a verifier. A test adds topics to `withheld`, and removes them, while the verifier runs."""
    return Kafka(log=lambda client, topics: Withholding(client, topics, withheld))
