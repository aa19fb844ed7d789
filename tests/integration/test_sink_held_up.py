"""A sink with a real broker, a real Postgres and a real Spark, whose database keeps it waiting or cannot be used."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onefold import postgres
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.spark.query import SinkQuery
from tests.support.coded import raises
from tests.support.made_up_domain import MadeUp
from tests.support.proxy import PoolerProxy
from tests.support.sink import LANDED_IN_S
from tests.support.standby import standby_gone
from tests.support.waiting import eventually

pytestmark = [pytest.mark.usefixtures("made_up_topics"), pytest.mark.promise("held-up-statements")]
MakeQuery = Callable[..., SinkQuery]


@pytest.fixture
def latin(database: str) -> Iterator[str]:
    """A database in LATIN1."""
    name = f"{conninfo_to_dict(database)['dbname']}_latin"
    with psycopg.connect(database, autocommit=True) as admin:
        made = "CREATE DATABASE {} TEMPLATE template0 ENCODING LATIN1 LOCALE_PROVIDER libc LOCALE 'C'"
        admin.execute(sql.SQL(made).format(sql.Identifier(name)))
    yield make_conninfo(database, dbname=name)
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_a_commit_that_waits_for_a_standby_is_said_and_lands_once_when_it_is_back(
    made_up: MadeUp,
    query: MakeQuery,
    until_landed: Callable[..., None],
    reader: psycopg.Connection[Any],
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres, "_LOOK_S", 0.5)
    said: list[tuple[str, str]] = []
    one = query(held=lambda name, sentence: said.append((name, sentence)))
    one.start()
    with standby_gone(database):
        made_up.send(range(30))
        eventually(lambda: said, LANDED_IN_S, "the query says what it waits for")
        assert said[0][0] == made_up.name
        assert said[0][1].startswith("COMMIT waits for a synchronous standby (wait event SyncRep)")
        assert one.failure() is None
    until_landed(one)
    made_up.check(reader)
    assert said[-1] == (made_up.name, "")


def test_a_sink_starts_while_the_standby_is_gone(
    made_up: MadeUp,
    query: MakeQuery,
    until_landed: Callable[..., None],
    reader: psycopg.Connection[Any],
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it stages is lost with the server anyway, and waits for no standby."""
    made_up.send(range(10))
    until_landed(query())
    monkeypatch.setattr(postgres, "_LOOK_S", 0.5)
    said: list[str] = []
    one = query(held=lambda name, sentence: said.append(sentence))
    with standby_gone(database):
        made_up.send(range(10, 20))
        one.start()
        eventually(lambda: said, LANDED_IN_S, "the query says what it waits for")
    until_landed(one)
    made_up.check(reader)


@pytest.mark.promise("refused-databases")
def test_a_query_refuses_a_database_that_does_not_hold_every_text(query: MakeQuery, latin: str) -> None:
    with raises(Misconfigured, Code.POSTGRES_UNFIT, "LATIN1"):
        query(postgres_dsn=latin).start()


def test_a_query_refuses_a_pooler_by_name(query: MakeQuery, database: str) -> None:
    proxy = PoolerProxy(database)
    with raises(Misconfigured, Code.POSTGRES_UNFIT, "PgBouncer"):
        query(postgres_dsn=proxy.dsn).start()
    proxy.close()
