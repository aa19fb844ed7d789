"""A stack for measuring: broker and database in a folder of their own, and Onefold's commands as users run them."""

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
from onefold.operate import pacing, positions
from onefold.stack.child import Child
from onefold.stack.embedded import Infrastructure, infrastructure
from onefold.stack.postgres import Postgres
from onefold.stack.service import command, of_command
from onefold.waiting import until
from onefold.workloads.shaping import Input

Say = Callable[[str], None]

# Spark's start is the longest of all; a cold disk may triple it.
_READY_S = 120.0
# How often a condition is looked at: seldom enough not to disturb what is measured.
_ASK_EVERY_S = 0.1


@dataclass
class BenchmarkEnvironment:
    """The running stack. `environment` is what its commands get."""

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
        """Of the database."""
        return self.infrastructure.postgres_dsn

    @cached_property
    def settings(self) -> Settings:
        """Of commands that run in this process."""
        return Settings(bootstrap_servers=self.client["bootstrap.servers"], postgres_dsn=self.dsn)

    def run(self, *arguments: str) -> str:
        """Run one command to its end. Returns what it has printed; RuntimeError with that when it fails. Why it does is on
        stderr.
        """
        ran = subprocess.run(
            command(*arguments), env={**os.environ, **self.environment}, check=False, stdout=subprocess.PIPE
        )
        said = ran.stdout.decode(errors="replace")
        if ran.returncode:
            raise RuntimeError(f"`onefold {' '.join(arguments)}` failed\n{said}".strip())
        return said

    def start(self, name: str, *arguments: str) -> Child:
        """Start a long-running command in the background and wait until it says that it runs."""
        child = self.begin(name, *arguments)
        child.wait_ready(_READY_S)
        return child

    def begin(self, name: str, *arguments: str) -> Child:
        """The same, without waiting."""
        status = self.home / f"{name}.status.json"
        status.unlink(missing_ok=True)  # of one that was killed
        # One port for all of them would be taken: unless somebody measures what metrics cost.
        made = {"ONEFOLD_METRICS_PORT": "0", **self.environment}
        service = of_command(name, arguments, self.home / "logs" / f"{name}.log", status, made)
        child = Child(service)
        child.start()
        self._children.callback(child.stop)
        return child

    def fill(self, inputs: Iterator[Input]) -> int:
        """Produce all inputs as fast as they are generated; returns how many."""
        producer = kafka_client.producer({**self.client, **pacing.FAST})
        count = 0
        for given in inputs:
            pacing.produce(producer, *given)
            count += 1
        producer.flush(60)
        return count

    def wait(self, condition: Callable[[], bool], deadline_s: float, what: str, look_s: float = _ASK_EVERY_S) -> None:
        """Until `condition` holds, asked every `look_s` seconds; RuntimeError with `what` when it does not in time."""
        if not until(condition, deadline_s, look_s):
            raise RuntimeError(f"not within {deadline_s:.0f} s: {what}; logs are in {self.home / 'logs'}")

    def drained(self, pipeline: str) -> bool:
        """Whether all events of a pipeline are processed, and all of its output records written to PostgreSQL."""
        return positions.lag_of(pipeline, self.settings)["events"] == 0

    def to_land(self, topics: Sequence[str]) -> int:
        """Offsets of these output topics, over all partitions, markers too."""
        return sum(positions.stable_ends(kafka_client.admin({**self.client}), topics).values())

    def landed(self, domain: str) -> int:
        """Offsets that the sink has landed, over all output partitions of the domain."""
        return sum(positions.landed(self.dsn, domain).values())


@contextmanager
def benchmark_environment(pipeline: str, partitions: int, say: Say) -> Iterator[BenchmarkEnvironment]:
    """A fresh stack with the topics and tables of a pipeline; everything of it is gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix="onefold-bench-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        say("starting Kafka and PostgreSQL")
        with ExitStack() as children:
            # Registered first, done last. As root the data lies outside of the folder, and would stay.
            children.callback(Postgres(home / "postgres", 0).wipe)
            running = children.enter_context(infrastructure(home, say))
            environment = {
                "ONEFOLD_HOME": str(home),
                "ONEFOLD_BOOTSTRAP_SERVERS": running.bootstrap_servers,
                "ONEFOLD_POSTGRES_DSN": running.postgres_dsn,
                "ONEFOLD_PARTITIONS": str(partitions),
                # Not those of the user, who may have set them.
                "ONEFOLD_KAFKA_OPTIONS": "{}",
                **dict.fromkeys(("ONEFOLD_OBJECTS", "ONEFOLD_JUDGE_HOME", "ONEFOLD_STATE_HOME"), ""),
            }
            made = BenchmarkEnvironment(running, home, environment, say, children)
            made.run("migrate", pipeline)
            yield made
