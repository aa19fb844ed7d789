"""Throughput and latency of a pipeline.

If the panels of a pipeline declare `latency`, its query gives the time from the producer's clock to the commit. Otherwise
the sink's record of batches gives the time from the write of a batch's oldest record to the commit. Each record of the
batch took at most that time. The rate is a rolling mean over 20 seconds.
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
from onefold.dashboard.panels import PanelReader
from onefold.dashboard.reader import Bounded, Connection
from onefold.dashboard.rollups import text

SLOT_S = 5  # of a chart's point: short enough to show a restart, with enough messages for a p99
ROLLING_S = 20  # long enough for a steady value, short enough to show a restart
SLOTS_MAX = 144  # of a chart over a longer time: ten minutes per point over a day
SPAN_S = 300  # range of the charts without one in the address

# Rows since {since}: landed_at, latency in seconds, number of messages, and number of messages with that latency.
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
    """Throughput and latencies.

    Attributes:
        taken_at: time of the snapshot.
        end_to_end: True: latencies from the producer's clock; False: from the write of a batch's oldest record.
        messages: of the last minute.
        a_second: present rolling mean.
        mean, p50, p99, worst: seconds, over the last minute's messages; None without messages.
        span_s: range of the slots.
        times: unix seconds at the end of each slot.
        rates, p50s, p99s: of each slot, in messages per second and in seconds.
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
    reading: PanelReader,
    taken_at: datetime,
    ends: float,
    span_s: int = SPAN_S,
) -> tuple[Flow | None, str]:
    """Fetch the flow of a pipeline over `span_s` seconds, and the reason why a query failed or "".

    The flow is None if the sink recorded no batches in that range; sinks of older versions record none. Results are cached
    like a panel's. Raises psycopg.Error.
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
    drawn = range(present - span_s // slot_s, present)  # the present slot is incomplete
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
    """Convert a number of seconds. Raises ValueError for NaN and infinity, which a chart cannot show."""
    if value is not None and not math.isfinite(value):
        raise ValueError("NaN and infinity are no time")
    return None if value is None else float(value)
