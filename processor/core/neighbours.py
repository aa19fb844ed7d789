"""Which of the other processes has died, so that what it published is taken up at once, and not after a while.

The machine on which a process dies ends its connections in that moment, and whoever is connected to it sees that. It says only
who does the work next, see `runtime.publisher`. A process that is frozen is not seen, nor for some seconds a machine that is cut
off or has no power: they are missed, see `runtime.patience`.
"""

from ipaddress import ip_address
from typing import NamedTuple, Protocol

from onefold.processor.core.decision_log import Note


class Place(NamedTuple):
    """Where a process takes connections: an IP address, and a TCP port."""

    host: str
    port: int


class Neighbours(Protocol):
    """The other processes of a pipeline with replicas, as one of them sees them."""

    @property
    def place(self) -> Place | None:
        """Where the others can connect to this one; None: nowhere."""

    def hears(self, name: str, place: Place) -> None:
        """That process says that it is there."""

    def succeeds(self, name: str) -> Place | None:
        """Where that process was, when it has died and this one is the first by name of those that are connected and live.

        It may live all the same, where there is no way to it any more.
        """


class NoNeighbours:
    """Knows nobody."""

    place = None

    def hears(self, name: str, place: Place) -> None:
        """Forget it."""

    def succeeds(self, name: str) -> None:
        """Of nobody it is known that he has died."""


def place_in(note: Note) -> Place | None:
    """Where it says that its process takes connections. None: it says nothing of it, or what cannot be."""
    told = note.body.get("replica")
    match told.get("listens") if isinstance(told, dict) else None:
        case [str(host), int(port)] if _is_address(host) and 0 < port < 2**16 and port is not True:
            return Place(host, port)
    return None


def _is_address(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    # What comes after a % is of the machine that has said it, and may be anything.
    return "%" not in host and not address.is_unspecified and not address.is_multicast
