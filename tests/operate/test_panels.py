"""A panels file: what is wrong with it is one sentence with file, panel and key."""

from pathlib import Path

import pytest

from onefold.operate import panels
from onefold.operate.panels import Stat
from onefold.pipelines import InvalidDeclaration, Pipeline, find

STAT = 'title = "Sum"\nkind = "stat"\nquery = "SELECT 1"\n'


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """A pipeline whose sql/panels is empty."""
    (tmp_path / "sql" / "panels").mkdir(parents=True)
    return Pipeline("shop", tmp_path / "pyproject.toml", "shop:TOPOLOGY", None, tmp_path / "avro", tmp_path / "sql")


def test_those_that_are_brought_along_are_right() -> None:
    """Each has a file, but sheets, whose tables are no figures."""
    found = {name: panels.load(one) for name, one in find().pipelines.items()}
    assert [name for name, one in found.items() if not one.panel] == ["sheets"]
    (risk,) = found["trades"].rollups
    assert risk.levels == ("risk_type", "region", "trade_desk")
    assert isinstance(found["bank"].panel[0], Stat)


def test_a_file_is_read_again_when_it_changes(pipeline: Pipeline) -> None:
    assert panels.load(pipeline).panel == ()
    panels.file_of(pipeline).write_text(f"[[panel]]\n{STAT}", encoding="utf-8")
    assert [one.title for one in panels.load(pipeline).panel] == ["Sum"]
    panels.file_of(pipeline).write_text("", encoding="utf-8")
    assert panels.load(pipeline).panel == ()


def test_a_semicolon_ends_a_query_and_in_a_text_is_none(pipeline: Pipeline) -> None:
    query = "SELECT ';' AS a -- ;\n;"
    text = f'[[panel]]\ntitle = \'x\'\nkind = \'table\'\nquery = """\n{query}\n"""'
    panels.file_of(pipeline).write_text(text, encoding="utf-8")
    assert panels.load(pipeline).panel[0].query == "SELECT ';' AS a -- ;\n"


@pytest.mark.parametrize("comment", ["-- x", "-- a; b", "/* ; */"])
def test_a_comment_may_follow_the_semicolon(pipeline: Pipeline, comment: str) -> None:
    text = f"[[panel]]\ntitle = 'x'\nkind = 'table'\nquery = 'SELECT 1; {comment}'"
    panels.file_of(pipeline).write_text(text, encoding="utf-8")
    assert panels.load(pipeline).panel[0].query == f"SELECT 1 {comment}"


def test_a_file_in_the_place_of_the_folder_is_one_sentence(pipeline: Pipeline) -> None:
    panels.file_of(pipeline).parent.rmdir()
    panels.file_of(pipeline).parent.write_text("", encoding="utf-8")
    with pytest.raises(InvalidDeclaration, match=r"shop\.toml: Not a directory"):
        panels.load(pipeline)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("panel = 3", "panel has to be a list: write [[panel]]"),
        ("[panel]", "panel has to be a list: write [[panel]]"),
        ("panel = [3]", "panel 1 has to be a table"),
        ("panels = []", "panels is not known"),
        ("latency = 3", "latency has to be a text"),
        ("[[panel]]", "panel 1: kind is missing"),
        ('[[panel]]\nkind = "pie"\ntitle = "Sum"', "panel 1 (Sum): kind has to be stat, bar, table, line or rollup"),
        (f"[[panel]]\n{STAT}[[panel]]\nkind = 'bar'\ntitle = 'B'", "panel 2 (B): query is missing"),
        (f"[[panel]]\n{STAT}colour = 'red'", "panel 1 (Sum): colour is not known"),
        (f"[[panel]]\n{STAT}units = 'm'", "panel 1 (Sum): units has to be a table of column and unit"),
        (f"[[panel]]\n{STAT}units = {{a = 1}}", "panel 1 (Sum): units.a has to be a text"),
        (f"[[panel]]\n{STAT}units = {{line = 1}}", "panel 1 (Sum): units.line has to be a text"),
        (f"[[panel]]\n{STAT}expected = ''", "panel 1 (Sum): expected is empty"),
        (f"[[panel]]\n{STAT}expected = '; -- x'", "panel 1 (Sum): expected is empty"),
        (f"[[panel]]\n{STAT}expected = 'SELECT 1; RESET ROLE'", "panel 1 (Sum): expected is more than one statement"),
        ("[[panel]]\nkind = ['bar']\ntitle = 'B'", "panel 1 (B): kind has to be stat, bar, table, line or rollup"),
        ("[[panel]]\nkind = 'bar'\ntitle = 5\nquery = 'SELECT 1'", "panel 1 (5): title has to be a text"),
        ("[[panel]]\nkind = 'bar'\ntitle = 'B'\nquery = 'SELECT 1'\nexpected = 'SELECT 1'", "expected is not known"),
        ("[[panel]]\nkind = 'rollup'\ntitle = 'R'\nquery = 'SELECT 1'", "panel 1 (R): levels is missing"),
        (
            "[[panel]]\nkind = 'rollup'\ntitle = 'R'\nquery = 'SELECT 1'\nvalue = 'v'\ncount = 'c'\nlevels = []",
            "panel 1 (R): levels is empty",
        ),
        (f"[[panel]]\n{STAT}[[panel]]\n{STAT}", "two panels have the title 'Sum'"),
        ("[[panel", "Expected ']]'"),
    ],
)
def test_a_mistake_is_one_sentence(pipeline: Pipeline, text: str, said: str) -> None:
    file = panels.file_of(pipeline)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidDeclaration) as raised:
        panels.load(pipeline)
    assert str(raised.value).startswith(f"{file}: ")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
