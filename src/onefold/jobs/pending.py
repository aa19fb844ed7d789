"""The rows of jobs in Postgres, in the tables onefold.pending and onefold.done. Each write is one statement with a condition.

The only lock beyond a statement blocks a reset of the pipeline. All times are by the database's clock, so time-outs do not
depend on the workers' clocks.
"""

from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from onefold import pipeline_lock
from onefold.error_codes import Code
from onefold.jobs.protocols import Done, Job, PendingRow, Place
from onefold.processor.core.errors import Retriable
from onefold.spark_sink.postgres.connection import Connection, connect

_JOB = "queue = %s AND log_id = %s AND segment = %s AND entry = %s"
_BEFORE = "queue = %s AND log_id = %s AND (segment, entry) < (%s, %s)"
_AFTER = "queue = %s AND log_id = %s AND (segment, entry) > (%s, %s)"
# The fields of a `PendingRow` after the job.
_STANDING = (
    "retries, active, increment, state, reason, extract(epoch FROM clock_timestamp() - modified)::double precision"
)


class PostgresPending:
    """`onefold.jobs.protocols.JobRows` with one connection per worker.

    Every method raises psycopg.Error if the database does not respond. The condition of the next attempt then detects the
    outcome.
    """

    def __init__(self, dsn: str, worker: str, pipeline: str) -> None:
        """Open the connection, and block resets of the pipeline until `close`.

        Args:
            worker: the worker's name for the application name of the connection.

        Raises:
            Retriable: a reset of the pipeline is running.
        """
        self._connection: Connection = connect(dsn, worker, "worker")
        if not pipeline_lock.share(self._connection, pipeline):
            self._connection.close()
            raise Retriable(Code.RESET_INCOMPLETE, f"{pipeline} is being reset: `onefold reset` is running")

    def close(self) -> None:
        """Close the connection. A claimed job stays claimed until the time-out."""
        self._connection.close()

    def still(self) -> None:
        """Raise psycopg.Error if the connection has ended, because the pipeline may have been reset in the meantime."""
        self._connection.execute("SELECT 1")

    def add(self, job: Job) -> None:
        """See `JobRows`."""
        self._connection.execute(
            "INSERT INTO onefold.pending (queue, log_id, segment, entry, value) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            (*_key(job), Jsonb(dict(job.value))),
        )

    def find(self, job: Job) -> PendingRow | None:
        """See `JobRows`."""
        return self._first(_JOB, job)

    def earlier(self, job: Job) -> PendingRow | None:
        """See `JobRows`."""
        return self._first(_BEFORE, job)

    def following(self, job: Job) -> Job | None:
        """See `JobRows`."""
        row = self._first(_AFTER, job)
        return row.job if row else None

    def claim(self, row: PendingRow, timeout_s: float) -> int | None:
        """See `JobRows`."""
        return self._next_increment(
            "UPDATE onefold.pending SET active = true, increment = increment + 1, modified = clock_timestamp()"
            f" WHERE {_JOB} AND increment = %s"
            " AND (NOT active OR modified <= clock_timestamp() - make_interval(secs => %s)) RETURNING increment",
            (*_key(row.job), row.increment, timeout_s),
        )

    def checkpoint(self, job: Job, increment: int, state: Any) -> int | None:
        """See `JobRows`."""
        return self._next_increment(
            "UPDATE onefold.pending SET state = %s, increment = increment + 1, modified = clock_timestamp()"
            f" WHERE {_JOB} AND increment = %s AND active RETURNING increment",
            (Jsonb(state), *_key(job), increment),
        )

    def release(self, job: Job, increment: int, *, reason: str = "") -> bool:
        """See `JobRows`."""
        return self._holds(
            "UPDATE onefold.pending SET active = false, modified = clock_timestamp(),"
            " retries = retries + (%s <> '')::integer, reason = %s"
            f" WHERE {_JOB} AND increment = %s AND active",
            (reason, reason, *_key(job), increment),
        )

    def defer(self, row: PendingRow, reason: str) -> bool:
        """See `JobRows`."""
        return self._holds(
            "UPDATE onefold.pending SET retries = retries + 1, reason = %s, modified = clock_timestamp()"
            f" WHERE {_JOB} AND increment = %s AND NOT active",
            (reason, *_key(row.job), row.increment),
        )

    def done(self, job: Job) -> Done | None:
        """See `JobRows`."""
        return self._last_done(_JOB, job)

    def newest_done(self, job: Job) -> Done | None:
        """See `JobRows`."""
        return self._last_done(_BEFORE, job)

    def finish(self, job: Job, increment: int, result: Any) -> bool:
        """See `JobRows`. The statement locks the row until its commit, so no other worker can claim the job in between."""
        return self._holds(
            "WITH mine AS MATERIALIZED ("
            f" SELECT * FROM onefold.pending WHERE {_JOB} AND increment = %s AND active FOR UPDATE"
            "), made AS ("
            " INSERT INTO onefold.done (queue, log_id, segment, entry, result, retries, created)"
            " SELECT queue, log_id, segment, entry, %s, retries, created FROM mine ON CONFLICT DO NOTHING"
            ") SELECT 1 FROM mine",
            (*_key(job), increment, Jsonb(result)),
        )

    def remove(self, job: Job, increment: int | None = None) -> bool:
        """See `JobRows`."""
        if increment is not None:
            return self._holds(
                f"DELETE FROM onefold.pending WHERE {_JOB} AND increment = %s AND active", (*_key(job), increment)
            )
        return self._holds(
            f"DELETE FROM onefold.pending WHERE {_JOB} AND EXISTS (SELECT FROM onefold.done WHERE {_JOB})",
            _key(job) * 2,
        )

    def quiet_s(self, queue: str, timeout_s: float) -> float:
        """The seconds without progress of the queue. 0 if no job is pending, except refused jobs, which wait for a person.

        The time starts at the latest of three events: the last done job, the last write of an active job within the last
        `timeout_s`, and the creation of the oldest pending job.
        """
        found = self._connection.execute(
            "SELECT extract(epoch FROM clock_timestamp() - greatest("
            " min(created),"
            " max(modified) FILTER (WHERE active AND modified > clock_timestamp() - make_interval(secs => %s)),"
            " (SELECT max(done_at) FROM onefold.done WHERE queue = %s)))::double precision"
            " FROM onefold.pending WHERE queue = %s AND reason NOT LIKE 'refused: %%' HAVING count(*) > 0",
            (timeout_s, queue, queue),
        ).fetchone()
        return float(found[0]) if found and found[0] is not None else 0.0

    def forget(self, job: Job, *, later: bool) -> int:
        """Delete the job from `done`, and with `later` also the later jobs of its log. Returns the number of deleted rows."""
        where = "queue = %s AND log_id = %s AND (segment, entry) >= (%s, %s)" if later else _JOB
        return self._connection.execute(f"DELETE FROM onefold.done WHERE {where}", _key(job)).rowcount

    def _first(self, where: LiteralString, job: Job) -> PendingRow | None:
        found = self._connection.execute(
            f"SELECT segment, entry, value, {_STANDING} FROM onefold.pending WHERE {where}"
            " ORDER BY segment, entry LIMIT 1",
            _key(job),
        ).fetchone()
        if found is None:
            return None
        segment, entry, value, *rest = found
        return PendingRow(Job(job.queue, job.log_id, Place(segment, entry), value), *rest)

    def _last_done(self, where: LiteralString, job: Job) -> Done | None:
        found = self._connection.execute(
            f"SELECT segment, entry, result FROM onefold.done WHERE {where} ORDER BY segment DESC, entry DESC LIMIT 1",
            _key(job),
        ).fetchone()
        return Done(Place(*found[:2]), found[2]) if found else None

    def _holds(self, statement: Any, values: tuple[Any, ...]) -> bool:
        return self._connection.execute(statement, values).rowcount == 1

    def _next_increment(self, statement: Any, values: tuple[Any, ...]) -> int | None:
        found = self._connection.execute(statement, values).fetchone()
        return int(found[0]) if found else None


def _key(job: Job) -> tuple[str, str, int, int]:
    return job.queue, job.log_id, *job.place
