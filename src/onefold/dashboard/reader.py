"""Database access of the dashboard: read-only connections, and snapshots of one moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import structlog
from psycopg import AsyncConnection, AsyncCursor, IsolationLevel, sql
from psycopg.abc import Query

from onefold import postgres
from onefold.error_codes import first_line
from onefold.printable import sentence

ROLE = "onefold_reader"
CONNECT_S = 3  # a healthy database answers in milliseconds, and a person does not wait longer for a page
STATEMENT_S = 4  # for one statement; the page then reports a timeout, and continues
TOO_LARGE = "This takes the database more than a second, and is asked again every minute."
UNFIT = "The query gives a value that cannot be shown here."
# Errors of a pipeline's own query. The result may hold any value: NULL, NaN, text for a number, or JSON nested too deeply for
# Python.
FAILURES = (psycopg.Error, ArithmeticError, TypeError, ValueError, RecursionError)
SNAPSHOT_S = 6.0  # for a whole snapshot, by this process's clock, because a paused database enforces no timeout

log = structlog.get_logger("onefold.dashboard")

Connection = AsyncConnection[tuple[Any, ...]]
#: Connection for a thread with blocking calls.
Blocking = psycopg.Connection[tuple[Any, ...]]


class DatabaseReader:
    """Reader of one database over one connection, which is replaced after an error."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """Open a read-only snapshot: all queries within the block see the same moment.

        Raises psycopg.Error.
        """
        async with self._turn:
            if self._connection is None or self._connection.closed:
                self._connection = await connect(self._dsn)
            with _patience(self._connection):
                async with self._connection.transaction():
                    yield self._connection

    def another(self) -> Blocking:
        """Open a separate connection for a thread. Raises psycopg.Error."""
        return connect_blocking(self._dsn)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            await self._connection.close()


async def connect(dsn: str) -> Connection:
    """Open a connection that can only read, by two means: the role onefold_reader, and read-only transactions.

    If the role is missing or not granted, the second means remains, and the log has a warning. Raises psycopg.Error.
    """
    connection = await postgres.connect_async(dsn, "onefold dashboard", settings=_SETTINGS, connect_s=CONNECT_S)
    try:
        with _patience(connection), _without_the_role():
            await connection.execute(_TAKE_ON_THE_ROLE)
        await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        await connection.set_read_only(True)
    except BaseException:
        await connection.close()
        raise
    return connection


class Bounded:
    """Executor of statements under one common time limit."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._ends = time.monotonic() + seconds

    async def execute(self, query: Query) -> AsyncCursor[tuple[Any, ...]]:
        """Execute a statement as a connection does. Raises psycopg.Error."""
        left_ms = max(1, round((self._ends - time.monotonic()) * 1000))  # 0 would mean no limit
        await self._connection.execute(_TIMEOUT.format(left_ms))
        return await self._connection.execute(query)


@asynccontextmanager
async def bounded(connection: Connection, seconds: float) -> AsyncIterator[Bounded]:
    """Limit the total time of the block's statements. An error in the block leaves the snapshot usable."""
    async with connection.transaction():
        yield Bounded(connection, seconds)
        await connection.execute(_TIMEOUT.format(round(STATEMENT_S * 1000)))


def why(error: Exception, connection: Connection) -> str:
    """Describe why a pipeline's own query failed with one of `FAILURES`. Raises the error if the connection is lost."""
    if not isinstance(error, psycopg.Error):
        return UNFIT
    if connection.closed:
        raise error
    return TOO_LARGE if isinstance(error, psycopg.errors.QueryCanceled) else trouble_of(error)


def trouble_of(error: psycopg.Error) -> str:
    """Describe a failure of the database in one sentence that helps a reader of the page."""
    if isinstance(error, psycopg.errors.QueryCanceled):
        return "The database took too long to answer."
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"The database refuses to be read: {first_line(error)}."
    if isinstance(error, postgres.Unfit):
        return sentence(str(error))
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return "The database does not answer."
    return f"The query does not work: {first_line(error)}."


def connect_blocking(dsn: str) -> Blocking:
    """Open a connection as `connect` does, for a thread, in autocommit mode. Raises psycopg.Error."""
    connection = postgres.connect(dsn, "onefold dashboard view", settings=_SETTINGS, connect_s=CONNECT_S)
    try:
        with _without_the_role():
            connection.execute(_TAKE_ON_THE_ROLE)
    except BaseException:
        connection.close()
        raise
    return connection


_TIMEOUT = sql.SQL("SET LOCAL statement_timeout = {}")
_SETTINGS = {**postgres.READ_ONLY, "statement_timeout": f"{STATEMENT_S}s"}
_TAKE_ON_THE_ROLE = sql.SQL("SET ROLE {}").format(sql.Identifier(ROLE))


@contextmanager
def _without_the_role() -> Iterator[None]:
    """Continue without the role if the database refuses `SET ROLE`."""
    try:
        yield
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege) as error:
        log.warning(f"reading without the role {ROLE}: {str(error).strip()}")


@contextmanager
def _patience(connection: Connection) -> Iterator[None]:
    """Close the connection if the block takes too long, so that the caller gets an error.

    Cancelling the task is not enough: psycopg then requests a cancel from the server and waits for the answer, which a
    paused server never gives.
    """
    timer = asyncio.get_running_loop().call_later(SNAPSHOT_S, postgres.hang_up, connection)
    try:
        yield
    finally:
        timer.cancel()
