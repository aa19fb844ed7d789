"""Which tables a merge may add up, where the model does not say it."""

from dataclasses import replace
from pathlib import Path

import pytest

from onefold import pipelines
from onefold.verify.additions import may_add
from onefold.workloads import averages, bank, campaigns, runner, sheets, trades

UNDECLARED = replace(averages.WORKLOAD, tables=(averages.AVERAGES, replace(averages.ALARMS, adds=())))


def test_a_table_whose_merge_adds_may_and_one_that_the_model_declares_needs_no_question() -> None:
    assert may_add(averages.WORKLOAD) == []
    assert may_add(UNDECLARED) == ["averages.alarms"]
    for work in (bank.WORKLOAD, campaigns.WORKLOAD, runner.WORKLOAD, sheets.WORKLOAD, trades.WORKLOAD):
        assert may_add(work) == []


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("SET alarms = excluded.alarms", False),
        ("SET alarms = 1 -- not alarms + 1\n", False),
        ("SELECT 1 FROM :stage; INSERT INTO other SELECT 1", False),
        ("SET note = 'a + b, c''s - d' /* + \n - */", False),
        ("SET alarms = GREATEST(t.alarms, excluded.alarms), n = (excluded.data ->> 'n')::int", False),
        ("SELECT at + 1 FROM :stage ON CONFLICT DO UPDATE SET at = excluded.at", False),
        ("SET alarms = (SELECT n FROM old WHERE old.k = excluded.k) + excluded.alarms", True),
        ("SELECT s.alarms + t.alarms FROM :stage s, averages.alarms t", True),
        ("SELECT 1 FROM :stage ON CONFLICT DO UPDATE SET at = coalesce(excluded.at, -1)", False),
        ("SET alarms = '1'::int + t.alarms", True),
        ("SELECT k, count(*) FROM averages.alarms_log, averages.alarms GROUP BY k", True),
        (r"SET note = E'it\'s', alarms = t.alarms, x = 'b'", True),
        ("SET note = $$it's$$, alarms = t.alarms, b = 'x'", True),
        ('SET "a--b" = 1, alarms = t.alarms + excluded.alarms', True),
        ("SET alarms = s.alarms\n+\nexcluded.alarms", True),
        ('set "note" = 1, alarms = s.alarms - excluded.alarms', True),
        ("SET alarms = (SELECT SUM (alarms) FROM both)", True),
        ('SELECT s.alarms + t.alarms FROM :stage s LEFT JOIN ONLY averages."alarms" t', True),
        ("SELECT sum(alarms) FROM (TABLE averages.alarms UNION ALL SELECT 1)", True),
        ("SELECT 1 + alarms FROM averages.alarms_before", False),
        (None, True),
    ],
)
def test_a_merge_adds_by_a_sign_or_a_sum_where_it_changes_the_row_or_reads_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, may: bool
) -> None:
    """Of a topic without a merge nobody knows how its table is written."""
    (tmp_path / "merge").mkdir()
    (tmp_path / "merge" / "averages.averages.sql").write_text("UPDATE averages.averages SET average = 1", "utf-8")
    if text is not None:
        (tmp_path / "merge" / "averages.alarms.more.sql").write_text(f"INSERT INTO averages.alarms {text}", "utf-8")
    known = pipelines.find()
    found = replace(known, pipelines={"averages": replace(known["averages"], sql=tmp_path)})
    monkeypatch.setattr(pipelines, "find", lambda: found)
    assert may_add(UNDECLARED) == (["averages.alarms"] if may else [])


def test_of_a_pipeline_that_is_not_declared_any_table_may_be_added_up() -> None:
    assert may_add(replace(runner.WORKLOAD, name="nowhere")) == sorted(one.name for one in runner.WORKLOAD.tables)
