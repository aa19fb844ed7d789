"""The sink as a process: killed, stopped, refused, kept waiting. It must end with the right code and one sentence."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.exit_codes import UNAVAILABLE
from onefold.stack.embedded import Infrastructure
from tests.support.made_up_domain import MadeUp
from tests.support.waiting import eventually

Reader = psycopg.Connection[Any]

_CHILD = """
import json, logging, sys
from pathlib import Path
from onefold.chaos import failpoint
from onefold.pipelines import Pipeline
from onefold.spark_sink import service
logging.basicConfig(level=logging.INFO, format="%(message)s")
options = json.loads(sys.argv[1])
root = Path(options.pop("root"))
pipelines = [Pipeline(name, root, "", None, root / "avro", root / "sql") for name in options.pop("domains")]
paths = {name: Path(options.pop(name)) for name in ("checkpoint_root", "status_file")}
jars = [Path(jar) for jar in options.pop("jars")]
sys.exit(service.run(pipelines, **options, **paths, jars=jars, kafka_options={}, step=failpoint.from_environment()))
"""


class Child:
    """A sink in a process of its own."""

    def __init__(self, options: dict[str, Any], environment: dict[str, str], folder: Path) -> None:
        self.status_file = folder / "status.json"
        self.log = folder / "sink.log"
        asked = json.dumps({**options, "status_file": str(self.status_file)})
        with self.log.open("wb") as out:
            command = [sys.executable, "-c", _CHILD, asked]
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def status(self) -> dict[str, Any]:
        """What it says of itself; {} before it has said anything."""
        return json.loads(self.status_file.read_text()) if self.status_file.exists() else {}

    def is_in(self, state: str) -> bool:
        return self.status().get("state") == state


Start = Callable[..., Child]


@pytest.fixture
def start(
    made_up: MadeUp, infrastructure: Infrastructure, database: str, environment: dict[str, str], tmp_path: Path
) -> Iterator[Start]:
    """Starts sinks for the made-up domain; kills what is left of them at the end."""
    children: list[Child] = []

    def make(failpoint: str = "", **changes: Any) -> Child:
        folder = tmp_path / f"child-{len(children)}"
        folder.mkdir()
        options = {
            "domains": [made_up.name],
            "bootstrap_servers": infrastructure.bootstrap_servers,
            "postgres_dsn": database,
            "writer": "sink-1",
            "jars": [str(jar) for jar in infrastructure.spark_jars],
            "java_home": str(infrastructure.java.spark_home),
            "checkpoint_root": str(tmp_path / "checkpoints"),
            "root": str(tmp_path),
            **changes,
        }
        checkout = Path(__file__).resolve().parents[2]
        added = {"ONEFOLD_FAILPOINT": failpoint, "PYTHONPATH": str(checkout / "src")}
        children.append(Child(options, {**environment, **added}, folder))
        return children[-1]

    yield make
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
        child.process.wait(20)


def test_a_killed_sink_changes_nothing_and_a_topic_made_anew_is_refused(
    made_up: MadeUp, start: Start, database: str, reader: Reader
) -> None:
    """kill -9 in the middle of a batch; the next sink lands everything; then its topics are taken away."""
    made_up.create_topics(partitions=2)
    made_up.send(range(30))
    killed = start(failpoint="sink.after_merge:1")
    assert killed.process.wait(60) == -signal.SIGKILL
    again = start()
    eventually(lambda: made_up.is_landed(database), 60, "everything is landed")
    made_up.check(reader)
    eventually(lambda: again.is_in("running"), 5, "it says that it is running")
    made_up.make_anew()
    assert again.process.wait(60) == 3
    assert "was deleted and made anew" in again.status()["detail"]
    _says_no_more_than_sentences(again)


def test_a_sink_without_topics_waits_says_why_and_goes_on(
    made_up: MadeUp, start: Start, database: str, reader: Reader
) -> None:
    child = start()
    eventually(lambda: child.is_in("waiting"), 60, "it says that it waits")
    assert "a topic is missing" in child.status()["detail"]
    made_up.create_topics(partitions=2)
    made_up.send(range(10))
    eventually(lambda: made_up.is_landed(database), 60, "everything is landed")
    child.process.send_signal(signal.SIGTERM)
    assert child.process.wait(20) == 0
    _says_no_more_than_sentences(child)


def test_a_sink_gives_up_when_its_patience_is_over(start: Start) -> None:
    child = start(postgres_dsn="host=127.0.0.1 port=1 dbname=x", patience_s=1.0)
    assert child.process.wait(60) == UNAVAILABLE
    assert "gave up after 1 s: Postgres does not answer" in child.status()["detail"]
    _says_no_more_than_sentences(child)


def _says_no_more_than_sentences(child: Child) -> None:
    """Neither Python's stack traces nor the JVM's."""
    text = child.log.read_text()
    assert "Traceback" not in text
    assert "\tat " not in text
