"""Sinks in separate processes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from onefold.stack.embedded import Infrastructure
from tests.support.command_line import ROOT

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
if port := options.pop("metrics_port", 0):
    from onefold.config import metrics_server
    from onefold.spark_sink import lag_monitor
    lag_monitor.ASK_EVERY_S = 0.5
    options["telemetry"] = metrics_server.Exposed("sink", [one.name for one in pipelines], options.pop("stall_s"))
    metrics_server.serve(options["telemetry"], "127.0.0.1", port)
if "spark" in options:
    from onefold.spark_sink.spark.options import SparkSettings
    options["spark"] = SparkSettings(**options["spark"])
if renewed := options.pop("renewed", ""):
    from onefold.spark_sink.query_config import Logins
    options["logins"] = lambda: Logins(**json.loads(Path(renewed).read_text()))
jars = [Path(jar) for jar in options.pop("jars")]
kafka = {"kafka_options": options.pop("kafka_options", {}), "spark_kafka": {}}
sys.exit(service.run(pipelines, **options, **paths, **kafka, jars=jars, step=failpoint.from_environment()))
"""


class Child:
    """A sink in a separate process."""

    def __init__(self, options: dict[str, Any], environment: dict[str, str], folder: Path) -> None:
        self.status_file = folder / "status.json"
        self.log = folder / "sink.log"
        asked = json.dumps({**options, "status_file": str(self.status_file)})
        with self.log.open("wb") as out:
            command = [sys.executable, "-c", _CHILD, asked]
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def status(self) -> dict[str, Any]:
        """Content of the status file; {} before the first write."""
        return json.loads(self.status_file.read_text(encoding="utf-8")) if self.status_file.exists() else {}

    def is_in(self, state: str) -> bool:
        return self.status().get("state") == state


Start = Callable[..., Child]
#: Starts the sinks of a pipeline, with schemas and SQL in the checkout or in the given folder.
SinkOf = Callable[..., Start]


def of_a_sink(infrastructure: Infrastructure, database: str, folder: Path) -> dict[str, Any]:
    """Common options of every sink, without pipelines and their folders."""
    return {
        "bootstrap_servers": infrastructure.bootstrap_servers,
        "postgres_dsn": database,
        "writer": "sink-1",
        "jars": [str(jar) for jar in infrastructure.spark_jars],
        "java_home": str(infrastructure.java.spark_home),
        "checkpoint_root": str(folder / "checkpoints"),
    }


# Lines of a sink's log shown for a failed test.
_SAID_LAST = 30


@contextmanager
def children(options: Mapping[str, Any], environment: Mapping[str, str], folder: Path) -> Iterator[Start]:
    """Yield a function that starts sinks with these options and changes, and kill remaining sinks at the end."""
    started: list[Child] = []

    def start(failpoint: str = "", **changes: Any) -> Child:
        own = folder / f"sink-{len(started)}"
        own.mkdir()
        added = {"ONEFOLD_FAILPOINT": failpoint, "PYTHONPATH": str(ROOT / "src")}
        started.append(Child({**options, **changes}, {**environment, **added}, own))
        return started[-1]

    try:
        yield start
    except BaseException as error:
        for child in started:
            said = child.log.read_text(encoding="utf-8").splitlines()[-_SAID_LAST:]
            name, code = child.log.parent.name, child.process.poll()
            error.add_note("\n".join([f"{name}, exit code {code}, said last:", *said]))
        raise
    finally:
        for child in started:
            if child.process.poll() is None:
                child.process.kill()
            child.process.wait(20)


@pytest.fixture
def sink_of(
    infrastructure: Infrastructure, database: str, environment: dict[str, str], checkout: Path, tmp_path: Path
) -> Iterator[SinkOf]:
    """Start sinks of a pipeline, and kill remaining sinks at the end."""
    with ExitStack() as stack:

        def of(domain: str, root: Path = checkout) -> Start:
            options = {"domains": [domain], "root": str(root), **of_a_sink(infrastructure, database, tmp_path)}
            return stack.enter_context(children(options, environment, tmp_path))

        yield of
