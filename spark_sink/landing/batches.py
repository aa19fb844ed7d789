"""What happens to one micro-batch: which offsets it covers, into which parts it is cut, and that each of them lands.

Spark's thread reads the rows of a part; the lander's thread lands it, while Spark reads the next part, or plans and reads the
next batch (docs/decisions/batches-and-limits.md).
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
from onefold.spark_sink.landing import identity, known_contracts, landed_batches, ledger
from onefold.spark_sink.landing.isolate import REDUCED_OFFSETS, Bound, Sifted
from onefold.spark_sink.landing.land import land
from onefold.spark_sink.landing.lander import Lander
from onefold.spark_sink.landing.ledger import Batch, OffsetRange, Partition
from onefold.spark_sink.landing.protocols import Rows, Scheduler, Topics
from onefold.spark_sink.landing.stage import Stage, Staged
from onefold.spark_sink.landing.stages import Stages
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.postgres.connection import Connection
from onefold.telemetry import BATCH_S, BATCHES, OFFSETS, RETRIES, ROWS, SET_ASIDE

log = structlog.get_logger()

# The next batch is read while one of at most this many offsets is landed. Behind a larger one there is a backlog, and what
# has arrived by the time it has landed makes the next one larger still: a row costs less then. Behind one that is as large
# as a batch may be there is no larger one, and the next is read meanwhile as well.
AHEAD_OFFSETS = 25_000

# Of the largest record that an output topic takes, as processors make it.
_RECORD_BYTES = 10_485_760


class Batches:
    """Receives the micro-batches of one query, from its start to its end."""

    def __init__(
        self,
        plan: Plan,
        connection: Connection,
        reader: Connection,
        topics: Topics,
        stage: Stage,
        start: dict[Partition, int],
        ids: dict[str, str],
        ends: Callable[[int], dict[Partition, int]],
        scheduler: Scheduler,
        bound: Bound | None = None,
    ) -> None:
        """Begin at the offsets `start` of the topics with these `ids`.

        `connection` lands; beside it `reader` reads the ledger. `ends` gives the end offsets of a batch by its id.
        `bound`: how many rows may still be set aside.
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
        self._bytes_per_offset: float = _RECORD_BYTES  # of the lines that were read last, and were not few
        self._noted = landed_batches.PRUNED_AFTER  # after the first batch, too: many a sink never gets far
        self.landed = 0

    @property
    def reached(self) -> dict[Partition, int]:
        """The offset per partition up to which everything has landed, as far as this query knows."""
        return self._reached

    @property
    def failure(self) -> BaseException | None:
        """Why no further batch will land; None while they do."""
        return self._lander.failure or self._failure

    def close(self) -> None:
        """Wait for the batch that is being landed. No other comes after it."""
        self._lander.close()

    def on_batch(self, rows: Rows, batch_id: int) -> None:
        """Called by Spark, in a thread of its own. An exception ends the query."""
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
        except BaseException as error:  # noqa: BLE001 - kept for the query; even an exit must not pass unanswered
            # What was read before is worth landing. What that fails with the lander keeps.
            with suppress(BaseException):
                self._lander.finish()
            self._failure = error
            # To Spark a plain and short one, whatever it was. Of a BaseException it would never hear, and wait for
            # ever; a long text overflows the stack of a regular expression that it reads errors with.
            raise RuntimeError("the batch was not written") from None

    def _cover(self, ends: dict[Partition, int]) -> Batch:
        """The exact ranges: from where the batch before ended to where Spark says that this one ends."""
        # A partition added while we run has no row in the ledger: landing it fails, and the next start opens one.
        ranges = [
            OffsetRange(*key, self._next.get(key, 0), end, self._ids[key[0]]) for key, end in sorted(ends.items())
        ]
        if any(part.end < part.start for part in ranges):
            raise Rewind(Code.CHECKPOINT_LOST, "Spark's checkpoint goes back behind the batch before")
        covered = tuple(part for part in ranges if part.start < part.end)
        return Batch(self._plan.domain.name, self._plan.writer, covered)

    def _read_and_hand_over(self, batch: Batch, rows: Rows, began_at: float) -> None:
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
        # Of a few records, or of markers alone, nothing can be said about the next batch.
        if largest and batch.offsets * _RECORD_BYTES > self._plan.line_bytes_max:
            self._bytes_per_offset = largest

    def _in_parts(self, batch: Batch, rows: Rows) -> list[Batch]:
        """Cut the batch until the lines of each part are few enough, or the part has one offset."""
        if batch.offsets == 1 or rows.bytes() <= self._plan.line_bytes_max:
            return [batch]
        return [part for half in batch.halves() for part in self._in_parts(half, rows.within(half.spans, half.offsets))]

    def _land_part(self, part: Batch, rows: Rows, staged: Staged, began_at: float, kept: ExitStack | None) -> None:
        """`kept`: what the last part of a batch lets go of."""
        with kept or nullcontext():
            self._land_all(part, rows, staged)
        self._count(part, began_at)
        if kept:
            self._bound.end_batch()

    def _leave_to_another(self, batch: Batch, began_at: float) -> None:
        """A concurrent sink has landed the batch."""
        self._count(batch, began_at)
        self._bound.end_batch()

    def _count(self, batch: Batch, began_at: float) -> None:
        self._reached = self._reached | {part.key: part.end for part in batch.ranges}
        self.landed += batch.offsets
        tell, domain = self._plan.telemetry, self._plan.domain.name
        tell.add(BATCHES, domain=domain)
        tell.add(OFFSETS, batch.offsets, domain=domain)
        tell.took(BATCH_S, self._plan.clock() - began_at, domain=domain)

    def _merged(self, rows: int) -> None:
        self._plan.telemetry.add(ROWS, rows, domain=self._plan.domain.name)

    def _land_all(self, batch: Batch, rows: Rows, staged: Staged) -> None:
        """As often as a concurrent sink lands a part of it first; each time there is less left."""
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

    def _land(self, batch: Batch, rows: Rows, staged: Staged) -> None:
        identity.same_topics(self._topics, self._ids)
        known_contracts.refuse_newer(self._connection, self._plan.domain)
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

    def _rows_of(self, batch: Batch, staged: Staged) -> dict[str, int]:
        """How many rows each table has in the batch; of a reduction whose topic has a record there, how many offsets that has."""
        reads = {part.topic for part in batch.ranges if part.last_record is not None}
        return {
            name: sum(part.end - part.start for part in batch.ranges if part.topic == target.reads)
            if target.reduced
            else staged.counts.get(name, 0)
            for name, target in self._stage.targets.items()
            if not target.reduced or target.reads in reads
        }

    def _sift(self, batch: Batch, rows: Rows) -> None:
        """Land what PostgreSQL does not refuse."""
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

    def _sift_part(self, batch: Batch, rows: Rows) -> None:
        sifted = Sifted(batch.sink, self._stage, rows, self._stage.targets, self._topics, self._bound)
        identity.same_topics(self._topics, self._ids)  # once more: these rows may have been read from Kafka again
        self._refuse_written(sifted)
        batch = _with_last_records(batch, sifted)
        # It merges rows by itself, and only those of the whole batch: where a part of it has landed, what is left is staged anew.
        targets = {name: replace(target, reduced=True) for name, target in self._stage.targets.items()}
        if self._enter(batch, sifted, targets):
            self._merged(sifted.written)
            self._bound.landed(sifted.counted, sifted.refused)
            self._say_set_aside(batch, sifted.rejected, sifted.reason)

    def _refuse_written(self, staged: Staged) -> None:
        if not self._plan.unknown_contracts:
            known_contracts.refuse_written(self._plan.domain, staged.set_aside(), self._topics)

    def _say_set_aside(self, batch: Batch, rows: int, reason: str = "") -> None:
        if not rows:
            return
        self._plan.telemetry.add(SET_ASIDE, rows, domain=batch.sink)
        what = "1 output record" if rows == 1 else f"{rows:,} output records"
        why = f", the first one because of: {reason}" if reason else ", each with its reason"
        log.warning(f"{batch.sink}: rejected {what} to onefold.rejected{why}")

    def _prune(self, batch: Batch) -> None:
        self._noted += len(batch.ranges)
        if self._noted >= landed_batches.PRUNED_AFTER:
            self._noted = 0
            landed_batches.prune(self._connection, batch.sink)

    def _enter(self, batch: Batch, staged: Staged, targets: Mapping[str, Target]) -> bool:
        """Land it, and once more when only the transaction failed: what is staged is still there. False: it had landed before.

        Of a deadlock or a lock that was held for too long nothing is left when it is tried again, and starting the query
        anew costs seconds. Whatever happened at the first try, the compare-and-swap finds out at the second.
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

    def _full(self, batch: Batch) -> bool:
        """Is it as large as a batch may be? Spark rounds down in each partition."""
        return batch.offsets + len(batch.ranges) >= self._plan.max_offsets


def remaining(batch: Batch, start_offsets: dict[Partition, int]) -> Batch:
    """The part of `batch` at and above the start offsets."""
    ranges = [
        replace(part, start=max(part.start, start_offsets[part.key]), last_record=None, contents=None)
        for part in batch.ranges
    ]
    return replace(batch, ranges=tuple(part for part in ranges if part.start < part.end))


def _may_pass(error: Exception) -> bool:
    """Can the same rows land when nothing but time has passed? What we say ourselves, and what is a row's fault, stays."""
    return not isinstance(error, CodedError) and not (isinstance(error, psycopg.Error) and blames_a_row(error))


def _with_last_records(batch: Batch, staged: Staged) -> Batch:
    """`batch` with the last record of each partition, and what else is known of its records. Raises Rewind when one lies outside
    the batch's ranges.
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
