"""The jobs of pipelines: per queue how many are pending and done, and the one that has waited longest.

A queue may have millions of rows, and is asked for every second: of more than COUNTED_MAX only so many are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold.dashboard.reader import Connection

# How the reason of such a job begins.
_REFUSED = "refused:"
# So many, pending and done, are counted within some 100 ms.
COUNTED_MAX = 100_000


@dataclass(frozen=True)
class Oldest:
    """The pending job of a queue that has waited longest.

    Attributes:
        reason: why it was deferred the last time, or "".
        age_s: since it became pending, in seconds.
    """

    log_id: str
    segment: int
    entry: int
    reason: str
    age_s: float


@dataclass(frozen=True)
class ShownQueue:
    """One queue. Numbers up to COUNTED_MAX are exact; one more means that there are more.

    Attributes:
        active: of the pending ones, those that a worker has claimed.
        deferred: of the pending ones, those that were tried before and wait for the next time.
        retries: how often jobs were deferred, of all that are pending or done.
        last_minute: of those that are done.
        refused: of the pending ones, those whose effect says that they can never be done.
        refusal: why one of them cannot, or "".
        oldest: None when none is pending.
    """

    queue: str
    pending: int
    active: int
    deferred: int
    retries: int
    done: int
    last_minute: int
    refused: int
    refusal: str
    oldest: Oldest | None


async def fetch(connection: Connection) -> Sequence[ShownQueue]:
    """Every queue that has had a job, by name; none in a database without jobs. Raises psycopg.Error."""
    (there,) = await (await connection.execute(_THERE)).fetchone() or (False,)
    if not there:
        return ()
    rows = await (await connection.execute(_QUEUES, {"most": COUNTED_MAX + 1, "refused": f"{_REFUSED}%"})).fetchall()
    return [
        ShownQueue(
            queue,
            pending,
            active,
            deferred,
            retries,
            done,
            last_minute,
            refused,
            refusal.removeprefix(_REFUSED).strip(),
            Oldest(*oldest) if oldest[0] is not None else None,
        )
        for queue, pending, active, deferred, retries, done, last_minute, refused, refusal, *oldest in rows
    ]


# A role that may not read them sees a database without jobs.
_THERE = """
SELECT coalesce(has_table_privilege(to_regclass('onefold.pending'), 'SELECT')
            AND has_table_privilege(to_regclass('onefold.done'), 'SELECT'), false)
"""
# The names of the queues come from the primary keys, one look for each: DISTINCT would read all rows.
_QUEUES = """
WITH RECURSIVE waiting (queue) AS (
    SELECT min(queue) FROM onefold.pending
    UNION ALL
    SELECT (SELECT min(queue) FROM onefold.pending WHERE queue > waiting.queue) FROM waiting WHERE queue IS NOT NULL
), finished (queue) AS (
    SELECT min(queue) FROM onefold.done
    UNION ALL
    SELECT (SELECT min(queue) FROM onefold.done WHERE queue > finished.queue) FROM finished WHERE queue IS NOT NULL
), names AS (
    SELECT queue FROM waiting WHERE queue IS NOT NULL UNION SELECT queue FROM finished WHERE queue IS NOT NULL
)
SELECT queue, pending.jobs, pending.active, pending.deferred, pending.retries + done.retries, done.jobs, latest.jobs,
       pending.refused, pending.refusal, oldest.log_id, oldest.segment, oldest.entry, oldest.reason, oldest.age_s
FROM names
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, count(*) FILTER (WHERE active) AS active,
           count(*) FILTER (WHERE retries > 0 AND NOT active) AS deferred, coalesce(sum(retries), 0) AS retries,
           count(*) FILTER (WHERE reason LIKE %(refused)s) AS refused,
           coalesce(min(reason) FILTER (WHERE reason LIKE %(refused)s), '') AS refusal
    FROM (SELECT active, retries, reason FROM onefold.pending WHERE queue = names.queue LIMIT %(most)s) AS counted
) AS pending
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, coalesce(sum(retries), 0) AS retries
    FROM (SELECT retries FROM onefold.done WHERE queue = names.queue LIMIT %(most)s) AS counted
) AS done
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs
    FROM (
        SELECT FROM onefold.done WHERE queue = names.queue AND done_at > now() - interval '1 minute' LIMIT %(most)s
    ) AS counted
) AS latest
LEFT JOIN LATERAL (
    SELECT log_id, segment, entry, reason,
           greatest(0, extract(epoch FROM clock_timestamp() - created))::double precision AS age_s
    FROM (SELECT * FROM onefold.pending WHERE queue = names.queue LIMIT %(most)s) AS counted
    ORDER BY created, log_id, segment, entry LIMIT 1
) AS oldest ON true
ORDER BY queue
"""
