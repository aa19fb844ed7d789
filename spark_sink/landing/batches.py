"""Processes the micro-batches of a query: determines the offsets, splits large batches into parts, and writes each part.

Spark's thread reads the rows of a part. The lander's thread writes the part, while Spark reads the next part, or plans and
reads the next batch (docs/decisions/batches-and-limits.md).
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial

import psycopg
import structlog

from onefold.error_codes import Code, CodedError
from onefold.spark_sink.contracts import Target
from onefold.spark_sink.errors import Overlap, Rewind, blames_a_row, may_blame_a_row, sentence
from onefold.spark_sink.landing import batch_history, known_schemas, ledger, topic_identity
from onefold.spark_sink.landing.isolate import REDUCED_OFFSETS, Bound, Sifted
from onefold.spark_sink.landing.land import land
from onefold.spark_sink.landing.lander import Lander
from onefold.spark_sink.landing.ledger import BatchRange, OffsetRange, Partition
from onefold.spark_sink.landing.protocols import BatchRows, Scheduler, TopicInfo
from onefold.spark_sink.landing.stage_timer import Stages
from onefold.spark_sink.landing.staging_tables import Staged, StagingTables
from onefold.spark_sink.postgres.connection import Connection
from onefold.spark_sink.query_config import QueryConfig
from onefold.telemetry import BATCH_S, BATCHES, OFFSETS, RETRIES, ROWS, SET_ASIDE

log = structlog.get_logger()

# During the write of a batch with at most this many offsets, Spark reads the next batch. During a larger write, Spark waits,
# because more records arrive meanwhile, and a larger next batch costs less per row. A batch of the maximum size cannot grow, so
# Spark does not wait.
AHEAD_OFFSETS = 25_000

# The maximum record size of an output topic created by a processor.
_RECORD_BYTES = 10_485_760


class Batches:
    """Receives the micro-batches of one query, from its start to its end."""

    def __init__(
        self,
        plan: QueryConfig,
        connection: Connection,
        reader: Connection,
        topics: TopicInfo,
        stage: StagingTables,
        start: dict[Partition, int],
        ids: dict[str, str],
        ends: Callable[[int], dict[Partition, int]],
        scheduler: Scheduler,
        bound: Bound | None = None,
    ) -> None:
        """Start at the offsets `start` of the topics with the given `ids`.

        Args:
            connection: writes the batches.
            reader: reads the ledger, concurrently with `connection`.
            ends: returns the end offsets of a batch by the batch's id.
            bound: the limit of rejected rows.
        """
        self._plan = plan
        self._connection = connection
        self._reader = reader
        self._topics = topics
        self._stage = stage
        self._next = self._reached = start
        self._ids = ids
        self._ends = ends
        self._bound = bound or Bound()
        self._lander = Lander(plan.domain.name, scheduler)
        self._stages = Stages(plan.telemetry, plan.domain.name, plan.clock)
        self._step = self._stages.timed(plan.step)
        self._failure: BaseException | None = None
        self._bytes_per_offset: float = _RECORD_BYTES  # estimated from the last batch of sufficient size
        self._noted = batch_history.PRUNED_AFTER  # prunes after the first batch, because many sinks have a short life
        self.landed = 0

    @property
    def reached(self) -> dict[Partition, int]:
        """The offset per partition below which all records are written, according to this query."""
        return self._reached

    @property
    def failure(self) -> BaseException | None:
        """The error that prevents further writes. None: the query is healthy."""
        return self._lander.failure or self._failure

    def close(self) -> None:
        """Wait for the current batch, and accept no further batch."""
        self._lander.close()

    def on_batch(self, rows: BatchRows, batch_id: int) -> None:
        """Process a batch. Called by Spark in a separate thread. An exception ends the query."""
        began_at = self._plan.clock()
        try:
            ends = self._ends(batch_id)
            batch = self._cover(ends)
            if ledger.landed(self._reader, batch):
                self._lander.hand_over(partial(self._leave_to_another, batch, began_at))
            else:
                self._read_and_hand_over(batch, rows, began_at)
            if batch.offsets > AHEAD_OFFSETS and not self._full(batch):
                self._lander.finish()
            self._next = self._next | ends
        except BaseException as error:  # noqa: BLE001 - the query reports the error, even SystemExit
            # Complete the write of the rows read before. The lander stores an error of that write.
            with suppress(BaseException):
                self._lander.finish()
            self._failure = error
            # Spark gets a short RuntimeError for every error. After another BaseException, Spark would wait forever. A long
            # text overflows the stack of the regular expression in Spark's error handling.
            raise RuntimeError("the batch was not written") from None

    def _cover(self, ends: dict[Partition, int]) -> BatchRange:
        """Return the exact ranges of a batch, from the end of the previous batch to Spark's end offsets."""
        # A partition added during the run has no row in the ledger. The write fails, and the next start inserts a row.
        ranges = [
            OffsetRange(*key, self._next.get(key, 0), end, self._ids[key[0]]) for key, end in sorted(ends.items())
        ]
        if any(part.end < part.start for part in ranges):
            raise Rewind(Code.CHECKPOINT_LOST, "Spark's checkpoint goes back behind the batch before")
        covered = tuple(part for part in ranges if part.start < part.end)
        return BatchRange(self._plan.domain.name, self._plan.writer, covered)

    def _read_and_hand_over(self, batch: BatchRange, rows: BatchRows, began_at: float) -> None:
        measured = self._bytes_per_offset * batch.offsets > self._plan.line_bytes_max
        largest = 0.0
        with ExitStack() as stack:
            held = stack.enter_context(rows.held(batch.offsets, reread=measured))
            with self._stages.reading():
                parts = self._in_parts(batch, held) if measured else [batch]
            for part in parts:
                of_part = held if part is batch else held.within(part.spans, part.offsets)
                with self._stages.reading():
                    staged = Staged(self._stage, of_part.to_arrow())
                largest = max(largest, staged.bytes / part.offsets)
                self._lander.finish()
                kept = stack.pop_all() if part is parts[-1] else None
                self._lander.hand_over(partial(self._land_part, part, of_part, staged, began_at, kept))
                began_at = self._plan.clock()
        # A batch of few records, or only of transaction markers, is no basis for an estimate.
        if largest and batch.offsets * _RECORD_BYTES > self._plan.line_bytes_max:
            self._bytes_per_offset = largest

    def _in_parts(self, batch: BatchRange, rows: BatchRows) -> list[BatchRange]:
        """Bisect the batch until the lines of each part are below `line_bytes_max`, or the part has one offset."""
        if batch.offsets == 1 or rows.bytes() <= self._plan.line_bytes_max:
            return [batch]
        return [part for half in batch.halves() for part in self._in_parts(half, rows.within(half.spans, half.offsets))]

    def _land_part(
        self, part: BatchRange, rows: BatchRows, staged: Staged, began_at: float, kept: ExitStack | None
    ) -> None:
        """Write a part. `kept`: the held rows, released after the batch's last part; None for other parts."""
        with kept or nullcontext():
            self._land_all(part, rows, staged)
        self._count(part, began_at)
        if kept:
            self._bound.end_batch()

    def _leave_to_another(self, batch: BatchRange, began_at: float) -> None:
        """Count a batch already written by a concurrent sink."""
        self._count(batch, began_at)
        self._bound.end_batch()

    def _count(self, batch: BatchRange, began_at: float) -> None:
        self._reached = self._reached | {part.key: part.end for part in batch.ranges}
        self.landed += batch.offsets
        tell, domain = self._plan.telemetry, self._plan.domain.name
        tell.add(BATCHES, domain=domain)
        tell.add(OFFSETS, batch.offsets, domain=domain)
        tell.took(BATCH_S, self._plan.clock() - began_at, domain=domain)

    def _merged(self, rows: int) -> None:
        self._plan.telemetry.add(ROWS, rows, domain=self._plan.domain.name)

    def _land_all(self, batch: BatchRange, rows: BatchRows, staged: Staged) -> None:
        """Write the batch. After each overlap with a concurrent sink, reduce and write the remaining records again."""
        while True:
            try:
                self._land(batch, rows, staged)
                self._prune(batch)
                return
            except Overlap as overlap:
                batch = remaining(batch, overlap.start_offsets)
                if not batch.ranges:
                    return
                rows = rows.within(batch.spans, batch.offsets)
                staged = Staged(self._stage, rows.to_arrow())

    def _land(self, batch: BatchRange, rows: BatchRows, staged: Staged) -> None:
        topic_identity.same_topics(self._topics, self._ids)
        known_schemas.refuse_newer(self._connection, self._plan.domain)
        self._refuse_written(staged)
        batch, targets = _with_last_records(batch, staged), self._stage.targets
        try:
            if self._enter(batch, staged, targets):
                self._bound.landed(self._rows_of(batch, staged), {})
                self._say_set_aside(batch, staged.rejected)
        except psycopg.Error as error:
            if self._connection.closed or not may_blame_a_row(error):
                raise
            self._sift(batch, rows)

    def _rows_of(self, batch: BatchRange, staged: Staged) -> dict[str, int]:
        """The number of rows in the batch by table. For a reduction with records: the number of its topic's offsets."""
        reads = {part.topic for part in batch.ranges if part.last_record is not None}
        return {
            name: sum(part.end - part.start for part in batch.ranges if part.topic == target.reads)
            if target.reduced
            else staged.counts.get(name, 0)
            for name, target in self._stage.targets.items()
            if not target.reduced or target.reads in reads
        }

    def _sift(self, batch: BatchRange, rows: BatchRows) -> None:
        """Write the rows accepted by PostgreSQL, and reject the refused rows."""
        reduced = any(target.reduced for target in self._stage.targets.values())
        left = [batch]
        while left:
            part = left.pop()
            if reduced and part.offsets > REDUCED_OFFSETS:
                left += reversed(part.halves())
                continue
            try:
                self._sift_part(part, rows.within(part.spans, part.offsets))
            except Overlap as overlap:
                rest = remaining(part, overlap.start_offsets)
                left += [rest] if rest.ranges else []

    def _sift_part(self, batch: BatchRange, rows: BatchRows) -> None:
        sifted = Sifted(batch.sink, self._stage, rows, self._stage.targets, self._topics, self._bound)
        topic_identity.same_topics(self._topics, self._ids)  # Spark may have read the rows from Kafka again
        self._refuse_written(sifted)
        batch = _with_last_records(batch, sifted)
        # `Sifted` merges all rows of the batch without trimming. `reduced` therefore makes an overlap raise, and `_sift` stages
        # the remaining records again.
        targets = {name: replace(target, reduced=True) for name, target in self._stage.targets.items()}
        if self._enter(batch, sifted, targets):
            self._merged(sifted.written)
            self._bound.landed(sifted.counted, sifted.refused)
            self._say_set_aside(batch, sifted.rejected, sifted.reason)

    def _refuse_written(self, staged: Staged) -> None:
        if not self._plan.unknown_contracts:
            known_schemas.refuse_written(self._plan.domain, staged.set_aside(), self._topics)

    def _say_set_aside(self, batch: BatchRange, rows: int, reason: str = "") -> None:
        if not rows:
            return
        self._plan.telemetry.add(SET_ASIDE, rows, domain=batch.sink)
        what = "1 output record" if rows == 1 else f"{rows:,} output records"
        why = f", the first one because of: {reason}" if reason else ", each with its reason"
        log.warning(f"{batch.sink}: rejected {what} to onefold.rejected{why}")

    def _prune(self, batch: BatchRange) -> None:
        self._noted += len(batch.ranges)
        if self._noted >= batch_history.PRUNED_AFTER:
            self._noted = 0
            batch_history.prune(self._connection, batch.sink)

    def _enter(self, batch: BatchRange, staged: Staged, targets: Mapping[str, Target]) -> bool:
        """Write the batch, with one retry after a transient failure. False: the batch was written before.

        After a deadlock or a lock timeout, a retry usually succeeds, and a restart of the query would take seconds. The retry's
        compare-and-swap detects a commit of the first attempt.
        """
        step = self._step
        try:
            return land(self._connection, batch, staged, targets, step, self._merged)
        except Exception as error:
            if not _may_pass(error) or self._connection.closed:
                raise
            log.warning(f"{batch.sink}: {sentence(error)}; writing the batch again")
            self._plan.telemetry.add(RETRIES, domain=batch.sink)
            return land(self._connection, batch, staged, targets, step, self._merged)

    def _full(self, batch: BatchRange) -> bool:
        """Whether the batch has the maximum size. Spark rounds the number of offsets down in each partition."""
        return batch.offsets + len(batch.ranges) >= self._plan.max_offsets


def remaining(batch: BatchRange, start_offsets: dict[Partition, int]) -> BatchRange:
    """Return the part of `batch` at and above the start offsets."""
    ranges = [
        replace(part, start=max(part.start, start_offsets[part.key]), last_record=None, contents=None)
        for part in batch.ranges
    ]
    return replace(batch, ranges=tuple(part for part in ranges if part.start < part.end))


def _may_pass(error: Exception) -> bool:
    """Whether a retry of the same rows may succeed. Errors of the sink itself, and errors caused by a row, are permanent."""
    return not isinstance(error, CodedError) and not (isinstance(error, psycopg.Error) and blames_a_row(error))


def _with_last_records(batch: BatchRange, staged: Staged) -> BatchRange:
    """Return `batch` with the last record and the contents of each partition.

    Raises:
        Rewind: a record lies outside the batch's ranges.
    """
    known = [replace(part, contents=staged.contents.get(part.key)) for part in batch.ranges]
    ranges = tuple(replace(part, last_record=staged.last_records.get(part.key)) for part in known)
    inside = [
        part for part in ranges if part.last_record is not None and part.start <= part.last_record.offset < part.end
    ]
    if len(inside) != len(staged.last_records):
        raise Rewind(
            Code.CHECKPOINT_LOST, "the rows of a batch lie outside of the offsets that Spark's checkpoint gives it"
        )
    return replace(batch, ranges=ranges)
