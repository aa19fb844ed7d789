"""`onefold check`: what it says of a tick and of what a model leaves out, in one sentence with the file."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from onefold import pipelines
from onefold.operate.check import check_all
from tests.support.command_line import ROOT

SALES = ROOT / "examples" / "sales"
TICK = next(
    line for line in (SALES / "sales.py").read_text(encoding="utf-8").splitlines() if line.startswith("    tick=")
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, to be broken. Its modules are loaded anew in each test."""
    shutil.copytree(SALES, tmp_path / "sales")
    monkeypatch.setenv(pipelines.PROJECT_VARIABLE, str(tmp_path / "sales"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("sales", "sales_workload"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path / "sales"


def found(project: Path, file: str, old: str, new: str) -> list[str]:
    """What is said when one part of a file is another one."""
    text = (project / file).read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    (project / file).write_text(text.replace(old, new), encoding="utf-8")
    return said()


def said(*, not_judged: bool = True) -> list[str]:
    try:
        findings = check_all(pipelines.find(), not_judged=not_judged)
        return [sentence for sentences in findings.values() for sentence in sentences]
    finally:
        for module in ("sales", "sales_workload"):
            sys.modules.pop(module, None)


def test_an_interval_that_cannot_be_is_one_sentence_with_file_and_line(project: Path) -> None:
    (sentence,) = found(project, "sales.py", "every_s=1,", "every_s=0.25,")
    assert re.search(
        r"sales\.py:\d+: .*a tick every 0\.25 s cannot be; say every_s in seconds from 1 to 86400", sentence
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (
            "sales_workload.py",
            ", ticks=True",
            "",
            "sales_workload.WORKLOAD has no ticks, and the topology declares a tick",
        ),
        ("sales.py", TICK, "", "sales_workload.WORKLOAD has ticks, and the topology declares no tick"),
        (
            "sales.py",
            TICK,
            TICK + '\n    on_dead_letter="park",',
            "sales_workload.WORKLOAD says on_dead_letter='pass', and the topology says 'park'",
        ),
    ],
)
def test_a_tick_that_one_side_alone_knows_is_found(project: Path, file: str, old: str, new: str, says: str) -> None:
    (sentence,) = found(project, file, old, new)
    assert sentence.startswith(says)


def test_the_example_as_it_is_has_nothing_wrong(project: Path) -> None:
    assert found(project, "sales.py", "every_s=1,", "every_s=1.0,") == []


WORKLOAD = 'WORKLOAD = Workload("sales", (ORDERS,), (MINUTES,), Model, ticks=True)'
MINUTES = 'MINUTES = Table(name="sales.minutes", topic="sales.minutes", key=("shop", "minute"))'
MERGE = "ON CONFLICT (shop, minute) DO NOTHING;"
EXTRA = """
INSERT INTO sales.days (day, orders) SELECT date_trunc('day', minute), orders FROM :stage;
UPDATE "sales"."shops" SET orders = 1;
"""


def forgetting(project: Path, part: str) -> None:
    """The model never mentions a part of the pipeline."""
    if part == "sales.refunds":
        avro = (project / "avro" / "sales.Minute.avsc").read_text(encoding="utf-8")
        avro = avro.replace('"sales.minutes"', '"sales.refunds"').replace('"Minute"', '"Refund"')
        (project / "avro" / "sales.Refund.avsc").write_text(avro, encoding="utf-8")
        edit(project, "sales.py", '"sales.minutes": None}', '"sales.minutes": None, "sales.refunds": None}')
        edit(
            project,
            "pyproject.toml",
            'workload = "sales_workload"',
            'workload = "sales_workload"\nkafka_only = ["sales.refunds"]',
        )
    elif part == "sales.minutes.mean_cents":
        columns = ", ".join(f'Column("{name}")' for name in ("shop", "minute", "orders", "cents"))
        edit(project, "sales_workload.py", MINUTES, MINUTES.replace('minute"))', f'minute"), only=({columns}))'))
        edit(project, "sales_workload.py", "import Inadmissible", "import Column, Inadmissible")
    else:
        edit(project, "sql/merge/sales.minutes.sql", MERGE, MERGE + EXTRA)


def edit(project: Path, file: str, old: str, new: str) -> None:
    text = (project / file).read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    (project / file).write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ("sales.refunds", ["sales.refunds"]),
        ("sales.minutes.mean_cents", ["sales.minutes.mean_cents"]),
        ("tables", ["sales.days", "sales.shops"]),
    ],
)
def test_a_model_says_what_it_leaves_out(project: Path, part: str, names: list[str]) -> None:
    """An output topic, a field of one, and tables that a merge writes beside that of the model."""
    forgetting(project, part)
    assert found(project, "sales_workload.py", WORKLOAD, WORKLOAD + "\n") == [
        f'sales_workload.WORKLOAD never mentions {name}: give it a table there, or say why in not_judged={{"{name}": "..."}}'
        for name in names
    ]
    assert said(not_judged=False) == [], "`up` starts it all the same"
    reasons = ", ".join(f'"{name}": "a reason"' for name in names)
    saying = WORKLOAD.replace("ticks=True", f"ticks=True, not_judged={{{reasons}}}")
    assert found(project, "sales_workload.py", WORKLOAD, saying) == []


def test_what_is_compared_is_not_listed_as_left_out(project: Path) -> None:
    saying = WORKLOAD.replace("ticks=True", 'ticks=True, not_judged={"sales.minutes": "a reason"}')
    (sentence,) = found(project, "sales_workload.py", WORKLOAD, saying)
    assert sentence.startswith("sales_workload.WORKLOAD compares sales.minutes, and lists it in not_judged")


def test_a_table_is_known_however_a_merge_spells_it(project: Path) -> None:
    merge = (project / "sql/merge/sales.minutes.sql").read_text(encoding="utf-8")
    spellings = ("SALES.Minutes", '"sales"."minutes"', "minutes")
    inserts = [merge.replace("INTO sales.minutes", f"INTO {spelling}") for spelling in spellings]
    edit(project, "sql/merge/sales.minutes.sql", merge, "\n".join([merge, *inserts]))
    assert found(project, "sales_workload.py", WORKLOAD, WORKLOAD + "\n") == []


def test_a_panels_file_that_is_wrong_is_named(project: Path) -> None:
    file = "sql/panels/sales.toml"
    (sentence,) = found(project, file, 'kind = "bar"', 'kind = "pie"')
    assert sentence == f"{project / file}: panel 2 (The best shops): kind has to be stat, bar, table, line or rollup"
