"""Neighbours without a network, see `processor.core.neighbours`."""

from itertools import count

from onefold.processor.core.neighbours import Place


class Street:
    """Where simulated processes live."""

    def __init__(self) -> None:
        self.lived_in: set[Place] = set()
        self.left: set[Place] = set()
        self._ports = count(1)

    def move_in(self) -> Place:
        """A place where nobody has lived before."""
        place = Place("127.0.0.1", next(self._ports))
        self.lived_in.add(place)
        return place


class SimulatedNeighbours:
    """See `Neighbours`; one of them is one life of a process.

    Args:
        name: of this process, as the others hear it.
        street: where all live.
    """

    def __init__(self, name: str, street: Street) -> None:
        self._name = name
        self._street = street
        self._known: dict[str, Place] = {}
        self.place: Place | None = street.move_in()

    def hears(self, name: str, place: Place) -> None:
        """That process says that it is there."""
        if name == self._name:
            return
        if self._known.get(name) != place:
            self._known.pop(name, None)
        if place in self._street.lived_in:
            self._known[name] = place

    def succeeds(self, name: str) -> Place | None:
        """Where that process was, when it has died and this one is the first by name of those that it knows and that live."""
        if self._lives(name) or any(other < self._name and self._lives(other) for other in self._known):
            return None
        return self._known.get(name)

    def close(self) -> None:
        """As when the process ends, however it does."""
        if self.place is not None:
            self._street.lived_in.remove(self.place)
            self._street.left.add(self.place)
        self.place, self._known = None, {}

    def _lives(self, name: str) -> bool:
        return self._known.get(name) in self._street.lived_in
