"""Schema files on a real Postgres: each once, those of a pipeline in its own order, and never one that was changed."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured, Refused
from onefold.spark_sink.contracts import ENGINE_SQL
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.postgres.schema import _MIGRATION_LOCK, ENGINE, KNOWN_VERSION, migrate
from tests.support.coded import raises
from tests.support.landing import Landed, Sink, once
from tests.support.made_up_domain import MadeUp
from tests.support.migrated import migrate_all
from tests.support.waiting import eventually

Reader = psycopg.Connection[Any]


def files(root: Path, pipeline: str) -> list[str]:
    return sorted(path.name for path in (root / "schema").glob(f"{pipeline}.*.sql"))


def test_sinks_that_start_at_once_migrate_once(plan: Plan, made_up: MadeUp, database: str) -> None:
    done: list[list[str]] = []
    crowd = [threading.Thread(target=lambda: done.append(migrate_all(database, plan.sql_root))) for _ in range(4)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(30)

    # Each may find the engine's done and the pipeline's not: but nothing is done twice, and nothing is left.
    assert sorted(file for mine in done for file in mine) == sorted(
        [*files(ENGINE_SQL, ENGINE), *files(plan.sql_root, made_up.name)]
    )
    assert len(done) == 4


def test_processes_that_start_at_once_migrate_once(
    plan: Plan, made_up: MadeUp, database: str, checkout: Path, reader: Reader
) -> None:
    """As two sinks are: nothing of Python's is shared. Both are held where only one may go on, and then let go."""
    script = f"from tests.support.migrated import *; print(*migrate_all({database!r}, Path({str(plan.sql_root)!r})))"
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    reader.execute("SELECT pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
    both = [
        subprocess.Popen([sys.executable, "-c", script], cwd=checkout, stdout=subprocess.PIPE, encoding="utf-8")
        for _ in range(2)
    ]
    try:
        eventually(lambda: reader.execute(waiting).fetchone() == (2,), 15, "both wait for their turn")
    finally:
        reader.execute("SELECT pg_advisory_unlock(%s)", (_MIGRATION_LOCK,))
        said = [one.communicate(timeout=60)[0].split() for one in both]

    assert [one.returncode for one in both] == [0, 0]
    assert sorted([*said[0], *said[1]]) == sorted([*files(ENGINE_SQL, ENGINE), *files(plan.sql_root, made_up.name)])


def test_a_file_is_its_pipelines_own(plan: Plan, made_up: MadeUp, database: str, reader: Reader) -> None:
    """Another pipeline's is left alone, whatever it is called, and each is entered under its pipeline."""
    schema = plan.sql_root / "schema"
    (schema / f"{made_up.name}2.01.sql").write_text("-- Another's.\nSELECT 1/0;", encoding="utf-8")
    (schema / "another.01.sql").write_text(
        (schema / f"{made_up.name}.01.sql").read_text(encoding="utf-8").replace(made_up.name, "another"),
        encoding="utf-8",
    )
    assert migrate(database, ENGINE, ENGINE_SQL) == files(ENGINE_SQL, ENGINE)
    assert migrate(database, made_up.name, plan.sql_root) == [f"{made_up.name}.01.sql"]
    assert migrate(database, "another", plan.sql_root) == ["another.01.sql"]

    found = reader.execute("SELECT pipeline, file FROM onefold.applied WHERE pipeline <> %s", (ENGINE,)).fetchall()
    assert sorted(found) == sorted([(made_up.name, f"{made_up.name}.01.sql"), ("another", "another.01.sql")])


def test_files_are_applied_in_order_of_name(plan: Plan, made_up: MadeUp, database: str) -> None:
    schema = plan.sql_root / "schema"
    (schema / f"{made_up.name}.03.sql").write_text(
        f"-- Needs the second.\nSELECT more FROM {made_up.name}.notes;", encoding="utf-8"
    )
    (schema / f"{made_up.name}.02.more.sql").write_text(
        f"-- More.\nALTER TABLE {made_up.name}.notes ADD more text;", encoding="utf-8"
    )

    assert migrate(database, made_up.name, plan.sql_root) == [
        f"{made_up.name}.{rest}.sql" for rest in ("01", "02.more", "03")
    ]


def test_a_file_that_was_changed_after_it_was_applied_is_named(plan: Plan, made_up: MadeUp, database: str) -> None:
    """And nothing after it is applied."""
    migrate_all(database, plan.sql_root)
    file = plan.sql_root / f"schema/{made_up.name}.01.sql"
    file.write_text(file.read_text(encoding="utf-8") + "-- one more thing\n", encoding="utf-8")
    (plan.sql_root / f"schema/{made_up.name}.02.sql").write_text("-- Later.\nSELECT 1;", encoding="utf-8")
    with raises(Misconfigured, Code.SQL_CHANGED, f"{made_up.name}.01.sql"):
        migrate(database, made_up.name, plan.sql_root)
    with pytest.raises(Misconfigured, match=f"{made_up.name}.01.sql"):
        migrate(database, made_up.name, plan.sql_root)
    assert migrate(database, ENGINE, ENGINE_SQL) == [], "another pipeline is not held up"


def test_a_file_that_says_nobodys_name_is_refused(plan: Plan, made_up: MadeUp, database: str) -> None:
    """It would never be applied, and nobody would know."""
    (plan.sql_root / "schema/90_parcels.sql").write_text("-- As 0.1.0 had them.\nSELECT 1;", encoding="utf-8")
    with raises(Misconfigured, Code.SQL_WRONG, "90_parcels.sql"):
        migrate(database, made_up.name, plan.sql_root)


def test_a_migration_that_fails_leaves_nothing_behind(plan: Plan, made_up: MadeUp, database: str) -> None:
    file = plan.sql_root / f"schema/{made_up.name}.01.sql"
    good = file.read_text(encoding="utf-8")
    file.write_text(good + "SELECT 1/0;", encoding="utf-8")
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate_all(database, plan.sql_root)
    file.write_text(good, encoding="utf-8")
    assert migrate_all(database, plan.sql_root) == [file.name]


def test_a_column_is_added_under_a_view_and_under_a_sink_that_lands(
    sink: Sink, plan: Plan, made_up: MadeUp, database: str, reader: Reader, landed: Landed
) -> None:
    """In place: the rows stay, the view goes on, and so does a sink that was there before."""
    reader.execute(f"CREATE VIEW {made_up.name}.seen AS SELECT * FROM {made_up.name}.notes")
    sink.land(100, 103)
    (plan.sql_root / f"schema/{made_up.name}.02.sql").write_text(
        f"-- Who looked at it.\nALTER TABLE {made_up.name}.notes ADD reader text NOT NULL DEFAULT 'nobody';",
        encoding="utf-8",
    )
    assert migrate_all(database, plan.sql_root) == [f"{made_up.name}.02.sql"]
    sink.land(103, 105)

    assert landed() == once(100, 105)
    assert reader.execute(f"SELECT id FROM {made_up.name}.seen ORDER BY id").fetchall() == [
        (n,) for n in range(100, 105)
    ]
    assert reader.execute(f"SELECT DISTINCT reader FROM {made_up.name}.notes").fetchall() == [("nobody",)]
    assert migrate_all(database, plan.sql_root) == []


def test_the_tables_of_a_newer_release_are_refused(plan: Plan, made_up: MadeUp, database: str, reader: Reader) -> None:
    """Before anything is done to them."""
    migrate(database, ENGINE, ENGINE_SQL)
    reader.execute("UPDATE onefold.version SET number = %s", (KNOWN_VERSION + 1,))
    for pipeline, root in ((ENGINE, ENGINE_SQL), (made_up.name, plan.sql_root)):
        with pytest.raises(Refused) as refusal:
            migrate(database, pipeline, root)
        assert refusal.value.exit_code == 3
        assert str(refusal.value) == (
            f"a newer Onefold has made version {KNOWN_VERSION + 1} of the tables in the schema onefold, and this one knows "
            f"versions up to {KNOWN_VERSION}: start the newer one again. See `onefold docs upgrade`"
        )
    assert reader.execute("SELECT to_regnamespace(%s)", (made_up.name,)).fetchone() == (None,)


def test_a_new_database_has_a_version_that_older_sinks_know(plan: Plan, database: str, reader: Reader) -> None:
    """The second one begins with the first decision log that is landed: until then the way back is open."""
    migrate(database, ENGINE, ENGINE_SQL)
    assert reader.execute("SELECT number FROM onefold.version").fetchall() == [(KNOWN_VERSION - 1,)]
