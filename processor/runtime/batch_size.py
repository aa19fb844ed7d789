"""How many records the next transaction may have: few after a start, many in a backlog, fewer after one was too much.

A transaction that was too much for the cluster (`TooMuch`) comes again in a tenth of its size, and so on. Sizes stay so small
until the records that were in it are behind, and double after that. So a record that can never be written is alone in the
end, after a few tries. When it was too much alone three times, and the cluster took another transaction before each of them,
it is set aside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onefold.processor.core.values import Record
from onefold.processor.runtime.quarantine import BATCH

# A transaction has at most twice as many records as the one before, or so many: of a burst, or after a start, the first
# results are there after a tenth of a second, and a backlog is in large transactions soon.
FIRST_RECORDS = 5_000
# Nor many more than could be done in this time, waiting for the compute_lock included: with the quarter by which a size may
# grow beyond it, a task that is taken away still ends in time (pool.STOP_TIMEOUT_S), whatever a handler costs; and what
# many tasks hold in memory is so many seconds of work in all.
TURN_S = 7.0
# By so much a transaction shrinks that was too much. With ten, one record in the largest transaction is found in five tries.
SHRINK = 10
# So often a record may be too much alone. A cluster in trouble does not take the transactions between.
ALONE_MAX = 3


@dataclass(frozen=True)
class _TooMuchAlone:
    """A record that could not be written by itself: so often, and why not."""

    topic: str
    offset: int
    tries: int
    reason: str

    def is_about(self, record: Record) -> bool:
        return (record.topic, record.offset) == (self.topic, self.offset)


class BatchSize:
    """Of one task's transactions, as it goes on."""

    def __init__(self) -> None:
        self._records = FIRST_RECORDS
        self._limit = BATCH[0]
        self._limited_below: dict[str, int] = {}
        self._alone: _TooMuchAlone | None = None

    @property
    def records_max(self) -> int:
        """How many the next transaction may have."""
        return min(self._records, self._limit)

    def idle(self) -> None:
        """There was nothing to read: a burst that comes now begins small."""
        self._records = FIRST_RECORDS

    def went_well(self, records: int, took_s: float, offsets_next: Mapping[str, int]) -> None:
        """A transaction of so many records took so long, from when they were there to when it was committed."""
        self._records = records_next(records, took_s)
        self._alone = None
        if all(offsets_next[topic] >= below for topic, below in self._limited_below.items()):
            self._limit, self._limited_below = min(BATCH[0], 2 * self._limit), {}

    def too_much(self, records: Sequence[Record], reason: str) -> None:
        """These were too much for one transaction."""
        self._limit = max(1, len(records) // SHRINK)
        self._limited_below = {record.topic: record.offset + 1 for record in records}
        if len(records) == 1:
            (record,) = records
            tries = self._alone.tries if self._alone and self._alone.is_about(record) else 0
            self._alone = _TooMuchAlone(record.topic, record.offset, tries + 1, reason)

    def was_too_much(self, records: Sequence[Record]) -> bool:
        """Whether this is a single record that was too much before."""
        return len(records) == 1 and self._alone is not None and self._alone.is_about(records[0])

    def set_aside(self, records: Sequence[Record]) -> dict[Record, str]:
        """The one of `records` that cannot be written, and why not, if it was tried often enough."""
        alone = self._alone
        if alone is None or not self.was_too_much(records) or alone.tries < ALONE_MAX:
            return {}
        return {records[0]: f"what comes of it could not be written, {alone.tries} times: {alone.reason}"}


def records_next(records: int, took_s: float) -> int:
    """How many the next transaction may have, after one of so many took so long.

    Near the bound all grow by the same number and shrink by the same factor, so that tasks that share a process come to
    share its time as well: a partition that began small would stay behind for ever.
    """
    in_time = int(records * TURN_S / took_s) if took_s else BATCH[0]
    if in_time < records:
        return max(1, in_time)
    if in_time < 2 * records:
        return records + min(FIRST_RECORDS, records // 4)
    return min(in_time, max(FIRST_RECORDS, 2 * records))
