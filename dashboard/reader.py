"""The page's one door to the database: a connection that cannot write, and snapshots of one moment."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import psycopg
import structlog
from psycopg import AsyncConnection, IsolationLevel, sql

ROLE = "onefold_reader"
CONNECT_S = 3  # a healthy database answers in milliseconds; nobody waits longer for a page
STATEMENT_S = 4  # for one question; above it the page calls the table too large, and goes on
SNAPSHOT_S = 6.0  # for a whole snapshot, by our own clock: a database that is stopped keeps no time

log = structlog.get_logger("onefold.dashboard")

Connection = AsyncConnection[tuple[Any, ...]]


class Reader:
    """Reads one database over one connection, which is replaced when it broke."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """A connection inside of one read-only snapshot: whatever is asked within the block is of the same moment.

        Raises psycopg.Error.
        """
        async with self._turn:
            if self._connection is None or self._connection.closed:
                self._connection = await connect(self._dsn)
            with _patience(self._connection):
                async with self._connection.transaction():
                    yield self._connection

    async def close(self) -> None:
        """Closes the connection, if there is one."""
        if self._connection is not None:
            await self._connection.close()


async def connect(dsn: str) -> Connection:
    """A connection that can only read, by two locks: the rights of the role onefold_reader, and transactions that
    are read-only. Where the role is missing or may not be taken on, the second lock stays, and the log has a warning.

    Raises psycopg.Error.
    """
    connection = await AsyncConnection.connect(
        dsn, autocommit=True, connect_timeout=CONNECT_S, application_name="onefold dashboard"
    )
    try:
        with _patience(connection):
            await connection.execute("SET default_transaction_read_only = on")
            await connection.execute(sql.SQL("SET statement_timeout = {}").format(f"{STATEMENT_S}s"))
            await _take_on_the_role(connection)
        await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        await connection.set_read_only(True)
    except BaseException:
        await connection.close()
        raise
    return connection


async def _take_on_the_role(connection: Connection) -> None:
    try:
        await connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(ROLE)))
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege) as error:
        log.warning(f"reading without the role {ROLE}: {str(error).strip()}")


@contextmanager
def _patience(connection: Connection) -> Iterator[None]:
    """Hangs up when the block takes too long, so that who waits gets an error. Cancelling would not do: psycopg then
    asks the server to cancel and waits for its answer, and a server that is stopped gives none.
    """
    timer = asyncio.get_running_loop().call_later(SNAPSHOT_S, _hang_up, connection)
    try:
        yield
    finally:
        timer.cancel()


def _hang_up(connection: Connection) -> None:
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
