"""Jobs of pipelines: pending and done jobs per queue, and the oldest pending job.

A queue may have millions of rows, and the page reads each queue every second. So a count ends at COUNTED_MAX + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onefold.dashboard.reader import Connection

# Prefix of the reason of a refused job.
_REFUSED = "refused:"
# Bounds the time of a count, because the page reads each second.
COUNTED_MAX = 100_000


@dataclass(frozen=True)
class Oldest:
    """The pending job of a queue that has waited longest.

    Attributes:
        reason: reason of the last deferral, or "".
        age_s: seconds since the job became pending.
    """

    log_id: str
    segment: int
    entry: int
    reason: str
    age_s: float


@dataclass(frozen=True)
class ShownQueue:
    """One queue. Numbers up to COUNTED_MAX are exact; COUNTED_MAX + 1 means more.

    Attributes:
        active: pending jobs that a worker has claimed.
        deferred: pending jobs that wait for another attempt.
        retries: number of deferrals of all jobs, pending and done.
        last_minute: jobs done in the last minute.
        refused: pending jobs whose effect says that they can never be done.
        refusal: reason of one refused job, or "".
        oldest: None without pending jobs.
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
    """Fetch every queue with jobs, by name; empty in a database without jobs. Raises psycopg.Error."""
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


# For a role without the right to read the tables, the page shows no jobs.
_THERE = """
SELECT coalesce(has_table_privilege(to_regclass('onefold.pending'), 'SELECT')
            AND has_table_privilege(to_regclass('onefold.done'), 'SELECT'), false)
"""
# Queue names by index lookups on the primary keys: DISTINCT would read all rows.
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
