"""Statements that others hold up, or whose answers do not come: said, and given up when it is time."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onefold import postgres
from onefold.cli.commands import verify
from onefold.cli.main import run
from onefold.exit_codes import OK
from onefold.operate import verdicts
from onefold.verify.snapshot import DatabaseSnapshot
from onefold.verify.verdict import VALID, CannotTell, Verdict
from tests.support.migrated import migrate_all
from tests.support.proxy import FreezingProxy
from tests.support.site import ROOT
from tests.support.standby import standby_gone
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("held-up-statements")

# Beyond its patience a session asks the server twice, with connections that may take 3 s each, on a busy machine.
SOON_S = 15.0


@pytest.fixture
def table(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    return database


@pytest.fixture
def locked(table: str) -> Iterator[str]:
    """Somebody alters the table, and does not come to an end."""
    with psycopg.connect(table, application_name="a careful DBA") as other:
        other.execute("ALTER TABLE orders ADD COLUMN cents integer")
        yield table


def insert(session: postgres.WatchedSession) -> None:
    session.execute("BEGIN")
    session.execute("INSERT INTO orders VALUES (1)")
    session.execute("COMMIT")


def raised(error: type[Exception], session: postgres.WatchedSession, statement: str) -> tuple[str, float]:
    began = time.monotonic()
    with pytest.raises(error) as found:
        session.execute(statement)
    return str(found.value), time.monotonic() - began


def test_a_commit_that_waits_for_a_standby_is_named_and_given_up(table: str) -> None:
    with standby_gone(table), closing(postgres.connect(table, "test", patience_s=1)) as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO orders VALUES (1)")
        text, seconds = raised(postgres.HeldUp, session, "COMMIT")
    assert text.startswith("COMMIT waits for a synchronous standby (wait event SyncRep) for")
    assert "synchronous_standby_names = 'gone'" in text
    assert seconds < SOON_S


def test_a_statement_that_commits_by_itself_is_named_too(table: str) -> None:
    with standby_gone(table), closing(postgres.connect(table, "test", patience_s=1)) as session:
        text, _ = raised(postgres.HeldUp, session, "INSERT INTO orders VALUES (1)")
    assert text.startswith("INSERT waits for a synchronous standby (wait event SyncRep)")


def test_whoever_has_to_wait_says_so_until_the_standby_is_back(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_LOOK_S", 0.3)
    said: list[str] = []
    with closing(postgres.connect(table, "test", patience_s=None, held=said.append)) as session:
        committing = threading.Thread(target=insert, args=(session,), daemon=True)
        with standby_gone(table):
            committing.start()
            eventually(lambda: len(said) >= 2, 20, "it is said, and said again")
            assert committing.is_alive()
        committing.join(20)
        assert said[-1] == ""
        assert all("wait event SyncRep" in sentence for sentence in said[:-1])
        assert session.execute("SELECT id FROM orders").fetchall() == [(1,)]


def test_a_lock_is_named_with_who_holds_it(locked: str) -> None:
    with closing(postgres.connect(locked, "test", patience_s=1)) as session:
        text, seconds = raised(postgres.HeldUp, session, "-- what a merge begins with\nINSERT INTO orders VALUES (1)")
    assert "INSERT waits for a lock that process" in text
    assert "(a careful DBA) holds (wait event relation)" in text
    assert seconds < SOON_S


def test_a_commit_whose_deferred_trigger_sleeps_is_named(table: str) -> None:
    with psycopg.connect(table, autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep_for('1 min'); RETURN NULL; END $$"
        )
        admin.execute(
            "CREATE CONSTRAINT TRIGGER pauses AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION pause()"
        )
    with closing(postgres.connect(table, "test", patience_s=1)) as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO orders VALUES (1)")
        text, _ = raised(postgres.HeldUp, session, "COMMIT")
    assert text.startswith("COMMIT waits (wait event PgSleep)")


def test_a_statement_that_the_server_works_at_is_waited_for(table: str) -> None:
    with closing(postgres.connect(table, "test", patience_s=0.3)) as session:
        session.execute(
            "DO $$ BEGIN WHILE clock_timestamp() < statement_timestamp() + interval '1.5 s' LOOP END LOOP; END $$"
        )
        assert session.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.long  # 8 s
def test_a_network_that_swallows_everything_is_given_up(table: str) -> None:
    parts = conninfo_to_dict(table)
    proxy = FreezingProxy(str(parts["host"]), int(parts["port"] or 0))
    through = make_conninfo(table, port=proxy.port, sslmode="disable", gssencmode="disable")
    with closing(postgres.connect(through, "test", patience_s=1)) as session:
        proxy.passes.clear()
        text, seconds = raised(psycopg.OperationalError, session, "SELECT 1")
    proxy.close()
    assert text.startswith("PostgreSQL does not answer any more")
    assert seconds < SOON_S


def test_the_judge_cannot_tell_while_a_table_is_locked(locked: str) -> None:
    with DatabaseSnapshot(locked, patience_s=1) as snapshot, pytest.raises(CannotTell, match="a careful DBA"):
        list(snapshot.rows("orders", ("id",)))


def test_a_verdict_is_noted_while_the_standby_is_gone(database: str) -> None:
    migrate_all(database, ROOT / "sql")
    began = time.monotonic()
    with standby_gone(database):
        assert verdicts.keep(Verdict("shop", VALID, "a reason"), database) == ""
    assert time.monotonic() - began < SOON_S
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT outcome FROM onefold.verdict").fetchone() == (VALID,)


@pytest.mark.promise("verdict-before-its-note")
def test_a_verdict_that_cannot_be_noted_costs_a_warning(database: str) -> None:
    migrate_all(database, ROOT / "sql")
    with psycopg.connect(database, application_name="a careful DBA") as other:
        other.execute("LOCK TABLE onefold.verdict")
        problem = verdicts.keep(Verdict("shop", VALID, "a reason"), database, patience_s=1.0)
    assert problem.startswith("the verdict was not kept for the dashboard: INSERT waits for a lock")
    assert "a careful DBA" in problem


@pytest.mark.promise("verdict-before-its-note")
def test_a_verdict_is_printed_before_it_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []

    def keep(verdict: Verdict, dsn: str) -> str:
        printed.append(capsys.readouterr().out)
        return "the verdict was not kept for the dashboard: it snows"

    monkeypatch.setattr(verdicts, "keep", keep)
    monkeypatch.setattr(verify, "judge", lambda *given: (Verdict("runner", VALID, "all is well"), ""))
    assert run(("verify", "runner")) == OK
    assert "runner: valid" in printed[0]
    assert "it snows" in capsys.readouterr().err
