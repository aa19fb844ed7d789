"""`onefold ls`: pipelines, topics and tables, without a server."""

import json
from pathlib import Path

import pytest

from onefold.cli import starter
from onefold.cli.main import run
from onefold.error_codes import Code
from onefold.exit_codes import OK, USAGE
from tests.support.coded import code_of


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one pipeline."""
    starter.write("orders", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_pipeline_is_listed_with_its_topics_and_tables(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls"]) == OK
    assert capsys.readouterr().out == (
        "orders\n  inputs   orders.orders\n  outputs  orders.totals\n  tables   orders.totals\n"
    )
    assert run(["ls", "orders", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == {
        "orders": {"inputs": ["orders.orders"], "outputs": ["orders.totals"], "tables": ["orders.totals"]}
    }


def test_a_pipeline_that_does_not_load_hides_no_other(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (project / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write('[tool.onefold.pipelines.broken]\ntopology = "nowhere:TOPOLOGY"\n[tool.onefold.pipelines.none]\n')
    assert run(["ls"]) == OK
    told = capsys.readouterr()
    assert told.out.startswith("orders\n")
    assert "broken" in told.err
    assert "none" in told.err
    assert run(["ls", "nobody"]) == USAGE
    assert code_of(capsys.readouterr().err, "nobody") is Code.PIPELINE_UNKNOWN
