"""What a role, a database, an environment or a connection string sets, and what every service's session has all the same."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onefold import postgres
from onefold.cli.main import run
from onefold.dashboard.reader import Reader, connect_blocking
from onefold.exit_codes import REFUSED, UNKNOWN, USAGE
from onefold.jobs.pending import PostgresPending
from onefold.jobs.protocols import Job, Place
from onefold.operate import verdicts
from onefold.operate.explain import rows
from onefold.operate.rebuild import rebuild
from onefold.operate.rebuild.table_diff import described
from onefold.postgres import keeps
from onefold.processor.core.topology import Topology
from onefold.spark_sink.postgres.connection import connect
from onefold.verify.snapshot import Snapshot
from onefold.verify.verdict import VALID, CannotTell, Verdict
from tests.support.migrated import migrate_all
from tests.support.proxy import PoolerProxy
from tests.support.site import ROOT

pytestmark = pytest.mark.promise("sessions-of-postgresql")

# Each is legal for a role, a database and a session. All of them together are no database that anybody has.
HOSTILE = {
    "client_encoding": "LATIN1",
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kolkata",
    "extra_float_digits": "-3",
    "bytea_output": "escape",
    "search_path": "nowhere",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "quote_all_identifiers": "on",
    "transform_null_equals": "on",
    "row_security": "off",
    "idle_session_timeout": "1s",
    "statement_timeout": "1ms",
}
TEXT = "Müller €"
AT = datetime(2026, 3, 29, 2, 30, 0, 123456, tzinfo=UTC)
ROW = ("U-1", TEXT, AT, date(2026, 2, 1), 0.30000000000000004, b"\x00\xff\\", timedelta(days=1, seconds=90))
TEXTS = (
    "U-1",
    TEXT,
    "2026-03-29 02:30:00.123456+00",
    "2026-02-01",
    "0.30000000000000004",
    r"\x00ff5c",
    "1 day 00:01:30",
)
COLUMNS = ("id", "customer", "at", "day", "amount", "raw", "span")
# Lines as executors make them: CSV in UTF-8.
LINE = f'U-1,"{TEXT}",2026-03-29 02:30:00.123456+00,2026-02-01,0.30000000000000004,\\x00ff5c,1 day 00:01:30\n'
JOB = Job("shop.bills", TEXT, Place(0, 1), {"customer": TEXT})

Hostile = Callable[[str, str], str]


@pytest.fixture
def owner(database: str) -> Iterator[str]:
    """The database of this test, by a role of its own, whose settings are nobody else's."""
    name = conninfo_to_dict(database)["dbname"]
    role = sql.Identifier(f"owner_{name}")
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEDB PASSWORD 'secret'").format(role))
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(str(name)), role))
    yield make_conninfo(database, user=f"owner_{name}", password="secret")
    with psycopg.connect(
        database, autocommit=True, options="-c default_transaction_read_only=off -c statement_timeout=0"
    ) as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO CURRENT_USER").format(sql.Identifier(str(name))))
        admin.execute(sql.SQL("DROP OWNED BY {}").format(role))
        admin.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.fixture
def hostile(owner: str, database: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes all those settings in one place; returns the connection string."""

    def make(place: str) -> str:
        options = " ".join(f"-c {name}={value}" for name, value in HOSTILE.items())
        if place == "connection string":
            return make_conninfo(owner, options=options)
        if place == "environment":
            monkeypatch.setenv("PGOPTIONS", options)
            monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
            monkeypatch.setenv("PGDATESTYLE", "German")
            monkeypatch.setenv("PGTZ", "Asia/Kolkata")
            return owner
        given = conninfo_to_dict(owner)
        whose = sql.Identifier(str(given["user" if place == "ROLE" else "dbname"]))
        with psycopg.connect(database, autocommit=True) as admin:
            for name, value in HOSTILE.items():
                altered = sql.SQL(f"ALTER {place} {{}} SET {name} = {{}}")
                admin.execute(altered.format(whose, value))
        return owner

    return make


def write(dsn: str) -> None:
    """As a sink does: bytes that are UTF-8 already."""
    with closing(connect(dsn, "one")) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute(
            "CREATE TABLE shop.bills (id text PRIMARY KEY, customer text, at timestamptz, day date,"
            " amount double precision, raw bytea, span interval)"
        )
        with connection.cursor() as cursor, cursor.copy("COPY shop.bills FROM STDIN (FORMAT csv)") as copy:
            copy.write(LINE.encode())


PLACES = ("ROLE", "DATABASE", "environment", "connection string")


@pytest.mark.parametrize("place", PLACES)
def test_every_service_writes_and_reads_the_same_whatever_is_set_elsewhere(
    hostile: Callable[[str], str], database: str, place: str
) -> None:
    dsn = hostile(place)
    migrate_all(dsn, ROOT / "sql")
    write(dsn)

    with Snapshot(dsn) as snapshot:
        assert list(snapshot.rows("shop.bills", COLUMNS)) == [ROW]
    with rows.reading(dsn) as connection:
        found = rows.find(connection, "shop", "bills", {"id": "U-1"})
    assert found.values == dict(zip(COLUMNS, TEXTS, strict=True))
    with closing(connect_blocking(dsn)) as connection:
        assert connection.execute("SELECT * FROM shop.bills").fetchall() == [ROW]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("DELETE FROM shop.bills")
    assert asyncio.run(_on_the_page(dsn)) == [ROW]
    with closing(connect(dsn, "one")) as connection:
        assert described(connection, "shop.bills").name == "shop.bills"
    assert verdicts.keep(Verdict("shop", VALID, TEXT), dsn) == ""
    pending = PostgresPending(dsn, "one", "shop")
    pending.add(JOB)
    kept = pending.find(JOB)
    pending.close()
    assert kept is not None
    assert kept.job == JOB
    with psycopg.connect(database, options="-c DateStyle=ISO -c statement_timeout=0", client_encoding="UTF8") as plain:
        (told,) = plain.execute("SELECT reason FROM onefold.verdict").fetchone() or ("",)
        (customer,) = plain.execute("SELECT customer FROM shop.bills").fetchone() or ("",)
    assert (told, customer) == (TEXT, TEXT)


async def _on_the_page(dsn: str) -> list[tuple[Any, ...]]:
    reader = Reader(dsn)
    try:
        async with reader.snapshot() as connection:
            return await (await connection.execute("SELECT * FROM shop.bills")).fetchall()
    finally:
        await reader.close()


def test_what_a_connection_string_sets_beside_ours_is_kept(database: str) -> None:
    with closing(postgres.connect(make_conninfo(database, options="-c jit=off -c work_mem=5MB"), "test")) as session:
        assert session.execute("SELECT current_setting('work_mem'), current_setting('jit')").fetchone() == (
            "5MB",
            "off",
        )


def test_a_login_trigger_does_not_change_a_session(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL 17 runs one at the start of each session, behind everything that the start has set."""
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION german() RETURNS event_trigger LANGUAGE plpgsql AS"
            " $$ BEGIN SET datestyle = 'German'; SET client_encoding = 'LATIN1'; END $$"
        )
        admin.execute("CREATE EVENT TRIGGER german ON login EXECUTE FUNCTION german()")
    with closing(postgres.connect(database, "test")) as session:
        assert session.execute("SELECT current_setting('datestyle'), DATE '2026-02-01', %s", (TEXT,)).fetchone() == (
            "ISO, MDY",
            date(2026, 2, 1),
            TEXT,
        )


def test_a_time_limit_of_the_role_does_not_hide_what_keeps_a_statement(owner: str) -> None:
    """The look at another session is a statement, too."""
    with psycopg.connect(owner, autocommit=True) as session:
        session.execute("ALTER ROLE CURRENT_USER SET statement_timeout = '1ms'")
        assert [keeps(owner, session.info.backend_pid) for _ in range(5)] == [None] * 5, "it does nothing"


@pytest.fixture
def hidden(owner: str) -> str:
    """A policy hides a row from the owner of its table."""
    write(owner)
    with psycopg.connect(owner) as session:
        session.execute("ALTER TABLE shop.bills ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        session.execute("CREATE POLICY others ON shop.bills USING (id <> 'U-1')")
    return owner


def test_rows_that_a_policy_hides_from_verify_are_no_verdict(hidden: str) -> None:
    with Snapshot(hidden) as snapshot, pytest.raises(CannotTell, match="by row-level security policy"):
        list(snapshot.rows("shop.bills", COLUMNS))
    with Snapshot(hidden) as snapshot, pytest.raises(CannotTell, match="by row-level security policy"):
        snapshot.count("shop.bills")


def test_rows_that_a_policy_hides_from_rebuild_are_not_inserted_again(hidden: str) -> None:
    """It sees the whole table, or changes nothing."""
    with (
        rebuild._postgres(hidden) as session,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"),
    ):
        session.execute("SELECT count(*) FROM shop.bills")


@pytest.fixture(params=["SQL_ASCII", "LATIN1"])
def other_encoding(request: pytest.FixtureRequest, database: str) -> Iterator[tuple[str, str]]:
    """A database whose texts are in another encoding: its connection string, and which."""
    name = f"{conninfo_to_dict(database)['dbname']}_other"
    with psycopg.connect(database, autocommit=True) as admin:
        made = "CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE_PROVIDER libc LOCALE 'C'"
        admin.execute(sql.SQL(made).format(sql.Identifier(name), request.param))
    yield make_conninfo(database, dbname=name), request.param
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


COMMANDS = (
    ("migrate",),
    ("verify", "runner", "--timeout", "1"),
    ("explain", "runner.heats", "id=1"),
    ("contracts", "runner"),
    ("rebuild", "runner", "--dry-run"),
    ("reset", "runner", "--yes"),
)


@pytest.mark.promise("refused-databases")
def test_commands_refuse_a_database_that_does_not_hold_every_text(
    other_encoding: tuple[str, str],
    bootstrap_servers: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dsn, encoding = other_encoding
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", dsn)
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", bootstrap_servers)
    for words in COMMANDS:
        code = run(words)
        told = capsys.readouterr()
        assert code == USAGE, (words, told)
        assert f"has the encoding {encoding}" in told.err + told.out, words
        assert "does not answer" not in told.err + told.out, words
        assert "Traceback" not in told.err, words


@pytest.mark.parametrize("changed", [{"password": "wrong"}, {"user": "nobody_of_this_name"}])
def test_commands_name_a_login_that_postgresql_refuses(
    changed: dict[str, str],
    database: str,
    bootstrap_servers: str,
    fresh_domain: Callable[..., Topology],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 3, as for Kafka's. `verify` has no verdict then, and ends with 2."""
    fresh_domain("runner")
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", make_conninfo(database, **changed))
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", bootstrap_servers)
    more = (
        ("status",),
        ("check", "runner", "--servers"),
        ("grants", "--apply"),
        ("jobs", "requeue", "sheets", "--since", "1h"),
    )
    for words in (*COMMANDS, *more, ("sheets", "open", "a")):
        code = run(words)
        told = capsys.readouterr()
        assert code == (UNKNOWN if words[0] == "verify" else REFUSED), (words, told)
        assert "password authentication failed for user" in told.err + told.out, words
        assert ("OF-316" in told.err) == (words[0] not in ("verify", "check")), words
        assert "Traceback" not in told.err, words


def test_a_server_that_is_away_or_starts_has_refused_no_login(database: str) -> None:
    with pytest.raises(psycopg.OperationalError) as away:
        postgres.connect(make_conninfo(database, port=1), "test")
    assert not isinstance(away.value, postgres.NoLogin)
    full = psycopg.OperationalError("connection failed: FATAL:  sorry, too many clients already")
    with pytest.raises(psycopg.OperationalError) as told, postgres._naming_the_reason(database):
        raise full
    assert told.value is full


@pytest.mark.promise("refused-databases")
def test_a_pooler_that_drops_the_settings_of_a_session_is_refused_by_name(database: str) -> None:
    proxy = PoolerProxy(database)
    with pytest.raises(postgres.Unfit, match="a connection pooler such as PgBouncer"):
        postgres.connect(proxy.dsn, "test")
    with pytest.raises(postgres.Unfit, match="a connection pooler such as PgBouncer"):
        asyncio.run(postgres.connect_async(proxy.dsn, "test"))
    proxy.close()


def test_a_pooler_that_is_refused_keeps_the_settings_of_its_session(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes to other clients next."""
    monkeypatch.setattr(postgres, "_check", lambda *found: None)
    proxy = PoolerProxy(database)
    with closing(postgres.connect(proxy.dsn, "test", settings={"statement_timeout": "7s"})) as session:
        assert session.execute("SHOW statement_timeout").fetchone() == ("0",)
    proxy.close()
    with closing(postgres.connect(database, "test", settings={"statement_timeout": "7s"})) as session:
        assert session.execute("SHOW statement_timeout").fetchone() == ("7s",)
