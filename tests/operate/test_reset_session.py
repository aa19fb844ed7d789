"""A reset's session in a real PostgreSQL: whom it keeps away, whom it is kept away by, and what ends it."""

from contextlib import closing

import psycopg
import pytest

from onefold import pipeline_lock
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED
from onefold.operate.reset.session import alone
from onefold.spark_sink.postgres.connection import connect
from tests.support.coded import raises
from tests.support.waiting import eventually


def refused(dsn: str) -> UserError:
    with pytest.raises(UserError) as caught, alone(dsn, "sheets"):
        pass
    assert caught.value.exit_code == REFUSED
    return caught.value


def obeyed(dsn: str, error: UserError) -> None:
    """What is said, done."""
    statement = error.hint[error.hint.index("SELECT") :]
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute(statement.encode()).fetchall() == [(True,)]


def test_a_worker_whose_machine_is_gone_is_ended_by_what_is_shown(database: str) -> None:
    with closing(connect(database, "1", "worker")) as worker:
        assert pipeline_lock.share(worker, "sheets")
        told = refused(database)
        assert told.message.startswith("a service of sheets has a session in the database: onefold-worker 1 (pid ")
        obeyed(database, told)
        eventually(lambda: begins(database), 20, "the session has ended")


def test_a_reset_that_is_frozen_is_ended_by_what_is_shown(database: str) -> None:
    """And is told so when it wakes. One of another pipeline is in nobody's way."""
    with alone(database, "sheets") as session:
        session.still()
        with alone(database, "orders"):
            pass
        told = refused(database)
        assert told.message.startswith("another reset of sheets is under way: onefold-reset sheets (pid ")
        obeyed(database, told)
        eventually(lambda: begins(database), 20, "the session has ended")
        with raises(UserError, Code.POSTGRES_SILENT):
            session.still()


def begins(dsn: str) -> bool:
    """Whether a reset of sheets would."""
    with closing(connect(dsn, "looks", "test")) as connection:
        return pipeline_lock.take(connection, "sheets")


def test_nothing_ends_it_for_taking_its_time(database: str) -> None:
    """Kafka may take a minute to delete topics, and PostgreSQL more to empty a large table."""
    with psycopg.connect(database, autocommit=True) as connection:
        limits = {
            name for (name,) in connection.execute("SELECT name FROM pg_settings WHERE name ~ 'timeout$'").fetchall()
        }
        named = {"idle_session_timeout", "statement_timeout", "transaction_timeout"} & limits
        for name in named:
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {name} = '1min'".encode())
    with alone(database, "sheets") as session:
        assert {session.connection.execute(f"SHOW {name}".encode()).fetchone() for name in named} == {("0",)}


def test_the_server_soon_misses_who_has_lost_the_network(database: str) -> None:
    """By default it would keep the session, and its locks, for two hours. It says 0 of all for who comes by a socket file."""
    asked = "SELECT " + ", ".join(
        f"current_setting('{name}')"
        for name in ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    )
    with closing(connect(database, "1", "worker")) as connection:
        assert connection.info.host.startswith("127.")
        assert connection.execute(asked.encode()).fetchone() == ("5", "5", "2", "15000")
