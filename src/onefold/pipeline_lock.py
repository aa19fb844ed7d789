"""Mutual exclusion of a pipeline's sinks and workers and of a reset of the pipeline.

Each sink and each worker writes over a single PostgreSQL session, which holds a shared advisory lock of the pipeline until its
end. A reset takes the lock exclusively. A reset therefore cannot begin while a sink or a worker, even a paused process, can
write. A service without its session has neither the lock nor a connection for writes. A worker first sends messages to Kafka,
and the messages count only if its session still exists afterwards (`onefold.jobs.writer`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

_SHARE = "SELECT pg_try_advisory_lock_shared(hashtextextended(%s, 0))"
_TAKE = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
# pg_locks shows a key of 64 bits as two halves.
_HOLDERS = (
    "SELECT application_name, pid, mode = 'ExclusiveLock' FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND (classid::bigint << 32) | objid::bigint = hashtextextended(%s, 0) ORDER BY 1, 2"
)


class Holder(NamedTuple):
    """A session with the lock.

    Attributes:
        name: The application name of the session.
        pid: The pid of the session's process on the server.
        alone: Whether the lock is exclusive, for a reset; else shared, for a sink or a worker.
    """

    name: str
    pid: int
    alone: bool

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def share(connection: psycopg.Connection[Any], pipeline: str) -> bool:
    """Take the shared lock until the connection ends. Returns False if a reset has the lock."""
    return _granted(connection, _SHARE, pipeline)


def take(connection: psycopg.Connection[Any], pipeline: str) -> bool:
    """Take the exclusive lock until the connection ends. Returns False if any session has the lock."""
    return _granted(connection, _TAKE, pipeline)


def holders(connection: psycopg.Connection[Any], pipeline: str) -> list[Holder]:
    """The sessions with the exclusive or the shared lock, sorted."""
    return [Holder(*found) for found in connection.execute(_HOLDERS, (_key(pipeline),)).fetchall()]


def _granted(connection: psycopg.Connection[Any], statement: str, pipeline: str) -> bool:
    return connection.execute(statement.encode(), (_key(pipeline),)).fetchone() == (True,)


def _key(pipeline: str) -> str:
    # The name is from a release with locks for workers only. The key must not change, because releases may run side by side.
    return f"onefold worker {pipeline}"
