"""What was landed when, and by whom: a row for each partition of a batch, in `onefold.batch`.

For people who ask where a row came from, and for the page. The protocol never reads it: what has been landed is in the ledger.
"""

from collections.abc import Mapping

import psycopg
import structlog

from onefold.spark_sink.errors import sentence
from onefold.spark_sink.landing.ledger import BatchRange, Contents, LedgerPosition, OffsetRange, Partition
from onefold.spark_sink.postgres.connection import Connection

log = structlog.get_logger()

#: So many rows of a sink are kept, the newest. By number and not by age: a busy pipeline of many partitions writes some tens of
#: them a second, and a day of that would be a gigabyte; these take about 170 MB, and of a quiet pipeline they are years.
KEPT = 500_000
#: After so many new ones the oldest are deleted. To find out which they are takes a tenth of a second where there are as many as
#: are kept.
PRUNED_AFTER = 5_000
# Deleted at once; more than come in between, so that what is too much becomes less.
_PRUNED_MAX = 4 * PRUNED_AFTER

#: Who has landed what a rebuild brings along.
REBUILD = "onefold rebuild"

# Once more from an offset where there was a batch before: somebody has set the ledger back.
_ADD = """
INSERT INTO onefold.batch
    (sink, topic, partition, topic_id, first_offset, next_offset, records, oldest_ms, writer, landed_at)
SELECT %s, s.*, %s, clock_timestamp()
FROM unnest(%s::text[], %s::integer[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) AS s
ON CONFLICT (sink, topic, partition, topic_id, first_offset) DO UPDATE SET next_offset = excluded.next_offset,
    records = excluded.records, oldest_ms = excluded.oldest_ms, writer = excluded.writer, landed_at = excluded.landed_at
"""
# Of a topic that was made anew all of it is new.
_ADD_REBUILT = """
INSERT INTO onefold.batch (sink, topic, partition, topic_id, first_offset, next_offset, writer, landed_at)
SELECT sink, topic, partition, topic_id, coalesce(stood.until, 0), next_offset, %(writer)s, clock_timestamp()
FROM onefold.ledger
LEFT JOIN unnest(%(topics)s::text[], %(partitions)s::integer[], %(ids)s::text[], %(offsets)s::bigint[])
    AS stood (topic, partition, topic_id, until) USING (topic, partition, topic_id)
WHERE sink = %(sink)s AND next_offset > coalesce(stood.until, 0)
ON CONFLICT DO NOTHING
"""
# Who lands beside may do the same at the same time: neither waits for the other.
_PRUNE = """
DELETE FROM onefold.batch WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM onefold.batch
    WHERE sink = %(sink)s AND landed_at <= (
        SELECT landed_at FROM onefold.batch WHERE sink = %(sink)s ORDER BY landed_at DESC OFFSET %(kept)s LIMIT 1)
    ORDER BY landed_at LIMIT %(most)s FOR UPDATE SKIP LOCKED))
"""


def add(connection: Connection, batch: BatchRange, start_offsets: Mapping[Partition, int]) -> None:
    """Note what is being landed, inside the transaction that lands it.

    Args:
        start_offsets: as `ledger.advance` gave them.
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
    """Note what a rebuild brings along, inside the transaction in which it has moved the positions from those of `before`: for
    whoever reads the tables all of that lands at once.
    """
    if connection.execute("SELECT to_regclass('onefold.batch')").fetchone() == (None,):
        return  # no sink of this version was here yet
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
    """Delete the oldest rows of `sink` but those `kept`, in a transaction of its own, and at `most` so many. That nobody needs
    them is no reason to stop landing.
    """
    try:
        connection.execute(_PRUNE, {"sink": sink, "kept": kept, "most": most})
    except psycopg.Error as error:
        if connection.closed:
            return  # which the next batch says
        log.warning(f"{sink}: old rows of onefold.batch were not deleted: {sentence(error)}")


def _told(part: OffsetRange, start: int) -> Contents:
    """What is known of the records that are new. Of a part that another sink has landed before, they were not told apart."""
    assert part.contents is not None, "partitions without a record are left out"
    return part.contents if start <= part.start else Contents(None, None)
