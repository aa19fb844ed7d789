"""How many records landed and how long they took.

If the panels of a pipeline declare `latency`, by that query: from the producer's clock to the commit. Of every other pipeline
from what its sink noted of its batches: from when the oldest record of each was written to the commit, so that each record took
at most that. The rate is a rolling mean over 20 seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from psycopg import sql

from onefold.dashboard import batches
from onefold.dashboard.panels import Reading
from onefold.dashboard.reader import Bounded, Connection
from onefold.dashboard.rollups import text

SLOT_S = 5  # of a point of the charts: fine enough to see a restart, and each holds enough messages for a p99
ROLLING_S = 20  # long enough to be calm and short enough to show a restart
SLOTS_MAX = 144  # of a chart over a longer time: ten minutes a point over a day
SPAN_S = 300  # what the charts show if the address does not say it

# What landed since {since}: landed_at, seconds on the way, how many messages, and how many of them took that long.
_WAY_OF_MESSAGES = sql.SQL("""
SELECT committed_at AS landed_at, extract(epoch FROM committed_at - sent_at) AS seconds, messages, messages AS timed
FROM ({query}
) AS landed WHERE committed_at > {since}
""")
_WAY_OF_BATCHES = sql.SQL("""
SELECT landed_at, {seconds} AS seconds, messages, CASE WHEN oldest_ms > 0 THEN messages ELSE 0 END AS timed
FROM onefold.batch, LATERAL (SELECT {records} AS messages) AS counted
WHERE sink = {sink} AND landed_at > {since}
""")

_BY_SLOT = sql.SQL("""
WITH way AS ({way}), slotted AS (
    SELECT floor(extract(epoch FROM landed_at) / {slot}) AS slot, seconds, messages, timed FROM way
), ranked AS (
    SELECT slot, seconds, sum(timed) OVER (PARTITION BY slot ORDER BY seconds) AS up_to,
           sum(messages) OVER (PARTITION BY slot) AS messages, sum(timed) OVER (PARTITION BY slot) AS timed
    FROM slotted
)
SELECT slot, messages, min(seconds) FILTER (WHERE up_to >= 0.50 * timed),
       min(seconds) FILTER (WHERE up_to >= 0.99 * timed)
FROM ranked GROUP BY slot, messages ORDER BY slot
""")

_MINUTE = sql.SQL("""
WITH way AS ({way}), ranked AS (
    SELECT landed_at, seconds, messages, timed,
           sum(timed) OVER (ORDER BY seconds) AS up_to, sum(timed) OVER () AS all_timed
    FROM way
)
SELECT extract(epoch FROM now()), coalesce(sum(messages), 0),
       coalesce(sum(messages) FILTER (WHERE landed_at > now() - {rolling}), 0),
       sum(seconds * timed) / nullif(sum(timed), 0),
       min(seconds) FILTER (WHERE up_to >= 0.50 * all_timed),
       min(seconds) FILTER (WHERE up_to >= 0.99 * all_timed), max(seconds)
FROM ranked
""")


@dataclass(frozen=True)
class Flow:
    """Messages landed and their latencies.

    Attributes:
        taken_at: the time of the snapshot that it was read in.
        end_to_end: whether latencies are from a producer's clock; or else from when the oldest record of a batch was written.
        messages: of the last minute.
        a_second: rolling mean now.
        mean, p50, p99, worst: seconds, of the last minute's messages, None when there were none.
        span_s: what the slots cover.
        times: unix seconds at the end of each slot.
        rates, p50s, p99s: of each slot, a second and in seconds.
    """

    taken_at: datetime
    end_to_end: bool
    messages: int
    a_second: float
    mean: float | None
    p50: float | None
    p99: float | None
    worst: float | None
    span_s: int
    times: Sequence[int]
    rates: Sequence[float]
    p50s: Sequence[float | None]
    p99s: Sequence[float | None]


async def fetch(
    connection: Connection,
    sink: str,
    query: str | None,
    reading: Reading,
    taken_at: datetime,
    ends: float,
    span_s: int = SPAN_S,
) -> tuple[Flow | None, str]:
    """The flow into a pipeline over so many seconds, by the query that its panels declare, or else by what its sink noted
    of its batches; and why the query gives nothing, or "". None: the sink has noted nothing in that time, as a sink of before
    does not. The query rests as those of panels do. Raises psycopg.Error.
    """
    problem = ""
    fetch_of = partial(_fetch, taken_at=taken_at, span_s=span_s)
    if query is not None:
        read = partial(fetch_of, way=_WAY_OF_MESSAGES, named={"query": text(query)}, end_to_end=True)
        kept = await reading.read(connection, (sink, "latency", span_s), query, read, taken_at, ends)
        if not kept.trouble:
            return kept.content, ""
        problem = f"latency: {kept.trouble}"
    if not await batches.readable(connection):
        return None, problem
    named = {"sink": sql.Literal(sink), "records": batches.RECORDS, "seconds": batches.SECONDS}
    read = partial(fetch_of, way=_WAY_OF_BATCHES, named=named, end_to_end=False)
    kept = await reading.read(connection, (sink, "batches", span_s), None, read, taken_at, ends)
    if kept.trouble:
        return None, problem or f"throughput: {kept.trouble}"
    found: Flow = kept.content
    return (found if found.messages or any(found.rates) else None), problem


async def _fetch(
    connection: Bounded,
    *,
    way: sql.SQL,
    named: Mapping[str, sql.Composable],
    taken_at: datetime,
    span_s: int,
    end_to_end: bool,
) -> Flow:
    slot_s = max(SLOT_S, span_s // SLOTS_MAX)
    rolling_slots = max(1, ROLLING_S // slot_s)
    since = sql.SQL("now() - make_interval(secs => {})")
    parts = {"slot": sql.Literal(slot_s), "rolling": sql.SQL("make_interval(secs => {})").format(ROLLING_S)}
    last, whole = (
        way.format(since=since.format(seconds), **named) for seconds in (60, span_s + rolling_slots * slot_s)
    )
    minute = await (await connection.execute(_MINUTE.format(way=last, **parts))).fetchone()
    slots = await (await connection.execute(_BY_SLOT.format(way=whole, **parts))).fetchall()
    assert minute is not None, "an aggregate without groups always has its row"
    now, messages, recent, *latencies = minute
    mean, p50, p99, worst = map(_seconds, latencies)
    found = {int(slot): (int(count), _seconds(half), _seconds(most)) for slot, count, half, most in slots}
    present = int(now // slot_s)
    drawn = range(present - span_s // slot_s, present)  # the present slot is still being filled
    return Flow(
        taken_at=taken_at,
        end_to_end=end_to_end,
        messages=int(messages),
        a_second=int(recent) / ROLLING_S,
        span_s=span_s,
        mean=mean, p50=p50, p99=p99, worst=worst,
        times=[(slot + 1) * slot_s for slot in drawn],
        rates=[
            sum(found.get(slot - back, (0,))[0] for back in range(rolling_slots)) / (rolling_slots * slot_s) for slot in drawn
        ],
        p50s=[found[slot][1] if slot in found else None for slot in drawn],
        p99s=[found[slot][2] if slot in found else None for slot in drawn],
    )  # fmt: skip


def _seconds(value: Any) -> float | None:
    """Raises ValueError for what no chart can show."""
    if value is not None and not math.isfinite(value):
        raise ValueError("NaN and infinity are no time")
    return None if value is None else float(value)
