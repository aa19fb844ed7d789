"""The tables that a merge writes, by its text and by PostgreSQL's own plan."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED
from onefold.operate import merge_sql, pipelines
from onefold.operate.reset import empty_tables
from onefold.pipelines import find
from onefold.spark_sink.contracts import load_domain
from tests.support.migrated import migrate_all

_SCHEMA = """
CREATE SCHEMA s;
CREATE SCHEMA "S two";
CREATE TABLE s.t (id bigint PRIMARY KEY, n bigint, delete bigint, update bigint);
CREATE TABLE s.other (id bigint PRIMARY KEY, n bigint);
CREATE TABLE public.plain (id bigint PRIMARY KEY, n bigint);
CREATE TABLE "S two"."T.""1" (id bigint PRIMARY KEY, n bigint);
CREATE TABLE s."insert" (id bigint, n bigint);
CREATE TABLE s.parted (id bigint, n bigint) PARTITION BY RANGE (id);
CREATE TABLE s.low PARTITION OF s.parted FOR VALUES FROM (0) TO (9);
CREATE TABLE s.high PARTITION OF s.parted FOR VALUES FROM (9) TO (99);
CREATE TABLE s.parent (id bigint, n bigint);
CREATE TABLE s.child () INHERITS (s.parent);
CREATE TABLE s.notes (delete text, plain text);
CREATE FUNCTION s.add(id bigint) RETURNS void LANGUAGE sql AS 'INSERT INTO s.other VALUES (id, 1)';
"""
_STAGE = "(SELECT NULL::bigint AS id, NULL::bigint AS n)"
#: One statement each: EXPLAIN takes no more.
STATEMENTS = [
    "INSERT INTO s.t AS held SELECT id, n FROM :stage AS x ON CONFLICT (id) DO UPDATE SET n = held.n + 1",
    "INSERT INTO s.t SELECT id, n FROM :stage AS x ON CONFLICT DO NOTHING",
    "insert\ninto\tS.T (id, n) values (1, 2)",
    "INSERT INTO plain SELECT id, n FROM :stage AS x",
    'INSERT INTO "S two"."T.""1" SELECT id, n FROM :stage AS x',
    'INSERT INTO s . "t" SELECT id, n FROM :stage AS x',
    'INSERT INTO s."insert" SELECT id, n FROM :stage AS x',
    "UPDATE s.t SET n = x.n FROM :stage AS x WHERE x.id = t.id",
    "UPDATE ONLY s.parent AS p SET n = 1",
    "UPDATE ONLY (s.parent) SET n = 1",
    "UPDATE s.t * SET update = 1",
    "UPDATE s.parted SET n = 1",
    "INSERT INTO s.parted SELECT id, n FROM :stage AS x",
    "INSERT INTO s.low VALUES (1, 2)",
    "DELETE FROM s.t USING :stage AS x WHERE x.id = t.id",
    "DELETE FROM ONLY s.parent",
    "DELETE FROM s.parted",
    (
        "MERGE INTO s.t AS t USING :stage AS x ON x.id = t.id WHEN MATCHED AND x.n IS NULL THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET n = x.n WHEN NOT MATCHED THEN INSERT (id) VALUES (x.id)"
    ),
    (
        "WITH a AS (INSERT INTO s.t SELECT id, n FROM :stage AS x RETURNING id), b AS MATERIALIZED (DELETE FROM s.other)"
        " UPDATE plain SET n = 1 FROM a WHERE a.id = plain.id"
    ),
    "WITH a AS (DELETE FROM s.t RETURNING id) SELECT count(*) FROM a",
    (
        "WITH RECURSIVE insert AS (SELECT 1 AS id), update (delete) AS NOT MATERIALIZED (SELECT id FROM insert)"
        " INSERT INTO s.t SELECT delete FROM update"
    ),
    (
        "WITH a AS (SELECT (SELECT delete FROM s.other AS o WHERE o.id = t.id) AS n, count(*) update FROM s.t GROUP BY id)"
        " INSERT INTO plain (n) SELECT a.n FROM a"
    ),
    "INSERT INTO s.t SELECT id, n FROM s.other FOR UPDATE OF other",
    "INSERT INTO s.t SELECT update.id, (delete) FROM s.t AS update",
    "SELECT delete FROM s.t",
    "SELECT update FROM s.t",
    "SELECT (delete), substring('a' FROM 1) FROM s.t",
    "SELECT trim(delete FROM plain) FROM s.notes",
    "SELECT count(*) delete FROM s.other",
    "WITH a AS (SELECT 1) SELECT count(*) delete FROM a",
    "-- INSERT INTO s.other\nINSERT INTO s.t -- DELETE FROM plain\n SELECT id, n FROM :stage AS x",
    "/* DELETE FROM s.other; /* nested */ DELETE FROM plain */ INSERT/**/INTO/*--*/s.t SELECT id, n FROM :stage AS x",
    "INSERT INTO s.t SELECT length('; DELETE FROM s.other; ''DELETE FROM plain'), 2",
    r"INSERT INTO s.t SELECT length(E'\'; DELETE FROM s.other; '), 2",
    "INSERT INTO s.t SELECT length($$; DELETE FROM s.other; '$$), length($a$ $$; DELETE FROM plain; $a$)",
]
#: What neither sees: the function writes to s.other.
STATEMENTS += ["SELECT s.add(id) FROM :stage AS x", "INSERT INTO s.t SELECT 1 FROM s.add(1)"]
#: The columns that Spark makes for the reductions of the examples, beside the origin.
REDUCED = {
    "trades.deltas.current": {
        "trade_id": "text", "version": "bigint", "traded_at": "bigint", "risk_type": "text", "region": "text",
        "trade_desk": "text", "value": "numeric",
    },
    "trades.deltas.landed": {"sent_at": "bigint", "messages": "bigint"},
    "trades.deltas.risk": {
        "risk_type": "text", "region": "text", "trade_desk": "text", "value": "numeric", "trades": "bigint",
    },
}  # fmt: skip
ORIGIN = (("topic", "text"), ("partition", "integer"), ("offset", "bigint"))


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as made:
        made.execute(_SCHEMA.encode())
        made.execute("ALTER TABLE s.other ADD COLUMN delete bigint")
        yield made


def planned(connection: psycopg.Connection[Any], statement: str) -> set[tuple[str, str]]:
    """(schema, name) of the tables of all ModifyTable nodes."""
    (plan,) = connection.execute(f"EXPLAIN (FORMAT JSON, VERBOSE) {statement}".encode()).fetchone() or ([],)
    nodes, found = [one["Plan"] for one in plan], set()
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        if node["Node Type"] == "ModifyTable":
            found.add((node["Schema"], node["Relation Name"]))
    return found


def named(connection: psycopg.Connection[Any], statement: str) -> set[tuple[str, str]]:
    """(schema, name) of the tables that the text names, as PostgreSQL finds them."""
    asked = "SELECT relnamespace::regnamespace::text, relname FROM pg_class WHERE oid = %s::regclass"
    found = [connection.execute(asked, (name,)).fetchone() for name in merge_sql.tables(statement)]
    return {(schema.strip('"'), name) for schema, name in filter(None, found)}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_text_and_plan_name_the_same_tables(connection: psycopg.Connection[Any], statement: str) -> None:
    assert named(connection, statement) == planned(connection, statement.replace(":stage", _STAGE))


def test_several_statements_of_one_text(connection: psycopg.Connection[Any]) -> None:
    text = "DELETE FROM s.t; ; SELECT 1; WITH a AS (SELECT 1) INSERT INTO plain SELECT 1, 2 FROM a; UPDATE s.other SET n = 1"
    assert [*merge_sql.tables(text)] == ["s.t", "plain", "s.other"]


def test_merges_of_the_examples(database: str, checkout: Path) -> None:
    migrate_all(database, checkout / "sql")
    with psycopg.connect(database, autocommit=True) as connection:
        for pipeline in find().pipelines.values():
            targets = load_domain(pipeline.name, pipeline.contracts, pipeline.sql).targets
            for file in (pipeline.sql / "merge").glob(f"{pipeline.name}.*.sql"):
                columns = targets[file.stem].columns if file.stem in targets else None
                known = (
                    [(one.name, one.postgres_type) for one in columns]
                    if columns
                    else [*REDUCED[file.stem].items(), *ORIGIN]
                )
                stage = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in known)
                text = file.read_text(encoding="utf-8")
                tables = planned(connection, text.replace(":stage", f"(SELECT {stage})"))
                assert named(connection, text) == tables != set(), file


def test_a_view_cannot_be_emptied(
    connection: psycopg.Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows behind it would stay, and be written once more."""
    connection.execute("CREATE VIEW s.seen AS SELECT id, n FROM s.t")
    (tmp_path / "merge").mkdir()
    file = tmp_path / "merge" / "campaigns.totals.sql"
    changed = replace(find()["campaigns"], sql=tmp_path)
    monkeypatch.setattr(pipelines, "found", lambda: {"campaigns": changed})

    file.write_text(
        'INSERT INTO s.seen SELECT 1, 2 FROM :stage; DELETE FROM S."other"; DELETE FROM s.missing', encoding="utf-8"
    )
    with pytest.raises(UserError, match=r"s\.seen is a view") as refused:
        empty_tables.written(connection, "campaigns")
    assert (refused.value.code, refused.value.exit_code) == (Code.SQL_WRONG, REFUSED)
    file.write_text(
        'INSERT INTO s.t SELECT 1, 2 FROM :stage; DELETE FROM S."other"; DELETE FROM s.missing', encoding="utf-8"
    )
    assert empty_tables.written(connection, "campaigns") == {"s.other": 0, "s.t": 0}
