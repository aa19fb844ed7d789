"""Names that PostgreSQL, Kafka or Spark cannot hold: `onefold check` says each, with the file, and leaves that pipeline out."""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onefold import names, pipelines
from onefold.operate.check import check_all
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.contracts import load_domain
from tests.support.command_line import ROOT

pytestmark = pytest.mark.promise("impossible-names")

EXAMPLES = ROOT / "examples"
LONG = "m" * 64


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pipelines, of which one is to be broken."""
    for name in ("sales", "shop"):
        shutil.copytree(EXAMPLES / name, tmp_path, dirs_exist_ok=True)
    tables = "".join(
        f'[tool.onefold.pipelines.{name}]\ntopology = "{name}:TOPOLOGY"\nworkload = "{name}_workload"\n'
        for name in ("sales", "shop")
    )
    (tmp_path / "pyproject.toml").write_text(f"[tool.onefold]\npackages = []\n{tables}", encoding="utf-8")
    monkeypatch.setenv(pipelines.PROJECT_VARIABLE, str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def checked() -> dict[str, list[str]]:
    """The findings by pipeline. Its modules are loaded anew."""
    for module in ("sales", "sales_workload", "shop", "shop_workload"):
        sys.modules.pop(module, None)
    try:
        return check_all(pipelines.find())
    finally:
        for module in ("sales", "sales_workload", "shop", "shop_workload"):
            sys.modules.pop(module, None)


def rewrite(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text, old
    file.write_text(text.replace(old, new), encoding="utf-8")


def with_field(project: Path, name: str) -> None:
    file = project / "avro" / "sales.Minute.avsc"
    schema = json.loads(file.read_text(encoding="utf-8"))
    schema["fields"].append({"name": name, "type": "long", "default": 0})
    file.write_text(json.dumps(schema), encoding="utf-8")


def test_the_project_as_it_is_has_nothing_wrong(project: Path) -> None:
    assert checked() == {"": [], "sales": [], "shop": []}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *((name, "has the name of a column that the sink adds itself") for name in ("topic", "partition", "offset")),
        *(
            (name, "has the name of a column that each table of PostgreSQL has")
            for name in ("ctid", "xmin", "tableoid")
        ),
        (LONG, "has a name of 64 bytes, and PostgreSQL cuts names at 63"),
        ("Cents", "fields 'cents' and 'Cents' differ by case only, and Spark takes them for one"),
    ],
)
def test_a_field_that_cannot_be_a_column_is_one_sentence_with_file_and_field(
    project: Path, name: str, fault: str
) -> None:
    """In `check`, and as the sink's reason to leave the pipeline out. The other pipeline has nothing wrong."""
    with_field(project, name)
    begun = time.thread_time()
    findings = checked()
    assert time.thread_time() - begun < 2
    (said,) = findings.pop("sales")
    assert findings == {"": [], "shop": []}
    assert said.startswith(f"{project}/avro/sales.Minute.avsc: field")
    assert repr(name) in said
    assert fault in said
    assert said.endswith("give the field another name")
    with pytest.raises(Misconfigured, match=re.escape(said)):
        load_domain("sales", project / "avro", project / "sql")


@pytest.mark.parametrize("name", ["Offset", "attempt", "class", "n" * 63])
def test_other_names_are_columns(project: Path, name: str) -> None:
    with_field(project, name)
    assert checked()["sales"] == []


Break = Callable[[Path], None]


def rename_output(topic: str) -> Break:
    """The pipeline's output in all of its files."""

    def renamed(project: Path) -> None:
        rewrite(project / "sales.py", "sales.minutes", topic)
        rewrite(project / "sales_workload.py", 'topic="sales.minutes"', f'topic="{topic}"')
        rewrite(project / "avro" / "sales.Minute.avsc", '"sales.minutes"', f'"{topic}"')
        file = project / "sql" / "merge" / "sales.minutes.sql"
        file.rename(file.with_stem(topic))

    return renamed


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (rename_output("sales.minütes"), r"toml: pipeline sales: the topic sales\.minütes has a name that Kafka refuses"),
        (rename_output("sales.two minutes"), r"the topic sales\.two minutes has a name that Kafka refuses"),
        (rename_output(f"sales.{'m' * 244}"), r"the topic sales\.m+ has a name of 250 characters, and Kafka takes 249"),
        (rename_output("sales.changelog"), r"the topic sales\.changelog is the changelog of the pipeline's states"),
        (rename_output("sales.orders.dead"), r"the topic sales\.orders\.dead is where the dead letters of sales\.orders go"),
        (rename_output("sales.replays"), r"the topic sales\.replays is where the pipeline keeps the receipts"),
        (rename_output("sales.pauses"), r"the topic sales\.pauses is where the pauses of the pipeline are"),
        (
            rename_output("sales.orders_dead"),
            r"Kafka refuses the topic sales\.orders\.dead beside sales\.orders_dead of sales: to its metrics",
        ),
        (
            lambda project: rewrite(project / "sql/schema/sales.01.sql", "PRIMARY KEY (", f"{LONG} bigint,\n PRIMARY KEY ("),
            rf"schema/sales\.01\.sql:\d+: {LONG} has a name of 64 bytes, and PostgreSQL cuts names at 63: choose a shorter one",
        ),
        (
            lambda project: rewrite(project / "sales_workload.py", 'name="sales.minutes"', f'name="sales.{LONG}"'),
            rf"sales_workload\.WORKLOAD: {LONG} of the table sales\.{LONG} has a name of 64 bytes",
        ),
    ],
)  # fmt: skip
def test_a_topic_or_table_that_cannot_have_its_name_is_said(project: Path, break_it: Break, says: str) -> None:
    break_it(project)
    findings = checked()
    assert findings["shop"] == []
    assert any(re.search(says, said) for said in findings["sales"]), findings


def test_an_input_that_is_the_longest_one_leaves_room_for_its_dead_letters(project: Path) -> None:
    topic = f"sales.{'o' * 243}"
    for file in ("sales.py", "sales_workload.py", "avro/sales.Order.avsc"):
        rewrite(project / file, "sales.orders", topic)
    (said,) = checked()["sales"]
    assert f"the topic {topic}.dead has a name of 254 characters" in said


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("shop_orders", "Kafka refuses the topic {other} beside {topic} of sales"),
        ("shop.changelog", "shop keeps the topic shop.changelog for itself"),
    ],
)
def test_a_topic_that_another_pipeline_has_no_room_for_is_said(project: Path, topic: str, says: str) -> None:
    rename_output(topic)(project)
    said = [sentence for found in checked().values() for sentence in found]
    assert any(says.format(other=topic.replace("_", "."), topic=topic) in sentence for sentence in said), said


@pytest.mark.parametrize("word", ["pass", "park"])
def test_keys_cannot_be_parked_by_events_of_a_topic_of_another_pipeline(project: Path, word: str) -> None:
    """Its dead letters are not replayed."""
    for file in ("sales.py", "sales_workload.py", "avro/sales.Order.avsc"):
        rewrite(project / file, "sales.orders", "shop.orders")
    rewrite(project / "sales.py", "    tick=", f'    on_dead_letter="{word}",\n    tick=')
    said = [sentence for sentence in checked()["sales"] if "a parked key would wait for ever" in sentence]
    assert len(said) == (word == "park")


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        (f"SELECT {LONG} FROM t", [(1, LONG)]),
        (f'SELECT 1;\n\nSELECT "{LONG}""x"', [(3, f'{LONG}"x')]),
        (f"SELECT '{LONG}' /* {LONG}\n */ -- {LONG}", []),
        (f"/* a\n b */ SELECT '\n' AS {LONG}", [(3, LONG)]),
        (f"DO $x$ {LONG} $x$; SELECT {'ä' * 32}", [(1, "ä" * 32)]),
        (f"SELECT {'n' * 63}, '{LONG}''{LONG}'", []),
    ],
)
def test_names_of_a_statement_are_told_from_its_texts(statements: str, found: list[tuple[int, str]]) -> None:
    assert list(names.too_long_in(statements)) == found
