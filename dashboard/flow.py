"""How many messages landed and how long they took, from a table `landed` (landed_at, sent_at, messages) of a domain.

The rate is a rolling mean over 20 seconds; latencies are from the producer's clock to the commit, by tenths of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from onefold.dashboard.reader import Connection

SLOT_S = 5  # of a point of the charts: fine enough to see a restart, and each holds enough messages for a p99
ROLLING_SLOTS = 4  # 20 s, long enough to be calm and short enough to show a restart
SLOTS = 60  # five minutes

_SLOTS = """
WITH way AS (
    SELECT floor(extract(epoch FROM landed_at) / {slot}) AS slot, extract(epoch FROM landed_at - sent_at) AS seconds, messages
    FROM {landed}
    WHERE landed_at > now() - {span}
), ranked AS (
    SELECT slot, seconds, sum(messages) OVER (PARTITION BY slot ORDER BY seconds) AS up_to,
           sum(messages) OVER (PARTITION BY slot) AS messages
    FROM way
)
SELECT slot, messages, min(seconds) FILTER (WHERE up_to >= 0.50 * messages),
       min(seconds) FILTER (WHERE up_to >= 0.99 * messages)
FROM ranked GROUP BY slot, messages ORDER BY slot
"""

_MINUTE = """
WITH way AS (
    SELECT landed_at, extract(epoch FROM landed_at - sent_at) AS seconds, messages,
           sum(messages) OVER (ORDER BY landed_at - sent_at) AS up_to, sum(messages) OVER () AS all_messages
    FROM {landed}
    WHERE landed_at > now() - interval '1 minute'
)
SELECT extract(epoch FROM now()), coalesce(sum(messages), 0),
       coalesce(sum(messages) FILTER (WHERE landed_at > now() - {rolling}), 0),
       sum(seconds * messages) / sum(messages),
       min(seconds) FILTER (WHERE up_to >= 0.50 * all_messages),
       min(seconds) FILTER (WHERE up_to >= 0.99 * all_messages), max(seconds)
FROM way
"""


@dataclass(frozen=True)
class Flow:
    """Messages landed and their latencies.

    Attributes:
        messages: of the last minute.
        a_second: rolling mean now.
        mean, p50, p99, worst: seconds, of the last minute's messages, None when there were none.
        times: unix seconds at the end of each slot.
        rates, p50s, p99s: of each slot, a second and in seconds.
    """

    messages: int
    a_second: float
    mean: float | None
    p50: float | None
    p99: float | None
    worst: float | None
    times: Sequence[int]
    rates: Sequence[float]
    p50s: Sequence[float | None]
    p99s: Sequence[float | None]


async def fetch(connection: Connection, schema: str) -> Flow:
    """The flow into the domain of this schema over the last five minutes."""
    parts = {
        "landed": sql.Identifier(schema, "landed"),
        "slot": sql.Literal(SLOT_S),
        "rolling": sql.SQL("make_interval(secs => {})").format(SLOT_S * ROLLING_SLOTS),
        "span": sql.SQL("make_interval(secs => {})").format(SLOT_S * (SLOTS + ROLLING_SLOTS)),
    }
    minute = await (await connection.execute(sql.SQL(_MINUTE).format(**parts))).fetchone()
    slots = await (await connection.execute(sql.SQL(_SLOTS).format(**parts))).fetchall()
    assert minute is not None, "an aggregate without groups always has its row"
    now, messages, recent, *latencies = minute
    mean, p50, p99, worst = (None if value is None else float(value) for value in latencies)
    found = {int(slot): (int(count), float(half), float(most)) for slot, count, half, most in slots}
    present = int(now // SLOT_S)
    drawn = range(present - SLOTS, present)  # the present slot is still being filled
    rolling = SLOT_S * ROLLING_SLOTS
    return Flow(
        messages=int(messages),
        a_second=int(recent) / rolling,
        mean=mean, p50=p50, p99=p99, worst=worst,
        times=[(slot + 1) * SLOT_S for slot in drawn],
        rates=[sum(found.get(slot - back, (0,))[0] for back in range(ROLLING_SLOTS)) / rolling for slot in drawn],
        p50s=[found[slot][1] if slot in found else None for slot in drawn],
        p99s=[found[slot][2] if slot in found else None for slot in drawn],
    )  # fmt: skip
