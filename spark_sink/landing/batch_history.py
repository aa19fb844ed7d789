"""The history of batches in `onefold.batch`: a row for each partition of a batch, with the writer and the time.

For people who search the origin of a row, and for the dashboard. The write protocol only reads the ledger, never the history.
"""

from collections.abc import Mapping

import psycopg
import structlog

from onefold.spark_sink.errors import sentence
from onefold.spark_sink.landing.ledger import BatchRange, Contents, LedgerPosition, OffsetRange, Partition
from onefold.spark_sink.postgres.connection import Connection

log = structlog.get_logger()

#: The number of newest rows kept per sink. A limit by age would not bound the size for a busy pipeline of many partitions.
KEPT = 500_000
#: The number of new rows between two deletions of the oldest rows, because the search for the oldest rows is slow.
PRUNED_AFTER = 5_000
# The maximum number of rows per deletion, above PRUNED_AFTER, so that an excess shrinks.
_PRUNED_MAX = 4 * PRUNED_AFTER

#: The writer of rows from a rebuild.
REBUILD = "onefold rebuild"

# A conflict with an earlier batch at the same offset is the consequence of a lowered position in the ledger.
_ADD = """
INSERT INTO onefold.batch
    (sink, topic, partition, topic_id, first_offset, next_offset, records, oldest_ms, writer, landed_at)
SELECT %s, s.*, %s, clock_timestamp()
FROM unnest(%s::text[], %s::integer[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) AS s
ON CONFLICT (sink, topic, partition, topic_id, first_offset) DO UPDATE SET next_offset = excluded.next_offset,
    records = excluded.records, oldest_ms = excluded.oldest_ms, writer = excluded.writer, landed_at = excluded.landed_at
"""
# All offsets of a recreated topic are new.
_ADD_REBUILT = """
INSERT INTO onefold.batch (sink, topic, partition, topic_id, first_offset, next_offset, writer, landed_at)
SELECT sink, topic, partition, topic_id, coalesce(stood.until, 0), next_offset, %(writer)s, clock_timestamp()
FROM onefold.ledger
LEFT JOIN unnest(%(topics)s::text[], %(partitions)s::integer[], %(ids)s::text[], %(offsets)s::bigint[])
    AS stood (topic, partition, topic_id, until) USING (topic, partition, topic_id)
WHERE sink = %(sink)s AND next_offset > coalesce(stood.until, 0)
ON CONFLICT DO NOTHING
"""
# Concurrent sinks may prune at the same time, without waiting for each other.
_PRUNE = """
DELETE FROM onefold.batch WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM onefold.batch
    WHERE sink = %(sink)s AND landed_at <= (
        SELECT landed_at FROM onefold.batch WHERE sink = %(sink)s ORDER BY landed_at DESC OFFSET %(kept)s LIMIT 1)
    ORDER BY landed_at LIMIT %(most)s FOR UPDATE SKIP LOCKED))
"""


def add(connection: Connection, batch: BatchRange, start_offsets: Mapping[Partition, int]) -> None:
    """Insert the batch into the history, inside the batch's transaction.

    Args:
        start_offsets: the result of `ledger.advance`.
    """
    parts = [
        (part, start_offsets[part.key], _told(part, start_offsets[part.key]))
        for part in batch.ranges
        if part.contents is not None and start_offsets[part.key] < part.end
    ]
    if not parts:
        return
    connection.execute(
        _ADD,
        (
            batch.sink,
            batch.writer,
            [part.topic for part, _, _ in parts],
            [part.partition for part, _, _ in parts],
            [part.topic_id for part, _, _ in parts],
            [start for _, start, _ in parts],
            [part.end for part, _, _ in parts],
            [told.records for *_, told in parts],
            [told.oldest_ms for *_, told in parts],
        ),
    )


def add_rebuilt(connection: Connection, sink: str, before: Mapping[Partition, LedgerPosition]) -> None:
    """Insert the new offset ranges of a rebuild into the history, inside the rebuild's transaction.

    Readers of the tables see all rows of the rebuild at once, so each partition has one range.

    Args:
        before: the positions before the rebuild.
    """
    if connection.execute("SELECT to_regclass('onefold.batch')").fetchone() == (None,):
        return  # no sink of this version has used the database
    stood = list(before.items())
    connection.execute(
        _ADD_REBUILT,
        {
            "sink": sink,
            "writer": REBUILD,
            "topics": [topic for (topic, _), _ in stood],
            "partitions": [partition for (_, partition), _ in stood],
            "ids": [at.topic_id for _, at in stood],
            "offsets": [at.next_offset for _, at in stood],
        },
    )


def prune(connection: Connection, sink: str, kept: int = KEPT, most: int = _PRUNED_MAX) -> None:
    """Delete the oldest rows of `sink`, at most `most` rows, and keep the `kept` newest rows.

    The deletion is a separate transaction. An error is only logged, because old rows must not block the writes.
    """
    try:
        connection.execute(_PRUNE, {"sink": sink, "kept": kept, "most": most})
    except psycopg.Error as error:
        if connection.closed:
            return  # the next batch reports the lost connection
        log.warning(f"{sink}: old rows of onefold.batch were not deleted: {sentence(error)}")


def _told(part: OffsetRange, start: int) -> Contents:
    """The contents of the new records. Unknown if another sink has written a part: `contents` is for the whole range."""
    assert part.contents is not None, "partitions without a record are left out"
    return part.contents if start <= part.start else Contents(None, None)
