"""The ledger with the sink's positions: one row per (sink, topic, partition) with the next offset.

A batch covers exact ranges [start, end). The ledger only accepts a batch that *continues* the stored positions, because a batch
that is only newer may skip records. One transaction locks the rows in order, reads the positions, and swaps them.
"""

from dataclasses import dataclass, replace

from onefold.error_codes import Code
from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.postgres.connection import Connection

Partition = tuple[str, int]
#: The name of the ledger's table, for commands that change all positions at once.
TABLE = "onefold.ledger"


@dataclass(frozen=True)
class LastRecord:
    """A record that identifies a partition's log: the offset, and the CRC of the key, value and timestamp."""

    offset: int
    fingerprint: int


@dataclass(frozen=True, order=True)
class Contents:
    """The number of records in a range, and the oldest record's timestamp, in milliseconds since 1970. None: unknown."""

    records: int | None
    oldest_ms: int | None


@dataclass(frozen=True)
class LedgerPosition:
    """The ledger's row of a partition. `last_record` is None until the sink has written a record of the partition."""

    next_offset: int
    topic_id: str
    last_record: LastRecord | None


@dataclass(frozen=True, order=True)
class OffsetRange:
    """One partition's part of a batch: the offsets [start, end), and the last record, if any.

    A range may have no record, because transaction markers and aborted records also take offsets. `contents`: None if no record
    of the range is staged.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str
    last_record: LastRecord | None = None
    contents: Contents | None = None

    @property
    def key(self) -> Partition:
        """The partition."""
        return self.topic, self.partition


@dataclass(frozen=True)
class BatchRange:
    """The offset ranges of one micro-batch of a sink."""

    sink: str
    writer: str
    ranges: tuple[OffsetRange, ...]

    @property
    def offsets(self) -> int:
        """The number of offsets, an upper bound of the number of records, known before reading."""
        return sum(part.end - part.start for part in self.ranges)

    @property
    def spans(self) -> dict[Partition, range]:
        """The offsets of each partition."""
        return {part.key: range(part.start, part.end) for part in self.ranges}

    def halves(self) -> tuple["BatchRange", "BatchRange"]:
        """Split the batch into the earlier and the later offsets of each partition.

        Every second partition with one offset goes to the first half. Neither half of a batch with at least two offsets is the
        whole batch.
        """
        first, second = list[OffsetRange](), list[OffsetRange]()
        for number, part in enumerate(self.ranges):
            middle = (part.start + part.end + number % 2) // 2
            first.append(replace(part, end=middle, last_record=None, contents=None))
            second.append(replace(part, start=middle))
        halves = [tuple(part for part in parts if part.start < part.end) for parts in (first, second)]
        return replace(self, ranges=halves[0]), replace(self, ranges=halves[1])


def positions(connection: Connection, sink: str) -> dict[Partition, LedgerPosition]:
    """The stored positions of `sink`, as a hint where to read. Only `advance` decides about a write."""
    rows = connection.execute(
        "SELECT topic, partition, next_offset, topic_id, last_offset, last_fingerprint FROM onefold.ledger WHERE sink = %s",
        (sink,),
    ).fetchall()
    return {
        (topic, partition): LedgerPosition(
            next_offset, topic_id, None if offset is None else LastRecord(offset, fingerprint)
        )
        for topic, partition, next_offset, topic_id, offset, fingerprint in rows
    }


def landed(connection: Connection, batch: BatchRange) -> bool:
    """Whether all of `batch` is already written. A reason to skip reading, never a reason to write."""
    stored = positions(connection, batch.sink)
    return all(part.key in stored and stored[part.key].next_offset >= part.end for part in batch.ranges)


def open_partition(connection: Connection, sink: str, key: Partition, start: int, topic_id: str, writer: str) -> None:
    """Insert a row for a new partition, unless another sink has already inserted the row."""
    connection.execute(
        "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp()) ON CONFLICT DO NOTHING",
        (sink, *key, start, topic_id, writer),
    )


def hold(connection: Connection, sink: str) -> None:
    """Lock all positions of `sink` until the end of the caller's transaction. Writing sinks wait for the end."""
    # In the lock order of a batch.
    connection.execute("SELECT FROM onefold.ledger WHERE sink = %s ORDER BY topic, partition FOR UPDATE", (sink,))


def forget(connection: Connection, sink: str) -> None:
    """Delete the positions, rejected records and history of `sink`, in the caller's transaction, which empties the tables."""
    # Until the commit, no sink changes or inserts a position.
    connection.execute("LOCK TABLE onefold.ledger IN SHARE ROW EXCLUSIVE MODE")
    connection.execute("DELETE FROM onefold.ledger WHERE sink = %s", (sink,))
    connection.execute("DELETE FROM onefold.rejected WHERE sink = %s", (sink,))
    # An earlier version has not created this table.
    if connection.execute("SELECT to_regclass('onefold.batch')").fetchone() != (None,):
        connection.execute("DELETE FROM onefold.batch WHERE sink = %s", (sink,))


def advance(connection: Connection, batch: BatchRange) -> dict[Partition, int] | None:
    """The contiguous compare-and-swap of every partition of `batch`, inside the caller's transaction.

    Returns:
        The start offsets: per partition, the offset of the first new record. Another sink has written the records below, and
        the caller must leave them out. None: the whole batch is already written.

    Raises:
        Rewind: the batch does not continue the stored positions.
    """
    stored = _lock(connection, batch)
    fresh = [part for part in batch.ranges if _continues(part, stored) and stored[part.key][0] < part.end]
    if not fresh:
        return None
    _swap(connection, batch, fresh, {part.key: stored[part.key][0] for part in fresh})
    return {part.key: stored[part.key][0] for part in batch.ranges}


def overlaps(batch: BatchRange, start_offsets: dict[Partition, int]) -> bool:
    """Whether a part of `batch` was written before."""
    return any(start_offsets[part.key] > part.start for part in batch.ranges)


def _lock(connection: Connection, batch: BatchRange) -> dict[Partition, tuple[int, str]]:
    """Lock and read the rows, in the same order in all sinks to avoid deadlocks.

    After a wait, a sink reads the positions committed by the other sink. The lock thus decides a race between two sinks.
    """
    rows = connection.execute(
        "SELECT topic, partition, next_offset, topic_id FROM onefold.ledger"
        " WHERE sink = %s AND (topic, partition) IN (SELECT * FROM unnest(%s::text[], %s::integer[]))"
        " ORDER BY topic, partition FOR UPDATE",
        (batch.sink, [part.topic for part in batch.ranges], [part.partition for part in batch.ranges]),
    ).fetchall()
    return {(topic, partition): (next_offset, topic_id) for topic, partition, next_offset, topic_id in rows}


def _continues(part: OffsetRange, stored: dict[Partition, tuple[int, str]]) -> bool:
    if part.key not in stored:
        raise Rewind(Code.POSITIONS_MOVED, f"Postgres holds no position for {part.topic}/{part.partition}")
    next_offset, topic_id = stored[part.key]
    if topic_id != part.topic_id:
        raise Rewind(
            Code.POSITIONS_MOVED,
            f"{part.topic}/{part.partition} was read from topic id {part.topic_id}, Postgres holds {topic_id}",
        )
    if next_offset < part.start:
        raise Rewind(
            Code.POSITIONS_MOVED,
            f"the batch of {part.topic}/{part.partition} starts at {part.start}, "
            f"Postgres needs {next_offset} next: going back to it",
        )
    return True


def _swap(
    connection: Connection, batch: BatchRange, ranges: list[OffsetRange], start_offsets: dict[Partition, int]
) -> None:
    """UPDATE ... WHERE next_offset = the position read before. The transaction fails unless each range updates one row."""
    last_records = [
        part.last_record if part.last_record and part.last_record.offset >= start_offsets[part.key] else None
        for part in ranges
    ]
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
            [part.topic for part in ranges],
            [part.partition for part in ranges],
            [start_offsets[part.key] for part in ranges],
            [part.end for part in ranges],
            [part.topic_id for part in ranges],
            [last.offset if last else None for last in last_records],
            [last.fingerprint if last else None for last in last_records],
            batch.sink,
        ),
    ).rowcount
    if swapped != len(ranges):
        raise Rewind(
            Code.POSITIONS_MOVED,
            f"{swapped} of {len(ranges)} positions could be moved: the ledger changed under a lock",
        )
