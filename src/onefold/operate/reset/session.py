"""A reset's PostgreSQL session. While the session exists, no second reset, no sink and no worker of the pipeline can start.

A reset process may be suspended, and lose its session meanwhile: by a failover, or by an administrator. After the process
resumes, a second reset may have completed, and the objects to delete may belong to the new run. So a reset empties the tables
in this session, and checks the session immediately before any other deletion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from onefold import pipeline_lock
from onefold.config.errors import UserError, of_postgres
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED
from onefold.pipeline_lock import Holder
from onefold.spark_sink.postgres.connection import connect

# The session is idle while Kafka deletes, and large tables take time, so no time limit may end the session. The available
# limits depend on the server's version.
_NO_TIME_LIMITS = (
    "SELECT set_config(name, '0', false) FROM pg_settings"
    " WHERE name IN ('idle_session_timeout', 'statement_timeout', 'transaction_timeout')"
)
AGAIN = "Run it again when that is mended: it goes on."


class ResetSession:
    """The session of one reset.

    Attributes:
        connection: in autocommit mode.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def still(self) -> None:
        """Raises UserError if the session has ended: a second reset may have started since, and even have completed."""
        try:
            self.connection.execute("SELECT 1")
        except psycopg.Error as error:
            raise of_postgres(
                error,
                "this reset's session in PostgreSQL has ended",
                "Nothing more was deleted. Run it again: it goes on.",
            ) from None


@contextmanager
def alone(dsn: str, name: str) -> Iterator[ResetSession]:
    """Open a session that excludes sinks, workers and other resets of the pipeline until the block ends. Raises UserError:
    PostgreSQL does not answer, or (exit code 3) such a service or reset is running.
    """
    try:
        with closing(connect(dsn, name, "reset")) as connection:
            connection.execute(_NO_TIME_LIMITS)
            while not pipeline_lock.take(connection, name):
                refuse_beside_others(connection, name)  # without an error the holders have ended meanwhile
            yield ResetSession(connection)
    except psycopg.Error as error:
        raise of_postgres(error, "PostgreSQL did not do it", AGAIN) from None


def refuse_beside_others(connection: psycopg.Connection[Any], name: str) -> None:
    """Raises UserError (exit code 3) while a sink, a worker or a reset of the pipeline has a session."""
    found = pipeline_lock.holders(connection, name)
    if resets := [one for one in found if one.alone]:
        raise UserError(
            Code.COMMAND_RUNNING,
            f"another reset of {name} is under way: {_named(resets)}",
            f"Wait for its end. End a frozen one by {_end_of(resets)}",
            REFUSED,
        )
    if found:
        raise UserError(
            Code.STILL_RUNNING,
            f"a service of {name} has a session in the database: {_named(found)}",
            f"Pause the pipeline with `onefold pause {name}`, or stop the service, and run this again. If it is frozen, or its "
            f"machine is gone: {_end_of(found)}",
            REFUSED,
        )


def _named(holders: Sequence[Holder]) -> str:
    return ", ".join(map(str, holders))


def _end_of(holders: Sequence[Holder]) -> str:
    """The statement that ends these sessions. A running process without its session writes nothing more."""
    return f"SELECT {', '.join(f'pg_terminate_backend({one.pid})' for one in holders)};"
