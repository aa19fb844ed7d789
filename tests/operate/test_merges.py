"""Which tables a merge writes, by its text; tests/integration/test_written_tables.py asks PostgreSQL the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from onefold.operate import merge_sql
from onefold.pipelines import Pipeline, find
from onefold.processor.loading import load_topology


@pytest.mark.parametrize(
    ("table", "topic"),
    [
        ("campaigns.totals", "campaigns.totals"),
        ("campaigns.sends", "campaigns.accepted"),
        ("runner.stats", "runner.stats"),
        ("trades.current", "trades.deltas"),
        ("trades.risk", "trades.deltas"),
        ("bank.accounts", "bank.entries"),
        ('"bank"."transfers"', "bank.entries"),
    ],
)
def test_topics_that_feed_the_tables_of_the_examples(table: str, topic: str) -> None:
    pipeline = find()[merge_sql.parts(table)[0]]
    assert merge_sql.feeding(pipeline, table, load_topology(pipeline).outputs) == [topic]


def test_tables_of_several_files_are_listed_once(tmp_path: Path) -> None:
    (tmp_path / "merge").mkdir()
    for file, statement in {
        "campaigns.totals": "INSERT INTO Campaigns.Both SELECT 1 FROM :stage",
        "campaigns.accepted": "INSERT INTO campaigns.both SELECT 1 FROM :stage",
        "campaigns.accepted.sums": 'UPDATE "campaigns"."both" SET n = 1 FROM :stage',
    }.items():
        (tmp_path / "merge" / f"{file}.sql").write_text(statement, encoding="utf-8")
    pipeline = replace(find()["campaigns"], sql=tmp_path)

    assert merge_sql.written(pipeline) == ['"campaigns"."both"', "campaigns.both"]
    topics = ["campaigns.totals", "campaigns.accepted"]
    assert merge_sql.feeding(pipeline, "campaigns.both", topics) == ["campaigns.accepted", "campaigns.totals"]
    assert merge_sql.feeding(pipeline, "campaigns.other", topics) == []


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("S.T", ("s", "t")),
        ('S."T"', ("s", "T")),
        ('"a.b"."c""d"', ("a.b", 'c"d')),
        ("t", ("t",)),
        ("straßeÄ", ("straßeÄ",)),
    ],
)
def test_names_are_folded_as_postgresql_folds_them(name: str, parts: tuple[str, ...]) -> None:
    assert merge_sql.parts(name) == parts


@pytest.mark.parametrize(
    ("statements", "privileges"),
    [
        ("INSERT INTO s.t SELECT 1 ON CONFLICT DO NOTHING", [("s.t", "INSERT")]),
        ("INSERT INTO s.t SELECT 1 ON CONFLICT (a) DO UPDATE SET a = 1", [("s.t", "INSERT"), ("s.t", "UPDATE")]),
        ("WITH x AS (INSERT INTO s.t SELECT 1 ON CONFLICT (a) DO UPDATE SET a = 1 RETURNING a) INSERT INTO s.u SELECT a FROM x",
         [("s.t", "INSERT"), ("s.t", "UPDATE"), ("s.u", "INSERT")]),
        ("WITH x AS (DELETE FROM s.u) INSERT INTO s.t SELECT 1 ON CONFLICT (a) DO UPDATE SET a = (SELECT 1)",
         [("s.t", "INSERT"), ("s.t", "UPDATE"), ("s.u", "DELETE")]),
        ("MERGE INTO s.t USING s.u ON true WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (1)",
         [("s.t", "DELETE"), ("s.t", "INSERT")]),
        ("UPDATE s.t SET a = 1; DELETE FROM s.u", [("s.t", "UPDATE"), ("s.u", "DELETE")]),
    ],
)  # fmt: skip
def test_each_write_needs_its_privilege(tmp_path: Path, statements: str, privileges: list[tuple[str, str]]) -> None:
    (tmp_path / "merge").mkdir()
    (tmp_path / "merge" / "shop.a.sql").write_text(statements, encoding="utf-8")
    pipeline = Pipeline("shop", tmp_path, "x:Y", None, tmp_path, tmp_path)
    assert merge_sql.privileges(pipeline) == privileges


@pytest.mark.parametrize(
    "statements", ["", "INSERT", "UPDATE", "UPDATE ONLY", "DELETE FROM", "/* INSERT INTO t", "'", "))", "$"]
)
def test_what_is_no_statement_names_no_table(statements: str) -> None:
    assert "t" not in [*merge_sql.tables(statements)]
