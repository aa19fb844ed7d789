"""Environment for a benchmark: a broker and a database in a separate folder, and Onefold's commands as users run them."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onefold import kafka_client
from onefold.config.settings import Settings
from onefold.operate import offsets, pacing
from onefold.stack.child import Child
from onefold.stack.embedded import Infrastructure, infrastructure
from onefold.stack.postgres import PostgresServer
from onefold.stack.service import command, of_command
from onefold.waiting import until
from onefold.workloads.shaping import Input

Say = Callable[[str], None]

# Spark takes longest to start, and a cold disk may triple the time.
_READY_S = 120.0
# Interval between checks of a condition, long enough not to disturb the measurement.
_ASK_EVERY_S = 0.1


@dataclass
class BenchmarkEnvironment:
    """The running stack. `environment`: environment variables of the commands."""

    infrastructure: Infrastructure
    home: Path
    environment: dict[str, str]
    say: Say
    _children: ExitStack

    @property
    def client(self) -> dict[str, str]:
        """librdkafka settings."""
        return {"bootstrap.servers": self.infrastructure.bootstrap_servers}

    @property
    def dsn(self) -> str:
        """Connection string of the database."""
        return self.infrastructure.postgres_dsn

    @cached_property
    def settings(self) -> Settings:
        """Settings of commands that run in this process."""
        return Settings(bootstrap_servers=self.client["bootstrap.servers"], postgres_dsn=self.dsn)

    def run(self, *arguments: str) -> str:
        """Run one command to completion, and return the output. Raises RuntimeError with the output if the command fails; the
        reason is on stderr."""
        ran = subprocess.run(
            command(*arguments), env={**os.environ, **self.environment}, check=False, stdout=subprocess.PIPE
        )
        said = ran.stdout.decode(errors="replace")
        if ran.returncode:
            raise RuntimeError(f"`onefold {' '.join(arguments)}` failed\n{said}".strip())
        return said

    def start(self, name: str, *arguments: str) -> Child:
        """Start a long-running command in the background, and wait for the status "running"."""
        child = self.begin(name, *arguments)
        child.wait_ready(_READY_S)
        return child

    def begin(self, name: str, *arguments: str) -> Child:
        """Start a long-running command without waiting."""
        status = self.home / f"{name}.status.json"
        status.unlink(missing_ok=True)  # left by a killed process
        # A single port would be taken twice. A benchmark of metrics sets ports itself.
        made = {"ONEFOLD_METRICS_PORT": "0", **self.environment}
        service = of_command(name, arguments, self.home / "logs" / f"{name}.log", status, made)
        child = Child(service)
        child.start()
        self._children.callback(child.stop)
        return child

    def fill(self, inputs: Iterator[Input]) -> int:
        """Produce all inputs as fast as the generator makes them; returns the count."""
        producer = kafka_client.producer({**self.client, **pacing.FAST})
        count = 0
        for given in inputs:
            pacing.produce(producer, *given)
            count += 1
        producer.flush(60)
        return count

    def wait(self, condition: Callable[[], bool], deadline_s: float, what: str, look_s: float = _ASK_EVERY_S) -> None:
        """Wait until `condition` holds, checked every `look_s` seconds. Raises RuntimeError with `what` after the deadline."""
        if not until(condition, deadline_s, look_s):
            raise RuntimeError(f"not within {deadline_s:.0f} s: {what}; logs are in {self.home / 'logs'}")

    def drained(self, pipeline: str) -> bool:
        """Whether all events of a pipeline are processed, and all output records written to PostgreSQL."""
        return offsets.lag_of(pipeline, self.settings)["events"] == 0

    def to_land(self, topics: Sequence[str]) -> int:
        """Offsets of these output topics over all partitions, markers included."""
        return sum(offsets.stable_ends(kafka_client.admin({**self.client}), topics).values())

    def landed(self, domain: str) -> int:
        """Offsets that the sink has written, over all output partitions of the pipeline."""
        return sum(offsets.landed(self.dsn, domain).values())


@contextmanager
def benchmark_environment(pipeline: str, partitions: int, say: Say) -> Iterator[BenchmarkEnvironment]:
    """Create a stack with the topics and tables of a pipeline, and delete all of it after the block."""
    with tempfile.TemporaryDirectory(prefix="onefold-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        say("starting Kafka and PostgreSQL")
        with ExitStack() as children:
            # Registered first, called last. For root, the data lies outside the folder and would remain.
            children.callback(PostgresServer(home / "postgres", 0).wipe)
            running = children.enter_context(infrastructure(home, say))
            environment = {
                "ONEFOLD_HOME": str(home),
                "ONEFOLD_BOOTSTRAP_SERVERS": running.bootstrap_servers,
                "ONEFOLD_POSTGRES_DSN": running.postgres_dsn,
                "ONEFOLD_PARTITIONS": str(partitions),
                # Independent of the user's own settings.
                "ONEFOLD_KAFKA_OPTIONS": "{}",
                **dict.fromkeys(("ONEFOLD_OBJECTS", "ONEFOLD_JUDGE_HOME", "ONEFOLD_STATE_HOME"), ""),
            }
            made = BenchmarkEnvironment(running, home, environment, say, children)
            made.run("migrate", pipeline)
            yield made
