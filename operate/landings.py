"""Which batch landed a record, as `onefold.batch` has it: of the last some hundred thousand of each pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from onefold.operate.reading import Place

# A database that no sink of this version was at does not have it, and who may see a pipeline's tables need not see this one.
_READABLE = "SELECT has_table_privilege(to_regclass('onefold.batch'), 'SELECT')"
# The batch that begins last before the record; whether it goes that far is looked at afterwards.
_ASKED = """
SELECT wanted.topic, wanted.partition, wanted."offset", b.writer, b.landed_at, b.first_offset, b.next_offset
FROM unnest(%s::text[], %s::integer[], %s::bigint[], %s::text[]) AS wanted (topic, partition, "offset", topic_id)
CROSS JOIN LATERAL (
    SELECT * FROM onefold.batch AS noted
    WHERE noted.sink = %s AND noted.topic = wanted.topic AND noted.partition = wanted.partition
      AND noted.topic_id = wanted.topic_id AND noted.first_offset <= wanted."offset"
    ORDER BY noted.first_offset DESC LIMIT 1
) AS b
WHERE b.next_offset > wanted."offset"
"""


class Landing(NamedTuple):
    """The part of a batch in which a record was: its offsets are [first_offset, next_offset)."""

    writer: str
    at: datetime
    first_offset: int
    next_offset: int


def landings(connection: psycopg.Connection[Any], sink: str, places: Mapping[Place, str]) -> dict[Place, Landing]:
    """Of those records whose batch was noted.

    Args:
        places: of records in what is landed, each with the id of its topic: a topic made anew has other records there.

    Raises:
        psycopg.Error: Postgres does not answer.
    """
    if not places or connection.execute(_READABLE).fetchone() != (True,):
        return {}
    topics, partitions, offsets = zip(*places, strict=True)
    asked = (list(topics), list(partitions), list(offsets), list(places.values()), sink)
    rows = connection.execute(_ASKED, asked).fetchall()
    return {Place(*row[:3]): Landing(*row[3:]) for row in rows}
