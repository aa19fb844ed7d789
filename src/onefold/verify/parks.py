"""Parked keys, for pipelines with `on_dead_letter="park"`: the waiting events of a key, and the next ticket.

A rejected event parks its key. Each later event of the key becomes a dead letter with the next ticket, without any change.
Replays and drops of dead letters count only in the order of the tickets; after the last ticket, the key is no longer parked. A
dead letter names its ticket in a header, and so do its replay and its drop.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from onefold.verify.record import ReadRecord, Source

#: The header for a parked key, in a dead letter, its replay and its drop: `number waits|refused place key`.
PARKED_HEADER = "onefold-parked"
#: The header of a record without an event: a dead letter was dropped.
DROPPED_HEADER = "onefold-dropped"


class ParkTicket(NamedTuple):
    """A ticket, as in the header: its number, whether the record itself was rejected, the place of the record that parked the
    key, and the state key.
    """

    number: int
    refused: bool
    at: str
    key: str

    def __str__(self) -> str:
        return f"{self.number} {'refused' if self.refused else 'waits'} {self.at} {self.key}"


def ticket_of(text: bytes | None) -> ParkTicket | None:
    """Return the ticket in a header; None: no ticket."""
    try:
        number, how, at, key = (text or b"").decode().split(" ", 3)
        return ParkTicket(int(number), how == "refused", at, key)
    except ValueError:
        return None


def is_drop(record: ReadRecord) -> bool:
    """Return whether an input record is no event, but reports a dropped dead letter."""
    return bool(record.headers) and record.header(DROPPED_HEADER) is not None


@dataclass
class _Queue:
    at: str
    next: int = 0
    last: int = 0


@dataclass
class Parks:
    """The parked keys of a pipeline."""

    _queues: dict[str, _Queue] = field(default_factory=dict)

    def is_parked(self, key: str) -> bool:
        """Return whether the events of a key wait."""
        return key in self._queues

    def is_next(self, key: str, ticket: ParkTicket | None) -> bool:
        """Return whether a ticket of a parked key is the next one."""
        queue = self._queues[key]
        return ticket is not None and (ticket.at, ticket.number) == (queue.at, queue.next)

    def call_next(self, key: str) -> None:
        """Advance to the next ticket of a key, or unpark the key."""
        queue = self._queues[key]
        if queue.next == queue.last:
            del self._queues[key]
        else:
            queue.next += 1

    def letter(self, key: str, source: Source, ticket: ParkTicket | None) -> ParkTicket:
        """Return the expected ticket in the dead letter of the record at `source`.

        Args:
            ticket: of a replay or a drop.
        """
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = _Queue(str(source))
            return ParkTicket(0, True, str(source), key)
        if ticket is None or ticket.at != queue.at:
            queue.last += 1
            return ParkTicket(queue.last, False, queue.at, key)
        return ticket._replace(refused=self.is_next(key, ticket))
