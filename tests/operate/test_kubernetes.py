"""`onefold kubernetes`: every resource is one by Kubernetes' own schemas, starts what it says, and holds no secret."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types of its own
import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from onefold.cli import main
from onefold.cli.main import run
from onefold.config.settings import Settings
from onefold.exit_codes import OK, USAGE
from onefold.operate.kubernetes import Base
from onefold.pipelines import find
from onefold.processor.loading import topology_of

# The oldest one that its makers maintain, and the newest of the package.
VERSIONS = ("1.33", "1.37")
CUSTOM = {"KafkaTopic", "PodMonitor", "Kustomization", "Component"}
PASSWORD = "hunter2"  # made up
LOGIN = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.username": "me"}

Made = dict[str, list[Any]]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Made]:
    """Runs the command; the resources by file."""
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", "kafka:9092")
    monkeypatch.setenv("ONEFOLD_REPLICATION_FACTOR", "3")
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS", json.dumps(LOGIN | {"sasl.password": PASSWORD}))
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", f"postgresql://me:{PASSWORD}@db/events")

    def write(*arguments: str) -> Made:
        folder = tmp_path / "base"
        assert run(["kubernetes", str(folder), *arguments]) == OK
        files = {str(file.relative_to(folder)): file.read_text(encoding="utf-8") for file in folder.rglob("*.yaml")}
        assert PASSWORD not in "".join(files.values())
        return {name: list(yaml.safe_load_all(text)) for name, text in files.items()}

    return write


def pods(files: Made) -> dict[str, Any]:
    """The templates of pods by the name of what makes them."""
    found = {}
    for one in (one for resources in files.values() for one in resources if "spec" in one):
        spec = one["spec"].get("jobTemplate", one)["spec"]
        if "template" in spec:
            found[one["metadata"]["name"]] = spec["template"]
    return found


def variables(files: Made) -> dict[str, str]:
    """What each pod is told."""
    (generated,) = files["kustomization.yaml"][0]["configMapGenerator"]
    return dict(one.split("=", 1) for one in generated["literals"])


@pytest.mark.slow  # reads the schemas of a whole Kubernetes
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_each_field(version: str, made: Callable[..., Made]) -> None:
    checked = 0
    for resources in made("--strimzi", "main").values():
        for one in resources:
            if one["kind"] not in CUSTOM:
                kubernetes_validate.validate(one, version, strict=True)
                checked += 1
    assert checked > 20


def test_each_file_is_listed_and_each_resource_has_a_name_of_its_own(made: Callable[..., Made]) -> None:
    files = made("--strimzi", "main")
    listed = files["kustomization.yaml"][0]["resources"]
    assert sorted(listed) == sorted(name for name in files if "/" not in name and name != "kustomization.yaml")
    named = [(one["kind"], one["metadata"]["name"]) for each in files.values() for one in each if "metadata" in one]
    assert len(named) == len(set(named))


def test_each_container_starts_a_verb_of_this_release(made: Callable[..., Made]) -> None:
    started = set()
    for template in pods(made()).values():
        (container,) = template["spec"]["containers"]
        name, *arguments = container["command"][1:]
        main.load(main.COMMANDS, name).make_context(name, arguments)
        started.add(name)
    assert started == {"migrate", "process", "work", "sink", "verify", "dashboard"}


def test_what_the_pods_are_told_are_settings(made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_SCHEMA_REGISTRY_URL", "http://registry:8081")
    told = variables(made())
    assert told["ONEFOLD_BOOTSTRAP_SERVERS"] == "kafka:9092"
    assert told["ONEFOLD_REPLICATION_FACTOR"] == "3"
    assert told["ONEFOLD_SCHEMA_REGISTRY_URL"] == "http://registry:8081"
    known = {f"ONEFOLD_{name.upper()}" for name in Settings.model_fields} | {"ONEFOLD_STATUS_FILE"}
    assert told.keys() <= known


def test_each_setting_reaches_the_pods_or_is_named_as_left_out(
    made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {
        "ONEFOLD_STALL_S": "90",
        "ONEFOLD_AUDITED": "runner",
        "ONEFOLD_SINKS": "2",
        "ONEFOLD_DASHBOARD_HOSTS": "board.example",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    files = made("runner")
    left_out = capsys.readouterr().out.partition("Not in them")[2].partition("\n")[0]
    assert [name for name in values if name in left_out] == ["ONEFOLD_AUDITED"]
    assert float(variables(files)["ONEFOLD_STALL_S"]) == 90
    assert next(one for one in files["sink.yaml"] if one["kind"] == "Deployment")["spec"]["replicas"] == 2
    (container,) = pods(files)["dashboard"]["spec"]["containers"]
    assert {"name": "ONEFOLD_DASHBOARD_HOSTS", "value": "dashboard,board.example"} in container["env"]


@pytest.mark.parametrize("name", ["ONEFOLD_OBJECTS_ENDPOINT", "ONEFOLD_SCHEMA_REGISTRY_URL"])
def test_a_password_in_an_address_is_refused(
    name: str,
    tmp_path: Path,
    made: Callable[..., Made],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, f"http://me:{PASSWORD}@server:9000")
    assert run(["kubernetes", str(tmp_path / "base"), "runner"]) == USAGE
    said = capsys.readouterr().err
    assert name in said
    assert PASSWORD not in said
    assert not (tmp_path / "base").exists()


def test_a_sink_has_as_many_tasks_as_its_memory_is_for_or_a_cluster(
    made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    def env(files: Made) -> list[Any]:
        return list(pods(files)["sink"]["spec"]["containers"][0]["env"])

    assert {"name": "ONEFOLD_SPARK_MASTER", "value": "local[2]"} in env(made("runner"))
    monkeypatch.setenv("ONEFOLD_SPARK_MASTER", "spark://master:7077")
    files = made("runner")
    assert variables(files)["ONEFOLD_SPARK_MASTER"] == "spark://master:7077"
    assert not any(one["name"] == "ONEFOLD_SPARK_MASTER" for one in env(files))


def test_a_pipeline_that_does_not_load_is_one_sentence(
    tmp_path: Path, made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "orders"]) == OK
    with (tmp_path / "orders.py").open("a", encoding="utf-8") as handler:
        handler.write("raise RuntimeError\n")
    assert run(["kubernetes", "base", "orders", "--strimzi", "main"]) == USAGE
    assert "orders.py" in capsys.readouterr().err
    assert not (tmp_path / "base").exists()


def test_pipelines_that_share_a_topic_have_one_resource_for_it(tmp_path: Path) -> None:
    settings, runner = Settings(home=tmp_path, bootstrap_servers="kafka:9092"), find()["runner"]
    topics = Base(settings, [runner, runner], strimzi="main").files()["strimzi/topics.yaml"]
    names = [one["spec"]["topicName"] for one in topics]
    assert len(names) == len(set(names))


def test_no_state_of_a_service_keeps_its_pod_from_starting(made: Callable[..., Made]) -> None:
    """One that restores for an hour answers, and not that it is well. A probe has no token for metrics."""
    for template in pods(made("runner", "sheets")).values():
        (container,) = template["spec"]["containers"]
        for probe in ("startupProbe", "livenessProbe"):
            assert container.get(probe, {}).get("httpGet", {}).get("path", "/livez") == "/livez"
            assert "exec" not in container.get(probe, {})


def test_who_gets_which_secret(made: Callable[..., Made]) -> None:
    """A processor has no PostgreSQL, and nobody has the login of another service."""
    logins = {}
    for name, template in pods(made("runner", "sheets")).items():
        (volume,) = [one for one in template["spec"]["volumes"] if "secret" in one]
        has_database = "DSN" in json.dumps(template["spec"]["containers"][0]["env"])
        logins[name] = (volume["secret"]["secretName"], has_database)
    assert logins == {
        "migrate": ("onefold-owner", True),
        "processor-runner": ("onefold-processor", False),
        "processor-sheets": ("onefold-processor", False),
        "worker-sheets": ("onefold-worker", True),
        "sink": ("onefold-sink", True),
        "verify-runner": ("onefold-verifier", True),
        "verify-sheets": ("onefold-verifier", True),
        "dashboard": ("onefold-dashboard", True),
    }


def test_topics_for_an_operator_are_those_that_migrate_makes(made: Callable[..., Made]) -> None:
    topology = topology_of("sheets")
    topics = {one["spec"]["topicName"]: one for one in made("sheets", "--strimzi", "main")["strimzi/topics.yaml"]}
    assert {
        *topology.reads,
        *topology.outputs,
        topology.changelog,
        "sheets.jobs.dead",
        "sheets.pauses",
    } <= topics.keys()
    assert topics[topology.changelog]["spec"]["config"]["cleanup.policy"] == "compact"
    assert {one["spec"]["replicas"] for one in topics.values()} == {3}
    assert {one["metadata"]["labels"]["strimzi.io/cluster"] for one in topics.values()} == {"main"}


def test_replicas_are_as_many_pods_as_the_pipeline_declares(
    made: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(*arguments: str) -> int:
        (found,) = [one for one in made("runner", *arguments)["processors.yaml"] if one["kind"] == "StatefulSet"]
        return int(found["spec"]["replicas"])

    assert (counted(), counted("--processors", "5")) == (2, 5)
    monkeypatch.setenv("ONEFOLD_REPLICAS", "3")
    assert counted("--processors", "5") == 3


def test_long_names_are_cut_and_stay_apart(tmp_path: Path) -> None:
    settings, runner = Settings(home=tmp_path, bootstrap_servers="kafka:9092"), find()["runner"]
    long = [replace(runner, name=f"a_{59 * 'x'}{last}") for last in "yz"]
    files = Base(settings, long).files()
    named = [one["metadata"]["name"] for one in files["processors.yaml"] if one["kind"] == "StatefulSet"]
    assert len(set(named)) == 2
    assert max(map(len, named)) <= 52


def test_a_service_of_kubernetes_sets_no_setting_of_ours(made: Callable[..., Made]) -> None:
    """Kubernetes sets ONEFOLD_DASHBOARD_PORT to an address in every pod beside a Service called onefold-dashboard."""
    assert all(template["spec"]["enableServiceLinks"] is False for template in pods(made()).values())


def test_a_file_of_somebody_else_is_not_replaced(
    made: Callable[..., Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made("runner")
    made("runner")  # its own files it writes anew
    mine = tmp_path / "base" / "sink.yaml"
    mine.write_text("kind: Mine\n", encoding="utf-8")
    assert run(["kubernetes", str(tmp_path / "base"), "runner"]) == USAGE
    assert str(mine) in capsys.readouterr().err
    assert mine.read_text(encoding="utf-8") == "kind: Mine\n"


def test_a_kafka_has_to_be_named(
    made: Callable[..., Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ONEFOLD_BOOTSTRAP_SERVERS")
    assert run(["kubernetes", str(tmp_path / "base"), "runner"]) == USAGE
    assert "ONEFOLD_BOOTSTRAP_SERVERS" in capsys.readouterr().err
    assert not (tmp_path / "base").exists()
