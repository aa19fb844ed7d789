"""Batches that the sink recorded in `onefold.batch`: the last day of a pipeline, and the newest batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from psycopg import sql

from onefold.dashboard.panels import PanelReader
from onefold.dashboard.reader import Bounded, Connection

#: Seconds per point of the day's charts. The page is sent each second, so the number of points is small.
SLOT_S = 600
NEWEST_MAX = 20
# A database that no sink of this version has used lacks the table.
_READABLE = "SELECT coalesce(has_table_privilege(to_regclass('onefold.batch'), 'SELECT'), false)"
#: Without a count, the range of offsets is an upper bound of the records.
RECORDS = sql.SQL("coalesce(records, next_offset - first_offset)")
#: Age of the oldest record at the commit. Two clocks may differ by some milliseconds, hence the lower bound 0.
SECONDS = sql.SQL(
    "CASE WHEN oldest_ms > 0 THEN greatest(0, extract(epoch FROM landed_at) - oldest_ms / 1000.0)::double precision END"
)
_NEWEST = sql.SQL("""
SELECT landed_at, topic, partition, first_offset, next_offset, records, {seconds}, writer FROM onefold.batch
WHERE sink = {sink} AND landed_at > now() - make_interval(secs => {span}) ORDER BY landed_at DESC LIMIT {most}
""")
_DAY = sql.SQL("""
SELECT floor(extract(epoch FROM landed_at) / {slot})::bigint AS slot, sum({records})::bigint, max({seconds}),
       floor(extract(epoch FROM now()) / {slot})::bigint
FROM onefold.batch WHERE sink = {sink} AND landed_at > now() - interval '1 day' GROUP BY slot ORDER BY slot
""")


class Slot(NamedTuple):
    """Ten minutes of a pipeline.

    Attributes:
        until: unix seconds.
        rate: records written per second.
        oldest_s: greatest age of a record in this slot, from the processor's write to the commit; None: unknown.
    """

    until: int
    rate: float
    oldest_s: float | None


class Batch(NamedTuple):
    """Range of a partition in one batch. `seconds`: as `Slot.oldest_s`."""

    landed_at: datetime
    topic: str
    partition: int
    first_offset: int
    next_offset: int
    records: int | None
    seconds: float | None
    writer: str


async def readable(connection: Connection) -> bool:
    """Whether the table exists and may be read. Raises psycopg.Error."""
    return await (await connection.execute(_READABLE)).fetchone() == (True,)


async def newest(connection: Connection, sink: str, span_s: int) -> Sequence[Batch]:
    """Fetch the batches of the last `span_s` seconds, the newest first, at most NEWEST_MAX. Raises psycopg.Error."""
    if not await readable(connection):
        return []
    query = _NEWEST.format(seconds=SECONDS, sink=sink, span=span_s, most=NEWEST_MAX)
    return [Batch(*row) for row in await (await connection.execute(query)).fetchall()]


async def day(
    connection: Connection, sink: str, reading: PanelReader, taken_at: datetime, ends: float
) -> tuple[Sequence[Slot], str]:
    """Fetch the last day of a pipeline in slots of ten minutes, the oldest first, without the present slot.

    Returns the slots, and the reason why the slots are unknown or "". The result is cached like a panel's. Raises
    psycopg.Error.
    """

    async def read(limited: Bounded) -> list[Slot]:
        query = _DAY.format(slot=SLOT_S, records=RECORDS, seconds=SECONDS, sink=sink)
        found = {
            slot: (count, worst, now) for slot, count, worst, now in await (await limited.execute(query)).fetchall()
        }
        if not found:
            return []
        present = next(iter(found.values()))[2]
        return [
            Slot((slot + 1) * SLOT_S, count / SLOT_S, worst)
            for slot in range(min(found), present)
            for count, worst, _ in [found.get(slot, (0, None, present))]
        ]

    if not await readable(connection):
        return [], ""
    kept = await reading.read(connection, (sink, "day"), None, read, taken_at, ends)
    return kept.content or [], kept.trouble
