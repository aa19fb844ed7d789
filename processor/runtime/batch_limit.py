"""The maximum number of records in a task's next transaction, and the isolation of poison records.

Three causes lower the limit:

- **Slow.** A transaction has as many records as a task can process in `TURN_S`, estimated from the last transaction.
- **Too large.** If a transaction was too large for the cluster (`TooMuch`), the next transactions have a tenth of the size, and
  so on. After the commit of all records of the large transaction, sizes double again.
- **Crashing.** A poison record crashes the process (in compiled code, or by lack of memory) after every restart. So each owner
  of a task first writes a `Quarantine`, and writes "clean" after all records from before its start are processed. If the
  predecessor wrote no "clean", the owner raises the level by one: level 1 has small transactions, level 2 single records. A
  crash in a larger transaction only raises the level, because the cause may be a kill from outside.

If a single record is too large, or crashes the process, three times, the record becomes a dead letter without a further try.
Oversized attempts are counted in memory, if the cluster accepted another transaction after each. A crash is counted by a
quarantine that is committed before the attempt; an aborted transaction is no crash. During the attempt no other task of the
process computes: a crash would count against both tasks' records.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec

from onefold.error_codes import Code
from onefold.processor.core.abc import PartitionIdentity
from onefold.processor.core.errors import Abortable, Corrupted
from onefold.processor.core.values import Record

# Maximum records in one transaction at levels 0, 1 and 2. A transaction writes a row that changed often only once, so larger
# transactions give fewer outputs, for more memory (docs/decisions/batches-and-limits.md). The size at level 1 minimizes the
# time of levels 1 and 2 together: a single record takes two transactions, and the tasks of a process take turns.
BATCH = (80_000, 100, 1)
# Records to commit before the level falls: the maximum transaction of the level below, where the crash was.
WINDOW = (80_000, 80_000, 100)
# A transaction has at most twice as many records as the last transaction, or this number. So the first results of a burst
# appear soon, and a backlog soon gets large transactions.
FIRST_RECORDS = 5_000
# The target time of a transaction, including the wait for the compute lock. A size may exceed the time by a quarter, and a
# revoked task still ends in time (pool.STOP_TIMEOUT_S), even with a slow handler. The bound also limits the memory of all
# tasks.
TURN_S = 7.0
# A factor of ten finds one oversized record in the largest transaction within five tries.
SHRINK = 10
# Kills from outside practically never hit a single record's short transaction three times in a row. A cluster with a fault does
# not accept the transactions between three oversized attempts.
TRIES_MAX = 3


class Quarantine(msgspec.Struct, frozen=True, rename={"clean": "calm"}):
    """The isolation level for the next owner of a task. Stored in the changelog, or with replicas in a status record of each.

    Release 0.1.0 fails at any other stored names than the present ones. The record has no version field: each transaction that
    writes the record also writes the progress, whose version covers both.

    Attributes:
        level: 0: normal; 1: small transactions; 2: single records.
        clean: whether the owner reached a clean end.
        topic, offset, tries: the last isolated record, and the number of its tries.
    """

    level: Annotated[int, msgspec.Meta(ge=0, lt=len(BATCH))] = 0
    clean: bool = True
    topic: str | None = None
    offset: int = 0
    tries: int = 0

    def encode(self) -> bytes:
        """Encode the value of the quarantine record."""
        return json.dumps(msgspec.to_builtins(self)).encode()

    @staticmethod
    def decode(data: bytes) -> "Quarantine":
        """Decode the quarantine, without unknown fields. Raises `Corrupted` if the bytes are no quarantine."""
        try:
            return msgspec.json.decode(data, type=Quarantine)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupted(
                Code.CHANGELOG_WRONG, f"the changelog's crash quarantine record cannot be read: {error}"
            ) from error

    def successor(self) -> "Quarantine":
        """The first quarantine of the next owner."""
        if self.clean:
            return Quarantine(clean=False)
        return msgspec.structs.replace(self, level=min(self.level + 1, 2))

    def tries_of(self, place: tuple[str, int]) -> int:
        """The number of isolated tries of the record at `place`."""
        return self.tries if place == (self.topic, self.offset) else 0

    def trying(self, place: tuple[str, int]) -> "Quarantine":
        """The quarantine with one more try of the record at `place`."""
        return Quarantine(2, False, *place, self.tries_of(place) + 1)

    def relaxed(self) -> "Quarantine":
        """The quarantine of the next lower level."""
        return Quarantine(1, clean=False) if self.level == 2 else Quarantine()


class BatchLimit:
    """The limit of one task, from the opening to the end of the task.

    Args:
        write: writes the quarantine for the next owner of the task.
        most: the maximum number of records in any transaction.

    Attributes:
        quarantine: the last quarantine that was written or read.
    """

    def __init__(self, write: Callable[[Quarantine], None], most: int = BATCH[0]) -> None:
        self.quarantine = Quarantine()
        self._write = write
        self._opened = False
        self._ends: dict[str, int] = {}
        self._committed = 0  # records, at this level
        self._attempted: tuple[str, int] | None = None  # the last isolated record of this owner
        self._in_time = FIRST_RECORDS
        self._most = self._fits = most
        self._too_large: dict[str, int] = {}  # the end offsets of the last oversized transaction
        self._refused: tuple[str, int] | None = None  # the last single record that was too large
        self._refusals, self._reason = 0, ""  # the refusals of this record in a row, and the last reason

    @property
    def records_max(self) -> int:
        """The maximum number of records in the next transaction."""
        return min(self._in_time, self._fits, BATCH[self.quarantine.level])

    @property
    def isolating(self) -> bool:
        """Whether each record is isolated, after a call of `attempt`."""
        return self.quarantine.level == 2

    def open(self, inputs: Mapping[str, PartitionIdentity]) -> None:
        """Continue from the predecessor's quarantine. A record that crashed the predecessor is before the ends of `inputs`."""
        self._ends = {topic: identity.end for topic, identity in inputs.items()}
        self._store(self.quarantine.successor())
        self._opened = True

    def close(self) -> None:
        """Write a clean end. A task that was never opened keeps the predecessor's quarantine."""
        if self._opened and not self.quarantine.clean:
            self._store(Quarantine())

    def caught_up(self, offsets_next: Mapping[str, int]) -> bool:
        """Whether all records from before the task's opening are processed."""
        return _reached(self._ends, offsets_next)

    def idle(self) -> None:
        """Note an empty poll: the next burst begins with a small transaction."""
        self._in_time = FIRST_RECORDS

    def committed(self, records: int, took_s: float, offsets_next: Mapping[str, int]) -> None:
        """Note the commit of a transaction of `records` records, `took_s` seconds after the end of the poll."""
        self._committed += records
        self._in_time = records_next(records, took_s)
        if _reached(self._too_large, offsets_next):
            self._fits, self._too_large = min(self._most, 2 * self._fits), {}

    def relax(self, offsets_next: Mapping[str, int]) -> None:
        """Lower the level after each committed window of records. Write a clean quarantine once the task has caught up."""
        if self.quarantine.clean:
            return
        if self.caught_up(offsets_next):
            self._store(Quarantine())
        elif self._committed >= WINDOW[self.quarantine.level]:
            self._committed = 0
            self._store(self.quarantine.relaxed())

    def too_large(self, records: Sequence[Record], reason: str) -> None:
        """Note that the cluster rejected a transaction of these records as too large."""
        self._fits = max(1, len(records) // SHRINK)
        self._too_large = {record.topic: record.offset + 1 for record in records}
        if len(records) == 1:
            self._refusals = self._refusals + 1 if _place(records[0]) == self._refused else 1
            self._refused, self._reason = _place(records[0]), reason

    def rejected(self, records: Sequence[Record]) -> dict[Record, str]:
        """A single record that has to become a dead letter, with the reason; empty if the records may be tried."""
        if len(records) != 1:
            return {}
        place = _place(records[0])
        # The present attempt of this owner is no crash.
        if place != self._attempted and self.quarantine.tries_of(place) >= TRIES_MAX:
            return {records[0]: f"the processor crashed {TRIES_MAX} times at this record"}
        if place == self._refused and self._refusals >= TRIES_MAX:
            return {records[0]: f"what comes of it could not be written, {self._refusals} times: {self._reason}"}
        return {}

    def attempt(self, record: Record) -> None:
        """Write that this record is tried alone. Once for each owner: a rejected proposal is no crash."""
        place = _place(record)
        if place != self._attempted:
            self._store(self.quarantine.trying(place))
            self._attempted = place

    def withdraw(self, before: Quarantine) -> None:
        """Restore the quarantine from before the attempt, after an abort of the transaction.

        Until the next attempt, another task may crash the process.
        """
        self.quarantine, self._attempted = before, None
        with suppress(Abortable):
            self._write(before)

    def _store(self, quarantine: Quarantine) -> None:
        self._write(quarantine)
        self.quarantine = quarantine


def records_next(records: int, took_s: float) -> int:
    """The number of records that a task can process in `TURN_S`, after a transaction of `records` took `took_s`.

    Near the bound, the sizes of all tasks grow by the same number and shrink by the same factor, so the tasks of a process
    converge to equal shares. With a factor for both, a task with small transactions would keep them for ever.
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
