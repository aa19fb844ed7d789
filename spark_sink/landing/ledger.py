"""Where the truth lives: one row per (sink, topic, partition) that says which offset comes next.

A batch covers exact ranges [start, end). It may only be applied where it *continues* what is stored; "newer than the
last" would jump over holes. So in one transaction: lock the rows, in order; read what is stored; swap.
"""

from dataclasses import dataclass, replace

from onefold.error_codes import Code
from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.postgres.connection import Connection

Partition = tuple[str, int]
#: Where it is, for who moves all of it at once.
TABLE = "onefold.ledger"


@dataclass(frozen=True)
class LastRecord:
    """A record by which a partition can be recognised: its offset and the CRC of its key, value and timestamp."""

    offset: int
    fingerprint: int


@dataclass(frozen=True, order=True)
class Contents:
    """What is known of the records of a part of a batch: how many they are, and Kafka's timestamp of the oldest, in milliseconds
    since 1970. None: not known.
    """

    records: int | None
    oldest_ms: int | None


@dataclass(frozen=True)
class LedgerPosition:
    """What the ledger holds for a partition. `last_record` is None until a record of it has been landed."""

    next_offset: int
    topic_id: str
    last_record: LastRecord | None


@dataclass(frozen=True, order=True)
class OffsetRange:
    """One partition's part of a batch: the offsets [start, end), and its last record when there is one.

    It may hold no record at all: transaction markers and aborted records take offsets too. `contents`: None when no record of it
    is staged.
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
    """What one micro-batch of a sink covers."""

    sink: str
    writer: str
    ranges: tuple[OffsetRange, ...]

    @property
    def offsets(self) -> int:
        """How many offsets it covers: an upper bound of its records, known before any of them is read."""
        return sum(part.end - part.start for part in self.ranges)

    @property
    def spans(self) -> dict[Partition, range]:
        """The offsets of each partition."""
        return {part.key: range(part.start, part.end) for part in self.ranges}

    def halves(self) -> tuple["BatchRange", "BatchRange"]:
        """The earlier offsets of each partition, and the later ones. Of partitions with one offset every other is in the first.

        Of more than one offset no half is the whole.
        """
        first, second = list[OffsetRange](), list[OffsetRange]()
        for number, part in enumerate(self.ranges):
            middle = (part.start + part.end + number % 2) // 2
            first.append(replace(part, end=middle, last_record=None, contents=None))
            second.append(replace(part, start=middle))
        halves = [tuple(part for part in parts if part.start < part.end) for parts in (first, second)]
        return replace(self, ranges=halves[0]), replace(self, ranges=halves[1])


def positions(connection: Connection, sink: str) -> dict[Partition, LedgerPosition]:
    """Everything that is stored for `sink`. A hint for where to read; only `advance` decides."""
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
    """Does the ledger already hold all of `batch`? Only a reason to skip the reading, never to write anything."""
    stored = positions(connection, batch.sink)
    return all(part.key in stored and stored[part.key].next_offset >= part.end for part in batch.ranges)


def open_partition(connection: Connection, sink: str, key: Partition, start: int, topic_id: str, writer: str) -> None:
    """A row for a partition that is new, unless another sink has made it already."""
    connection.execute(
        "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)"
        " VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp()) ON CONFLICT DO NOTHING",
        (sink, *key, start, topic_id, writer),
    )


def hold(connection: Connection, sink: str) -> None:
    """Keep all positions of `sink` where they are until the end of the caller's transaction: who lands waits for it."""
    # In the order in which a batch takes them.
    connection.execute("SELECT FROM onefold.ledger WHERE sink = %s ORDER BY topic, partition FOR UPDATE", (sink,))


def forget(connection: Connection, sink: str) -> None:
    """Forget what `sink` has landed, and could not land, inside the caller's transaction, which empties its tables."""
    # Until the commit no sink moves a position, or makes one.
    connection.execute("LOCK TABLE onefold.ledger IN SHARE ROW EXCLUSIVE MODE")
    connection.execute("DELETE FROM onefold.ledger WHERE sink = %s", (sink,))
    connection.execute("DELETE FROM onefold.rejected WHERE sink = %s", (sink,))
    # A sink of before did not make this one.
    if connection.execute("SELECT to_regclass('onefold.batch')").fetchone() != (None,):
        connection.execute("DELETE FROM onefold.batch WHERE sink = %s", (sink,))


def advance(connection: Connection, batch: BatchRange) -> dict[Partition, int] | None:
    """The contiguous compare-and-swap of every partition of `batch`, inside the caller's transaction.

    Returns:
        The start offsets: the offset per partition from which on the batch's records are new. Records below it were
        landed by another sink and must be left out. None: all of it was landed already.

    Raises:
        Rewind: the batch does not continue what is stored.
    """
    stored = _lock(connection, batch)
    fresh = [part for part in batch.ranges if _continues(part, stored) and stored[part.key][0] < part.end]
    if not fresh:
        return None
    _swap(connection, batch, fresh, {part.key: stored[part.key][0] for part in fresh})
    return {part.key: stored[part.key][0] for part in batch.ranges}


def overlaps(batch: BatchRange, start_offsets: dict[Partition, int]) -> bool:
    """Was a part of `batch` landed before?"""
    return any(start_offsets[part.key] > part.start for part in batch.ranges)


def _lock(connection: Connection, batch: BatchRange) -> dict[Partition, tuple[int, str]]:
    """Lock the rows in one order for all sinks, so that two of them queue up instead of deadlocking, and read them.

    A sink that waited here sees what the other one committed: this is the moment at which a race is decided.
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
    """UPDATE ... WHERE next_offset = what was stored: exactly one row for each range, or the transaction fails."""
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
