"""A reset's session in PostgreSQL: while it is there, no other reset of the pipeline begins, and no sink and no worker of it.

A reset may sleep, and its session be cut meanwhile: by a failover, or by somebody who took it for dead. When it wakes, another
one may have come to its end, and what it was about to delete may be of the new run. So it empties the tables over this session,
and asks whether it is there right before whatever else it deletes.
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

# It is idle while Kafka deletes, and large tables take their time: nothing of that is a reason to end it. Which of these there
# are depends on the server's version.
_NO_TIME_LIMITS = (
    "SELECT set_config(name, '0', false) FROM pg_settings"
    " WHERE name IN ('idle_session_timeout', 'statement_timeout', 'transaction_timeout')"
)
AGAIN = "Run it again when that is mended: it goes on."


class ResetSession:
    """Of one reset.

    Attributes:
        connection: in autocommit mode.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def still(self) -> None:
        """Raises UserError when it has ended: another reset may have begun since, and have come to its end."""
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
    """A session that keeps sinks, workers and other resets of the pipeline away until the block ends. Raises UserError:
    PostgreSQL does not answer, or (exit code 3) somebody is there.
    """
    try:
        with closing(connect(dsn, name, "reset")) as connection:
            connection.execute(_NO_TIME_LIMITS)
            while not pipeline_lock.take(connection, name):
                refuse_beside_others(connection, name)  # else they have left in between
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
    """The statement that ends these sessions. Who loses one so, and lives, writes nothing more."""
    return f"SELECT {', '.join(f'pg_terminate_backend({one.pid})' for one in holders)};"
