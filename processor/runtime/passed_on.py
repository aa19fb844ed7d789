"""What a replica has read of its decision log, for the publisher beside it.

Both go through the same records by the same rule. So what the replica has fetched and decoded need not be fetched and decoded
again, and of what it has computed itself the outputs need not be encoded and decoded: they are what these very bytes were made
of. Whoever gets nothing here reads the log.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from onefold.processor.core.abc import Write
from onefold.processor.core.decision import Proposal
from onefold.processor.core.decision_log import Note
from onefold.processor.runtime.undecided import Pending

# What is held of a task for a publisher that falls behind, as the log has it; a few of the largest decisions. As objects it takes
# several times as much, and of what is more it reads the log.
BYTES_MAX = 8 * 1024 * 1024
# That a record takes besides, however short its bytes are.
RECORD_BYTES = 500


class Read(NamedTuple):
    """A record of the log.

    Attributes:
        record: what its bytes are; None: nothing that counts.
        writes: all that it has published, when that is known. None: it is in the record.
    """

    offset: int
    record: Proposal | Note | None
    writes: Sequence[Write] | None = None


class Arrival(AbstractContextManager[Any], Protocol):
    """A lock, and what waits for somebody under it; as `threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Without the lock, until somebody notifies, or so many seconds."""

    def notify(self) -> None:
        """Let who waits go on."""


class NoWaiting(nullcontext[None]):
    """Where replica and publisher are in one thread."""

    def wait(self, timeout: float | None = None) -> bool:
        """Not at all."""
        return False

    def notify(self) -> None:
        """Nobody waits."""


class PassedOn:
    """From one replica, in its thread, to one publisher, in another one.

    Args:
        arrival: what both share. None: they are in one thread, and nobody waits.
    """

    def __init__(self, arrival: Arrival | None = None) -> None:
        self._arrival = arrival or NoWaiting()
        self._reads: deque[Read] = deque()
        self._bytes = 0
        self._wanted: str | None = None  # the id of the log
        # Offsets [start, end) are those of what is here. None: nothing has been read that is wanted.
        self._range: tuple[int, int] | None = None

    def begin(self, log_id: str | None) -> None:
        """A publisher wants what is read of that log from now on; None: it wants nothing."""
        with self._arrival:
            self._clear()
            self._wanted = log_id

    def end(self) -> None:
        """It wants nothing any more."""
        self.begin(None)

    def put(
        self, log_id: str, offset: int, value: bytes | None, record: Proposal | Note | None, ours: Pending | None
    ) -> None:
        """The replica has read that record of the log, the one after the last; `ours`: it is what this one has computed."""
        if log_id != self._wanted:
            return  # mostly: not to lock for it
        writes = None if ours is None or ours.prepared is None else [*ours.prepared.writes, *ours.prepared.states]
        with self._arrival:
            if log_id != self._wanted:
                return  # since a moment
            start = offset if self._range is None else self._range[0]
            self._range = start, offset + 1
            self._reads.append(Read(offset, record, writes))
            self._bytes += RECORD_BYTES + len(value or b"")
            if self._bytes > BYTES_MAX:
                self._clear()
            self._arrival.notify()

    def take(self, offset: int, timeout_s: float) -> Sequence[Read] | None:
        """What was read from that offset on; waits at most so long for the first. None: it is not here, or not any more, or the
        replica has not come so far.
        """
        with self._arrival:
            if self._range == (offset, offset):
                self._arrival.wait(timeout_s)
            if self._range is None or not self._range[0] <= offset <= self._range[1]:
                return None
            found = [read for read in self._reads if read.offset >= offset]
            self._reads.clear()
            self._bytes, self._range = 0, (self._range[1], self._range[1])
            return found

    def _clear(self) -> None:
        self._reads.clear()
        self._bytes, self._range = 0, None
