"""Counts of jobs in each queue, from their rows: pending, active, deferred, done."""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from onefold import postgres
from onefold.config.settings import Settings
from onefold.operate import pipelines

CALL_S = 5  # one query; a healthy server answers in milliseconds

_COUNTS = """
SELECT queue, count(*), count(*) FILTER (WHERE active), count(*) FILTER (WHERE NOT active AND retries > 0), sum(retries)
FROM onefold.pending GROUP BY queue
"""
_OLDEST = """
SELECT DISTINCT ON (queue) queue, log_id || ' ' || segment || '/' || entry,
    extract(epoch FROM clock_timestamp() - created)::double precision, reason
FROM onefold.pending ORDER BY queue, created, log_id, segment, entry
"""
_DONE = "SELECT queue, count(*) FROM onefold.done GROUP BY queue"


class QueueJobs(NamedTuple):
    """The jobs of a queue.

    Attributes:
        pending: known and not done, active and deferred jobs included.
        active: a worker runs the job, or crashed while running it.
        deferred: waits for its turn, or for a retry.
        retries: the sum of deferrals of the pending jobs.
        done: since the creation of the database, or since the last requeue.
        oldest: the pending job with the longest waiting time, or "".
        oldest_s: its waiting time in seconds.
        reason: why the oldest job was last deferred, or "".
    """

    pending: int = 0
    active: int = 0
    deferred: int = 0
    retries: int = 0
    done: int = 0
    oldest: str = ""
    oldest_s: float = 0.0
    reason: str = ""


def jobs_of_all(settings: Settings) -> dict[str, QueueJobs]:
    """The jobs of each declared queue; {} if the database does not answer, or lacks the tables."""
    queues = [queue for pipeline in pipelines.found().pipelines.values() for queue in pipeline.jobs]
    if not queues:
        return {}
    try:
        with postgres.connect(settings.postgres(), "onefold status", patience_s=CALL_S) as connection:
            if connection.execute("SELECT to_regclass('onefold.pending')").fetchone() == (None,):
                return {}
            counts = {queue: tuple(map(int, rest)) for queue, *rest in connection.execute(_COUNTS)}
            oldest = {queue: (log, float(s), why) for queue, log, s, why in connection.execute(_OLDEST)}
            done = {queue: int(number) for queue, number in connection.execute(_DONE)}
    except psycopg.Error:
        return {}
    return {queue: _jobs(counts.get(queue), done.get(queue, 0), oldest.get(queue)) for queue in queues}


def _jobs(counts: tuple[int, ...] | None, done: int, oldest: tuple[str, float, str] | None) -> QueueJobs:
    if counts is None or oldest is None:
        return QueueJobs(done=done)
    pending, active, deferred, retries = counts
    return QueueJobs(pending, active, deferred, retries, done, *oldest)
