"""What is read out of merge statements: which topic makes a table, and which columns are made of what was there before."""

from dataclasses import replace
from pathlib import Path

import pytest

from onefold.operate.merges import feeds
from onefold.pipelines import find
from onefold.processor.loading import load_topology


@pytest.mark.parametrize(
    ("table", "topic", "reduced", "accumulated"),
    [
        ("campaigns.totals", "campaigns.totals", False, set()),
        ("campaigns.sends", "campaigns.accepted", False, set()),
        ("runner.stats", "runner.stats", False, set()),
        ("trades.current", "trades.deltas", True, set()),
        ("trades.risk", "trades.deltas", True, {"value", "trades"}),
        ("bank.accounts", "bank.entries", False, set()),
        ("bank.transfers", "bank.entries", False, {"withdrawn", "deposited", "returned"}),
    ],
)
def test_what_makes_the_tables_that_there_are(table: str, topic: str, reduced: bool, accumulated: set[str]) -> None:
    """Of the pipelines that Onefold brings along."""
    pipeline = find()[table.partition(".")[0]]
    (feed,) = feeds(pipeline, table, load_topology(pipeline).outputs)

    assert (feed.topic, feed.reduced, set(feed.accumulated)) == (topic, reduced, accumulated)


@pytest.mark.parametrize(
    ("statement", "accumulated"),
    [
        ("INSERT INTO s.t AS held SELECT 1 FROM :stage ON CONFLICT (id) DO UPDATE SET n = held.n + 1", {"n"}),
        ("insert into s.t select 1 from :stage on conflict (id) do update set n = t.n + 1 where t.n > 0", {"n"}),
        ('INSERT INTO "s"."t" AS x SELECT 1 ON CONFLICT DO UPDATE SET a = 1, "b" = f(x.b, 2), c = excluded.c', {"b"}),
        ("INSERT INTO s.t AS x SELECT 1 ON CONFLICT DO UPDATE SET a = 'x.a', b = 2 -- , c = x.c\n", set()),
        ("INSERT INTO s.t AS x SELECT x.y ON CONFLICT DO NOTHING", set()),
        ("INSERT INTO s.t AS x SELECT 1 ON CONFLICT DO UPDATE SET a = excluded.a WHERE x.a < excluded.a", set()),
        ("INSERT INTO s.other AS x SELECT 1 ON CONFLICT DO UPDATE SET a = x.a + 1", None),
    ],
)
def test_what_a_statement_says(tmp_path: Path, statement: str, accumulated: set[str] | None) -> None:
    """As people write it. A table that nobody merges into has no feed."""
    (tmp_path / "merge").mkdir()
    (tmp_path / "merge" / "campaigns.totals.sql").write_text(statement, encoding="utf-8")
    found = feeds(replace(find()["campaigns"], sql=tmp_path), "s.t", ["campaigns.totals"])

    assert [set(feed.accumulated) for feed in found] == ([] if accumulated is None else [accumulated])
