"""Refused records by reason and over time: dead letters of the processor, and rows that PostgreSQL refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from psycopg import sql

from onefold.dashboard.panels import PanelReader
from onefold.dashboard.reader import Bounded, Connection

# The most frequent reasons are enough for one page.
REASONS_MAX = 5
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
_READABLE = "SELECT coalesce(has_table_privilege(to_regclass('onefold.rejected'), 'SELECT'), false)"
_REJECTED = sql.SQL("""
SELECT reason, count(*), count(*) FILTER (WHERE rejected_at > now() - interval '1 hour'),
       count(*) FILTER (WHERE rejected_at > now() - interval '1 day'), min(rejected_at), max(rejected_at),
       (array_agg(topic ORDER BY rejected_at DESC))[1],
       (array_agg(partition || '/' || "offset" ORDER BY rejected_at DESC))[1]
FROM onefold.rejected WHERE sink = {sink} GROUP BY reason ORDER BY count(*) DESC, reason LIMIT {most}
""")


@dataclass(frozen=True)
class Failure:
    """Refused records of one reason.

    Attributes:
        last_hour, last_day: part of `count`.
        topic, place: topic and partition/offset of the newest dead letter, or of the newest refused row's record.
    """

    reason: str
    count: int
    last_hour: int
    last_day: int
    first_at: datetime
    newest_at: datetime
    topic: str
    place: str


def by_reason(found: Iterable[tuple[str, datetime, str, str]], now: datetime) -> list[Failure]:
    """Group refused records, each (reason, time, topic, place), and return the most frequent reasons."""
    reasons: dict[str, list[tuple[datetime, str, str]]] = {}
    for reason, at, topic, place in found:
        reasons.setdefault(reason, []).append((at, topic, place))
    failures = []
    for reason, ones in reasons.items():
        since = [now - at for at, _, _ in ones]
        newest = max(ones)
        hour, day = (sum(one < span for one in since) for span in (_HOUR, _DAY))
        failures.append(Failure(reason, len(ones), hour, day, min(ones)[0], *newest))
    return sorted(failures, key=lambda one: (-one.count, one.reason))[:REASONS_MAX]


async def rejected(
    connection: Connection, sink: str, reading: PanelReader, taken_at: datetime, ends: float
) -> tuple[Sequence[Failure], str]:
    """Fetch the rows of a pipeline that PostgreSQL refused, and the reason why the rows are unknown or "".

    The result is cached like a panel's. Raises psycopg.Error.
    """

    async def read(limited: Bounded) -> list[Failure]:
        return [
            Failure(*row)
            for row in await (await limited.execute(_REJECTED.format(sink=sink, most=REASONS_MAX))).fetchall()
        ]

    if await (await connection.execute(_READABLE)).fetchone() != (True,):
        return [], ""
    kept = await reading.read(connection, (sink, "rejected"), None, read, taken_at, ends)
    return kept.content or [], kept.trouble
