"""Load and generated records go into a cluster that the stack did not start only when the user agrees."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from onefold.cli.commands import demo
from onefold.cli.main import run
from onefold.config import stack_state
from onefold.config.settings import Settings, load
from onefold.exit_codes import OK, USAGE
from onefold.operate import foreign
from onefold.operate.offsets import stable_ends
from onefold.processor.core.topology import Topology
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("foreign-clusters")

KAFKA, POSTGRES = "127.0.0.1:1", "postgresql://me:secret@127.0.0.1:1/mine"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path))
    for name in ("ONEFOLD_BOOTSTRAP_SERVERS", "ONEFOLD_POSTGRES_DSN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def running(home: Path, *services: str) -> None:
    """A stack that runs in `home` with these services, on KAFKA and POSTGRES."""
    mine = {"supervisor_pid": os.getpid(), "create_time": psutil.Process().create_time()}
    servers = {"bootstrap_servers": KAFKA, "postgres_dsn": POSTGRES}
    stack_state.write(stack_state.path(home), {**mine, **servers, "services": {name: {} for name in services}})


@pytest.mark.parametrize(
    ("services", "settings", "found"),
    [
        (("kafka", "postgres"), {}, []),
        (("kafka", "postgres"), {"bootstrap_servers": KAFKA}, []),
        (("kafka", "postgres"), {"bootstrap_servers": "kafka.example:9092"}, ["Kafka at kafka.example:9092"]),
        (("postgres",), {}, [f"Kafka at {KAFKA}"]),
        (("kafka",), {}, ["PostgreSQL at postgresql://me@127.0.0.1:1/mine"]),
        ((), {"postgres_dsn": POSTGRES}, [f"Kafka at {KAFKA}", "PostgreSQL at postgresql://me@127.0.0.1:1/mine"]),
    ],
)
def test_servers_that_the_stack_did_not_start(
    services: tuple[str, ...], settings: dict[str, str], found: list[str], home: Path
) -> None:
    running(home, *services)
    assert foreign.servers(Settings.model_validate({"home": home, **settings})) == found


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_chaos_asks_before_it_writes_to_another_cluster(
    arguments: list[str], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running(home, "postgres")
    assert run(["chaos", "--stack", "embedded", "--pipeline", "runner", "--nemesis", "none", *arguments]) == USAGE
    said = capsys.readouterr().err
    assert f"into the input topics of runner, on Kafka at {KAFKA}; there is no terminal to ask on" in said
    assert "--yes" in said


def ends(topic: str, client: dict[str, str]) -> int:
    """Offsets of all partitions of a topic."""
    return sum(stable_ends(AdminClient({**client}), [topic]).values())


def test_generated_records_go_to_another_cluster_when_the_user_agrees(
    home: Path,
    client: dict[str, str],
    fresh_domain: Callable[..., Topology],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fresh_domain("runner")
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", client["bootstrap.servers"])
    command = ["produce", "runner.updates", "--count", "10"]
    assert run(command) == USAGE
    assert f"into topic runner.updates of Kafka at {client['bootstrap.servers']}" in capsys.readouterr().err
    assert ends("runner.updates", client) == 0
    assert run([*command, "--yes", "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["events"] == 10
    assert ends("runner.updates", client) >= 10


def test_lines_of_the_user_go_where_the_user_says(
    home: Path, client: dict[str, str], fresh_domain: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_domain("runner")
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", client["bootstrap.servers"])
    (home / "lines").write_text("no contract\n", encoding="utf-8")
    assert run(["produce", "runner.updates", "--file", str(home / "lines")]) == OK
    eventually(lambda: ends("runner.updates", client) > 0, 10, "the transaction has ended in runner.updates")


def test_the_demo_uses_no_server_and_no_folder_of_the_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its services inherit the environment and read the project's file: each such setting is unset for them."""
    for name, value in (
        ("BOOTSTRAP_SERVERS", "kafka.example:9092"),
        ("POSTGRES_DSN", POSTGRES),
        ("DASHBOARD_DSN", POSTGRES),
        ("OBJECTS", "s3://mine/here"),
        ("OBJECTS_ENDPOINT", "https://s3.example"),
        ("JUDGE_HOME", str(home / "judge")),
        ("STATE_HOME", str(home / "states")),
        ("KAFKA_OPTIONS", '{"client.id": "mine"}'),
        ("SPARK_KAFKA_CLIENT_ID", "mine"),
    ):
        monkeypatch.setenv(f"ONEFOLD_{name}", value)
    of_demo = load().model_copy(update=demo._NOT_MINE).as_environment()
    for name, value in of_demo.items():
        monkeypatch.setenv(name, value)
    found = load()
    assert {name: getattr(found, name) for name in demo._NOT_MINE} == demo._NOT_MINE
