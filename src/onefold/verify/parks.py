"""Parked keys, for pipelines with `on_dead_letter="park"`: which events of a key wait, and whose turn it is.

A rejected event parks its key. Each later event of the key is a dead letter with the next ticket and changes nothing, until the
replay of the letter with the first ticket that had no turn, or a record of its drop, is read. A dead letter names its ticket in a
header, and so do its replay and its drop.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from onefold.verify.record import ReadRecord, Source

#: The header of a dead letter of a parked key, of its replay and of its drop: `number waits|refused place key`.
PARKED_HEADER = "onefold-parked"
#: The header of a record that stands for no event: the dead letter was dropped.
DROPPED_HEADER = "onefold-dropped"


class ParkTicket(NamedTuple):
    """What the header says: the turn, whether the record itself was rejected, where the record that parked the key lies, and the
    state key.
    """

    number: int
    refused: bool
    at: str
    key: str

    def __str__(self) -> str:
        return f"{self.number} {'refused' if self.refused else 'waits'} {self.at} {self.key}"


def ticket_of(text: bytes | None) -> ParkTicket | None:
    """The ticket that a header names; None: it names none."""
    try:
        number, how, at, key = (text or b"").decode().split(" ", 3)
        return ParkTicket(int(number), how == "refused", at, key)
    except ValueError:
        return None


def is_drop(record: ReadRecord) -> bool:
    """Whether an input record says that it is no event, but that a dead letter was dropped."""
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
        """Whether the events of a key wait."""
        return key in self._queues

    def is_next(self, key: str, ticket: ParkTicket | None) -> bool:
        """Whether it is the turn of this ticket of a parked key."""
        queue = self._queues[key]
        return ticket is not None and (ticket.at, ticket.number) == (queue.at, queue.next)

    def call_next(self, key: str) -> None:
        """The ticket whose turn it is had its turn."""
        queue = self._queues[key]
        if queue.next == queue.last:
            del self._queues[key]
        else:
            queue.next += 1

    def letter(self, key: str, source: Source, ticket: ParkTicket | None) -> ParkTicket:
        """What the dead letter of the record at `source` must say.

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
