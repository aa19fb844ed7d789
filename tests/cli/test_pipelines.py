"""Pipelines are found: of installed packages, and of the project around the working folder."""

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

from onefold import pipelines
from onefold.pipelines import InvalidDeclaration

pytestmark = pytest.mark.promise("broken-pipelines-stay-alone")

HANDLER = """
from onefold.processor.core.topology import Topology

TOPOLOGY = Topology("orders", ("orders.orders",), lambda order: order.id, object, lambda state, event: (state, ()), {})
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project in the working folder."""
    for folder in ("avro", "sql"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv(pipelines.PROJECT_VARIABLE, raising=False)
    return tmp_path


def declare(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(text, encoding="utf-8")


def orders(project: Path, module: str, rest: str = "") -> None:
    declare(project, f'[tool.onefold.pipelines.orders]\ntopology = "{module}:TOPOLOGY"\n{rest}')


def test_the_built_in_ones_are_declared_as_everybody_declares_theirs() -> None:
    """By an entry point of the installed distribution, and a file of data."""
    entries = importlib.metadata.entry_points(group=pipelines.GROUP)
    assert "onefold" in {entry.value for entry in entries}
    found = pipelines.find()
    assert found.faults == ()
    assert len(found.pipelines) >= 3
    assert all(pipeline.load_workload() is not None for pipeline in found.pipelines.values())


def test_a_project_is_found_from_every_folder_in_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And by the services that run elsewhere, through a variable."""
    orders(project, "handler_a", 'kafka_only = ["orders.mails"]\nreplicas = 2\n')
    (project / "handler_a.py").write_text(HANDLER, encoding="utf-8")
    (project / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(project / "deep" / "er")
    pipeline = pipelines.find()["orders"]
    assert pipeline.contracts == project / "avro"
    assert pipeline.kafka_only == ("orders.mails",)
    assert pipeline.replicas == 2
    assert pipeline.load_workload() is None
    assert pipeline.load_topology().name == "orders"

    monkeypatch.chdir("/")
    assert "orders" not in pipelines.find().pipelines
    monkeypatch.setenv(pipelines.PROJECT_VARIABLE, str(project))
    assert "orders" in pipelines.find().pipelines


def test_topics_of_jobs_are_landed_in_no_table(project: Path) -> None:
    """Without being listed as such."""
    orders(
        project,
        "handler_j",
        'kafka_only = ["orders.copies"]\njobs = {"orders.mails" = "handler_j:MAILS"}\nreports = ["orders.sent"]\n',
    )
    (project / "handler_j.py").write_text(f"{HANDLER}\nMAILS = 7\n", encoding="utf-8")
    pipeline = pipelines.find()["orders"]

    assert pipeline.kafka_only == ("orders.copies", "orders.mails")
    assert pipeline.jobs == {"orders.mails": "handler_j:MAILS"}
    assert pipeline.load_job("orders.mails") == 7
    assert pipeline.reports == ("orders.sent",)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('[tool.onefold.pipelines.orders]\nworkload = "w"', r"pyproject.toml:1: pipeline orders: topology is missing"),
        ('[tool.onefold.pipelines.Or-ders]\ntopology = "a:B"', "a name has small letters"),
        ('[tool.onefold.pipelines."äpfel"]\ntopology = "a:B"', "a name has small letters"),
        (
            f'[tool.onefold.pipelines.{"o" * 64}]\ntopology = "a:B"',
            "has a name of 64 bytes, and PostgreSQL cuts names at 63",
        ),
        (
            '[tool.onefold.pipelines.pg_orders]\ntopology = "a:B"',
            "that schema is not the pipeline's; rename the pipeline",
        ),
        ('[tool.onefold.pipelines.public]\ntopology = "a:B"', "that schema is not the pipeline's; rename the pipeline"),
        ('[tool.onefold.pipelines.onefold_stage]\ntopology = "a:B"', "that schema is not the pipeline's"),
        ('[tool.onefold.pipelines.onefold]\ntopology = "a:B"', r"toml:1: pipeline onefold: the schema .* engine's own"),
        ('\n\n[tool.onefold.pipelines.orders]\ntopology = "a:B"\ntopics = "x"', r"toml:3: .*topics is not known"),
        ('[tool.onefold.pipelines.orders]\ntopology = "a:B"\nsql = "nowhere"', "sql is .*nowhere, which is no folder"),
        ('[tool.onefold.pipelines.orders]\ntopology = "a:B"\nkafka_only = "x"', "kafka_only is a list of topics"),
        (
            '[tool.onefold.pipelines.orders]\ntopology = "a:B"\njobs = ["orders.mails"]',
            r"toml:1: .*jobs says what does",
        ),
        ('[tool.onefold.pipelines.orders]\ntopology = "a:B"\njobs = {"orders.mails" = "mails"}', "jobs says what does"),
        ('[tool.onefold.pipelines.orders]\ntopology = "a:B"\nreports = "x"', "reports is a list of inputs"),
        ('[tool.onefold.pipelines.orders]\ntopology = "a:B"\nreports = []', "it has no jobs: leave reports out"),
        ('[tool.onefold.pipelines.orders]\ntopology = "a:B"\nsql = 7', "sql is a text"),
        ('[tool.onefold]\npipelines = "orders"', "pipelines is no table"),
    ],
)
def test_a_declaration_that_is_wrong_takes_no_other_one_down(project: Path, table: str, says: str) -> None:
    declare(project, table)
    found = pipelines.find()
    (fault,) = found.faults
    assert re.search(says, fault), fault
    assert len(found.pipelines) >= 3
    assert "orders" not in found.pipelines


def test_a_project_says_whose_pipelines_run_in_it(project: Path) -> None:
    """Those of named packages only, of none, or without a word of all."""
    brought = set(pipelines.find().pipelines)
    own = '[tool.onefold.pipelines.orders]\ntopology = "a:B"\n'
    declare(project, f"[tool.onefold]\npackages = []\n{own}")
    assert set(pipelines.find().pipelines) == {"orders"}
    declare(project, f'[tool.onefold]\npackages = ["onefold"]\n{own}')
    assert set(pipelines.find().pipelines) == {"orders"} | brought
    declare(project, own)
    assert set(pipelines.find().pipelines) == {"orders"} | brought


@pytest.mark.parametrize(
    ("packages", "says"),
    [('["nobody"]', "packages names nobody, which is not installed"), ('"onefold"', "packages is a list of packages")],
)
def test_packages_that_cannot_be_taken_from_are_a_fault(project: Path, packages: str, says: str) -> None:
    declare(project, f'[tool.onefold]\npackages = {packages}\n[tool.onefold.pipelines.orders]\ntopology = "a:B"\n')
    found = pipelines.find()
    (fault,) = found.faults
    assert says in fault
    assert "orders" in found.pipelines


def test_a_name_that_is_taken_is_said_with_both_places(project: Path) -> None:
    """Neither of the two is used: it would be chance which."""
    taken = next(iter(pipelines.find().pipelines))
    declare(project, f'[tool.onefold.pipelines.{taken}]\ntopology = "a:B"\n')
    found = pipelines.find()
    (fault,) = found.faults
    assert f"the pipeline {taken} is declared twice" in fault
    assert "onefold.toml" in fault
    assert "pyproject.toml" in fault
    assert taken not in found.pipelines


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        ("def broken(:\n", r"handler_{n}\.py:1: invalid syntax"),
        ("\n1 / 0\n", r"handler_{n}\.py:2: ZeroDivisionError: division by zero"),
        ("import no_such_package\n", r"handler_{n}\.py:1: it imports no_such_package, which is not installed"),
        ("OTHER = 1\n", r"handler_{n} has no TOPOLOGY"),
        (None, r"topology names the module handler_{n}, which cannot be found"),
    ],
    ids=["syntax", "raises", "import", "name", "module"],
)
def test_a_handler_that_does_not_load_is_one_sentence_with_file_and_line(
    project: Path, handler: str | None, says: str, request: pytest.FixtureRequest
) -> None:
    number = abs(hash(request.node.name))
    orders(project, f"handler_{number}")
    if handler is not None:
        (project / f"handler_{number}.py").write_text(handler, encoding="utf-8")
    with pytest.raises(InvalidDeclaration, match=says.format(n=number)):
        pipelines.find()["orders"].load_topology()


def test_a_pipeline_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(InvalidDeclaration, match="there is no pipeline 'nobody'; there are "):
        pipelines.find()["nobody"]


@pytest.mark.parametrize("option", ["decided_tables = true", "decision_logs = 2"])
def test_an_option_of_an_earlier_version_is_not_known(project: Path, option: str) -> None:
    orders(project, "handler_a", f"replicas = 2\n{option}\n")
    (fault,) = pipelines.find(project).faults
    assert f"pipeline orders: {option.split()[0]} is not known; there are contracts, decisions_kept_s, " in fault


@pytest.mark.parametrize("given", ["0", "6", "true", '"two"', "1.5"])
def test_replicas_are_a_small_number(project: Path, given: str) -> None:
    orders(project, "handler_a", f"replicas = {given}\n")
    (fault,) = pipelines.find(project).faults
    assert "pipeline orders: replicas is " in fault
    assert fault.endswith("it is a number from 1 to 5")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("decisions_kept_s = 0", "decisions_kept_s is 0; it is a number of seconds from 1, or -1 for ever"),
        ("decisions_kept_s = 1.5", "decisions_kept_s is 1.5; it is a number of seconds from 1, or -1 for ever"),
    ],
)
def test_what_is_said_of_decisions_fits_together(project: Path, given: str, sentence: str) -> None:
    orders(project, "handler_a", f"{given}\n")
    (fault,) = pipelines.find(project).faults
    assert fault.endswith(f"pipeline orders: {sentence}")


@pytest.mark.parametrize(
    ("given", "kept_s"), [("", 600), ("decisions_kept_s = 60", 60), ("decisions_kept_s = -1", None)]
)
def test_decisions_are_kept_for_a_while_or_for_ever(project: Path, given: str, kept_s: int | None) -> None:
    orders(project, "handler_a", f"replicas = 2\n{given}\n")
    assert pipelines.find(project)["orders"].decisions_kept_s == kept_s
