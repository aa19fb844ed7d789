"""How many records the next transaction of a task may have, and which record is a dead letter because none succeeds with it.

Three causes lower the limit:

- **Slow.** A transaction has as many records as can be processed in `TURN_S`, going by the transaction before.
- **Too large.** The records of a transaction that was too large for the cluster (`TooMuch`) come again in transactions of a
  tenth of its size, and so on. When all of them are committed, sizes double again.
- **Crashing.** A record that kills the process (a crash in compiled code, memory) kills it again after every restart. So each
  owner of a task begins by writing a `Quarantine`, and writes "clean" when all records that were there at its start are
  processed. If its predecessor did not get there, an owner takes one level more: level 1 has small transactions, level 2 single
  records. A crash in a larger transaction only raises the level: a kill from outside is no record's fault.

A record that is too large alone, or crashes the process alone, is tried three times; then it is a dead letter, without another
try. Attempts that were too large count if the cluster took another transaction after each of them, and are counted in memory.
An attempt that crashes is counted by a note that is committed before it; an aborted transaction is no crash. While a record is
tried alone no other task of the process computes: the crash would be counted against both.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec

from onefold.error_codes import Code
from onefold.processor.core.abc import Identity
from onefold.processor.core.errors import Abortable, Corrupted
from onefold.processor.core.values import Record

# Records in one transaction at levels 0, 1 and 2. A row that changed often is written once, and larger transactions give fewer
# outputs, for memory (docs/decisions/batches-and-limits.md). With 100 levels 1 and 2 together are over soonest: a single record
# takes two transactions, and the tasks of a process go one after the other.
BATCH = (80_000, 100, 1)
# Records to commit before the level falls: the largest transaction of the level before, in which the crash was.
WINDOW = (80_000, 80_000, 100)
# A transaction has at most twice as many records as the one before, or this many. The first results of a burst are there after a
# tenth of a second, and a backlog goes in large transactions soon.
FIRST_RECORDS = 5_000
# The wait for the compute lock is included. A size may grow a quarter beyond this time, and a task that is taken away still ends
# in time (pool.STOP_TIMEOUT_S), whatever a handler costs. It also bounds the work that all tasks hold in memory.
TURN_S = 7.0
# With ten, one record in the largest transaction is found in five tries.
SHRINK = 10
# Kills from outside hit the few milliseconds of one record's own transaction three times in a row about never. A cluster in
# trouble does not take the transactions between three attempts that were too large.
TRIES_MAX = 3


class Quarantine(msgspec.Struct, frozen=True, rename={"clean": "calm"}):
    """How careful the next owner of a task has to be: a record of the changelog, or each replica's own note in the decision log.

    The stored names are those of 0.1.0, which fails at any other. There is no version: the progress, which every transaction that
    writes this record writes too, has one for both.

    Attributes:
        clean: whether the owner came to a clean end.
        topic, offset, tries: the record that was tried alone last, and how often it was.
    """

    level: Annotated[int, msgspec.Meta(ge=0, lt=len(BATCH))] = 0
    clean: bool = True
    topic: str | None = None
    offset: int = 0
    tries: int = 0

    def encode(self) -> bytes:
        """The value of the quarantine record."""
        return json.dumps(msgspec.to_builtins(self)).encode()

    @staticmethod
    def decode(data: bytes) -> "Quarantine":
        """The quarantine, without fields that are not known. Raises `Corrupted` when the bytes are none."""
        try:
            return msgspec.json.decode(data, type=Quarantine)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupted(
                Code.CHANGELOG_WRONG, f"the changelog's crash quarantine record cannot be read: {error}"
            ) from error

    def successor(self) -> "Quarantine":
        """Return the quarantine that the next owner begins with."""
        if self.clean:
            return Quarantine(clean=False)
        return msgspec.structs.replace(self, level=min(self.level + 1, 2))

    def tries_of(self, place: tuple[str, int]) -> int:
        """How often the record there was tried alone."""
        return self.tries if place == (self.topic, self.offset) else 0

    def trying(self, place: tuple[str, int]) -> "Quarantine":
        """With one more attempt of the record there."""
        return Quarantine(2, False, *place, self.tries_of(place) + 1)

    def relaxed(self) -> "Quarantine":
        """One level down."""
        return Quarantine(1, clean=False) if self.level == 2 else Quarantine()


class BatchLimit:
    """The limit of one task, from its opening to its end.

    Args:
        write: writes the quarantine where the next owner of the task finds it.
        most: how many records a transaction may ever have.

    Attributes:
        quarantine: the last one that was written, or found.
    """

    def __init__(self, write: Callable[[Quarantine], None], most: int = BATCH[0]) -> None:
        self.quarantine = Quarantine()
        self._write = write
        self._opened = False
        self._ends: dict[str, int] = {}
        self._committed = 0  # records, at this level
        self._attempted: tuple[str, int] | None = None  # the record that was tried alone last, in this life
        self._in_time = FIRST_RECORDS
        self._most = self._fits = most
        self._too_large: dict[str, int] = {}  # where the records end that were too large together
        self._refused: tuple[str, int] | None = None  # the record that was too large alone, ...
        self._refusals, self._reason = 0, ""  # ... how often in a row, and why

    @property
    def records_max(self) -> int:
        """How many records the next transaction may have."""
        return min(self._in_time, self._fits, BATCH[self.quarantine.level])

    @property
    def isolating(self) -> bool:
        """Whether each record is tried alone, after an `attempt`."""
        return self.quarantine.level == 2

    def open(self, inputs: Mapping[str, Identity]) -> None:
        """Go on from the quarantine of the predecessor, whose crash was at a record before these ends of the inputs."""
        self._ends = {topic: identity.end for topic, identity in inputs.items()}
        self._store(self.quarantine.successor())
        self._opened = True

    def close(self) -> None:
        """Leave in good order. A task that was not opened leaves what its predecessor wrote."""
        if self._opened and not self.quarantine.clean:
            self._store(Quarantine())

    def caught_up(self, offsets_next: Mapping[str, int]) -> bool:
        """Whether all records are processed that the inputs had when the task was opened."""
        return _reached(self._ends, offsets_next)

    def idle(self) -> None:
        """A poll returned nothing: a burst that comes now begins small."""
        self._in_time = FIRST_RECORDS

    def committed(self, records: int, took_s: float, offsets_next: Mapping[str, int]) -> None:
        """A transaction of that many records took `took_s` seconds, from the end of the poll to the commit."""
        self._committed += records
        self._in_time = records_next(records, took_s)
        if _reached(self._too_large, offsets_next):
            self._fits, self._too_large = min(self._most, 2 * self._fits), {}

    def relax(self, offsets_next: Mapping[str, int]) -> None:
        """Lower the level when the records from before the start, or a window of records, are committed."""
        if self.quarantine.clean:
            return
        if self.caught_up(offsets_next):
            self._store(Quarantine())
        elif self._committed >= WINDOW[self.quarantine.level]:
            self._committed = 0
            self._store(self.quarantine.relaxed())

    def too_large(self, records: Sequence[Record], reason: str) -> None:
        """The cluster did not take a transaction of these records."""
        self._fits = max(1, len(records) // SHRINK)
        self._too_large = {record.topic: record.offset + 1 for record in records}
        if len(records) == 1:
            self._refusals = self._refusals + 1 if _place(records[0]) == self._refused else 1
            self._refused, self._reason = _place(records[0]), reason

    def rejected(self, records: Sequence[Record]) -> dict[Record, str]:
        """A single record that was tried often enough, and why it is a dead letter; else nothing."""
        if len(records) != 1:
            return {}
        place = _place(records[0])
        # The attempt of this life is no crash yet.
        if place != self._attempted and self.quarantine.tries_of(place) >= TRIES_MAX:
            return {records[0]: f"the processor crashed {TRIES_MAX} times at this record"}
        if place == self._refused and self._refusals >= TRIES_MAX:
            return {records[0]: f"what comes of it could not be written, {self._refusals} times: {self._reason}"}
        return {}

    def attempt(self, record: Record) -> None:
        """Note that this record is tried alone. Once a life: a proposal that was not accepted is no crash."""
        place = _place(record)
        if place != self._attempted:
            self._store(self.quarantine.trying(place))
            self._attempted = place

    def withdraw(self, before: Quarantine) -> None:
        """Take the attempt back to the quarantine before it: its transaction was aborted, and until the record is tried again
        another task may crash the process.
        """
        self.quarantine, self._attempted = before, None
        with suppress(Abortable):
            self._write(before)

    def _store(self, quarantine: Quarantine) -> None:
        self._write(quarantine)
        self.quarantine = quarantine


def records_next(records: int, took_s: float) -> int:
    """How many records can be processed in time, after a transaction of `records` took `took_s`.

    Near the bound the sizes of all tasks grow by the same number and shrink by the same factor, so that the tasks of a process
    come to share its time. With one factor for both, a partition that began small would stay behind for ever.
    """
    in_time = int(records * TURN_S / took_s) if took_s else BATCH[0]
    if in_time < records:
        return max(1, in_time)
    if in_time < 2 * records:
        return records + min(FIRST_RECORDS, records // 4)
    return min(in_time, max(FIRST_RECORDS, 2 * records))


def _place(record: Record) -> tuple[str, int]:
    return record.topic, record.offset


def _reached(ends: Mapping[str, int], offsets_next: Mapping[str, int]) -> bool:
    return all(offsets_next[topic] >= end for topic, end in ends.items())
