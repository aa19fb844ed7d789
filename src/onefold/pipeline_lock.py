"""Sinks and workers of a pipeline, or a reset of it: never both.

Each sink and each worker writes over one session of PostgreSQL, which shares an advisory lock of the pipeline for as long as the
session lives. A reset takes that lock alone. So no reset begins while a sink or a worker can write there, also a frozen one; and
whoever has lost the session has lost the lock, and the way to write with it. What a worker sends elsewhere is sent first, and
counts if the session was seen to be there after that (`onefold.jobs.writer`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

_SHARE = "SELECT pg_try_advisory_lock_shared(hashtextextended(%s, 0))"
_TAKE = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
# A key of 64 bits is shown as two halves.
_HOLDERS = (
    "SELECT application_name, pid, mode = 'ExclusiveLock' FROM pg_locks JOIN pg_stat_activity USING (pid)"
    " WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND (classid::bigint << 32) | objid::bigint = hashtextextended(%s, 0) ORDER BY 1, 2"
)


class Holder(NamedTuple):
    """A session that has the lock.

    Attributes:
        name: what it is called.
        pid: of its process on the server.
        alone: it is a reset's; else a sink's or a worker's, which share it.
    """

    name: str
    pid: int
    alone: bool

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def share(connection: psycopg.Connection[Any], pipeline: str) -> bool:
    """Share it until the connection ends. False: a reset has it."""
    return _granted(connection, _SHARE, pipeline)


def take(connection: psycopg.Connection[Any], pipeline: str) -> bool:
    """Have it alone until the connection ends. False: somebody has it, or shares it."""
    return _granted(connection, _TAKE, pipeline)


def holders(connection: psycopg.Connection[Any], pipeline: str) -> list[Holder]:
    """The sessions that have or share it, sorted."""
    return [Holder(*found) for found in connection.execute(_HOLDERS, (_key(pipeline),)).fetchall()]


def _granted(connection: psycopg.Connection[Any], statement: str, pipeline: str) -> bool:
    return connection.execute(statement.encode(), (_key(pipeline),)).fetchone() == (True,)


def _key(pipeline: str) -> str:
    # The lock was the workers' alone once, and keeps its name: a release before and after may run side by side.
    return f"onefold worker {pipeline}"
