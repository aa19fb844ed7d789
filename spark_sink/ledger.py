"""Where the truth lives: one row per (sink, topic, partition) that says which offset comes next.

A batch covers exact ranges [start, end). It may only be applied where it *continues* what is stored; "newer than the
last" would jump over holes. So in one transaction: lock the rows, in order; look at what is stored; swap.
"""

from dataclasses import dataclass

from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.postgres import Connection

Partition = tuple[str, int]


@dataclass(frozen=True)
class Last:
    """A record by which a partition can be recognised: its offset and the CRC of its key, value and timestamp."""

    offset: int
    fingerprint: int


@dataclass(frozen=True)
class Position:
    """What the ledger holds for a partition. `last` is None until a record of it has been landed."""

    next_offset: int
    topic_id: str
    last: Last | None


@dataclass(frozen=True, order=True)
class Span:
    """One partition's part of a batch: the offsets [start, end), and its last record when there is one.

    A span may hold no record at all: transaction markers and aborted records take offsets too.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str
    last: Last | None = None

    @property
    def key(self) -> Partition:
        """The partition."""
        return self.topic, self.partition


@dataclass(frozen=True)
class Batch:
    """What one micro-batch of a sink covers."""

    sink: str
    writer: str
    spans: tuple[Span, ...]

    @property
    def offsets(self) -> int:
        """How many offsets it covers: an upper bound of its records, known before any of them is read."""
        return sum(span.end - span.start for span in self.spans)


def positions(connection: Connection, sink: str) -> dict[Partition, Position]:
    """Everything that is stored for `sink`. A hint for where to read; only `advance` decides."""
    rows = connection.execute(
        "SELECT topic, partition, next_offset, topic_id, last_offset, last_fingerprint FROM onefold.ledger"
        " WHERE sink = %s",
        (sink,),
    ).fetchall()
    return {
        (topic, partition): Position(next_offset, topic_id, None if last is None else Last(last, mark))
        for topic, partition, next_offset, topic_id, last, mark in rows
    }


def landed(connection: Connection, batch: Batch) -> bool:
    """Does the ledger already hold all of `batch`? Only a reason to skip the reading, never to write anything."""
    stored = positions(connection, batch.sink)
    return all(span.key in stored and stored[span.key].next_offset >= span.end for span in batch.spans)


def open_partition(connection: Connection, sink: str, key: Partition, start: int, topic_id: str, writer: str) -> None:
    """A row for a partition that is new, unless another sink was faster."""
    connection.execute(
        "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp()) ON CONFLICT DO NOTHING",
        (sink, *key, start, topic_id, writer),
    )


def advance(connection: Connection, batch: Batch) -> dict[Partition, int] | None:
    """The contiguous compare-and-swap of every partition of `batch`, inside the caller's transaction.

    Returns the floors: the offset per partition from which on the batch's records are new. Records below it were
    landed by somebody else and must be left out. None: all of it was landed already. Raises Rewind when the batch
    does not continue what is stored.
    """
    stored = _lock(connection, batch)
    fresh = [span for span in batch.spans if _continues(span, stored) and stored[span.key][0] < span.end]
    if not fresh:
        return None
    _swap(connection, batch, fresh, {span.key: stored[span.key][0] for span in fresh})
    return {span.key: stored[span.key][0] for span in batch.spans}


def overlaps(batch: Batch, floors: dict[Partition, int]) -> bool:
    """Was a part of `batch` landed before?"""
    return any(floors[span.key] > span.start for span in batch.spans)


def _lock(connection: Connection, batch: Batch) -> dict[Partition, tuple[int, str]]:
    """Lock the rows in one order for all sinks, so that two of them queue up instead of deadlocking, and read them.

    A sink that waited here sees what the other one committed: this is the moment at which a race is decided.
    """
    rows = connection.execute(
        "SELECT topic, partition, next_offset, topic_id FROM onefold.ledger"
        " WHERE sink = %s AND (topic, partition) IN (SELECT * FROM unnest(%s::text[], %s::integer[]))"
        " ORDER BY topic, partition FOR UPDATE",
        (batch.sink, [span.topic for span in batch.spans], [span.partition for span in batch.spans]),
    ).fetchall()
    return {(topic, partition): (next_offset, topic_id) for topic, partition, next_offset, topic_id in rows}


def _continues(span: Span, stored: dict[Partition, tuple[int, str]]) -> bool:
    if span.key not in stored:
        raise Rewind(f"Postgres holds no position for {span.topic}/{span.partition}")
    next_offset, topic_id = stored[span.key]
    if topic_id != span.topic_id:
        raise Rewind(f"{span.topic}/{span.partition} was read from topic id {span.topic_id}, Postgres holds {topic_id}")
    if next_offset < span.start:
        raise Rewind(
            f"the batch of {span.topic}/{span.partition} starts at {span.start}, "
            f"Postgres needs {next_offset} next: going back to it"
        )
    return True


def _swap(connection: Connection, batch: Batch, spans: list[Span], floors: dict[Partition, int]) -> None:
    """UPDATE ... WHERE next_offset = what was stored: exactly one row for each span, or the transaction fails."""
    lasts = [span.last if span.last and span.last.offset >= floors[span.key] else None for span in spans]
    swapped = connection.execute(
        "UPDATE onefold.ledger AS l SET next_offset = s.until, writer = %s, updated_at = clock_timestamp(),"
        " last_offset = coalesce(s.last_offset, l.last_offset),"
        " last_fingerprint = coalesce(s.last_fingerprint, l.last_fingerprint)"
        " FROM unnest(%s::text[], %s::integer[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[])"
        " AS s(topic, partition, since, until, topic_id, last_offset, last_fingerprint)"
        " WHERE l.sink = %s AND l.topic = s.topic AND l.partition = s.partition"
        " AND l.next_offset = s.since AND l.topic_id = s.topic_id",
        (
            batch.writer,
            [span.topic for span in spans],
            [span.partition for span in spans],
            [floors[span.key] for span in spans],
            [span.end for span in spans],
            [span.topic_id for span in spans],
            [last.offset if last else None for last in lasts],
            [last.fingerprint if last else None for last in lasts],
            batch.sink,
        ),
    ).rowcount
    if swapped != len(spans):
        raise Rewind(f"{swapped} of {len(spans)} positions could be moved: the ledger changed under a lock")
