"""What tests of neighbours ask again and again."""

from onefold.processor.core.neighbours import Neighbours, Place
from onefold.processor.io.neighbours import ConnectedNeighbours
from onefold.processor.testing.neighbours import SimulatedNeighbours
from tests.support.waiting import eventually

#: Kafka is not asked, only which way leads there.
SERVERS = "127.0.0.1:9092"

Life = ConnectedNeighbours | SimulatedNeighbours


def place_of(one: Neighbours) -> Place:
    assert one.place is not None
    return one.place


def dies(one: Neighbours, name: str) -> None:
    """It sees that, and what it sees does not change."""
    eventually(lambda: one.succeeds(name), 5, f"{name} is seen to have died")
    assert one.succeeds(name)


def connected(one: Life, name: str, place: Place) -> None:
    """It has heard where that is, and is connected to it."""
    one.hears(name, place)
    if isinstance(one, ConnectedNeighbours):
        eventually(one._links[name].lives, 5, f"there is a connection to {name}")
