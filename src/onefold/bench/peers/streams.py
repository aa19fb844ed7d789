"""Kafka Streams as a measured program: compiled here from `TradeDeltas.java`, with settings for speed."""

import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE
from onefold.stack import jars, java
from onefold.stack.broker import LOGGING
from onefold.stack.embedded import Infrastructure, default_cache
from onefold.stack.service import Ready, SupervisedService

SOURCE = Path(__file__).with_name("TradeDeltas.java")

_COMPILE_S = 120.0  # many times the usual duration
_STOP_S = 30.0  # to commit pending records, and close the stores
# A heap for millions of trades, allocated at the start: its growth is not part of the measurement. The parallel collector is
# the fastest for this application.
_JVM_FLAGS = ("-Xms2g", "-Xmx3g", "-XX:+UseParallelGC")


class StreamsStore(StrEnum):
    """State store of Kafka Streams."""

    MEMORY = "memory"
    ROCKSDB = "rocksdb"


@dataclass(frozen=True)
class Streams:
    """A compiled Kafka Streams application.

    Attributes:
        java: the java executable.
        path: the class path.
    """

    java: Path
    path: str

    def service(
        self, home: Path, bootstrap: str, name: str, topics: tuple[str, str], options: "Options"
    ) -> SupervisedService:
        """Service definition of the application, with settings and states in the folder `home`.

        Args:
            name: consumer group, and prefix of the internal topics.
            topics: input topic and output topic.
        """
        home.mkdir(parents=True)
        settings = home / "streams.properties"
        own = {"bootstrap.servers": bootstrap, "application.id": name, "state.dir": str(home / "states")}
        found = {**own, **options.settings()}
        settings.write_text("".join(f"{name}={value}\n" for name, value in found.items()), encoding="utf-8")
        flags = (*_JVM_FLAGS, f"-Dlog4j2.configurationFile={LOGGING}", "-cp", self.path)
        return SupervisedService(
            name="kafka-streams",
            argv=(str(self.java), *flags, SOURCE.stem, str(settings), *topics, options.store.value),
            log=home / "streams.log",
            ready=Ready("done"),
            stop_s=_STOP_S,
        )


@dataclass(frozen=True)
class Options:
    """Adjustable settings of Kafka Streams.

    Attributes:
        threads: stream threads, which share the tasks.
        commit_ms: between two transactions.
    """

    threads: int
    store: StreamsStore
    commit_ms: int

    def settings(self) -> dict[str, str | int]:
        """Settings of Kafka Streams: exactly once, and otherwise the fastest values for this application."""
        return {
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": self.commit_ms,
            "num.stream.threads": self.threads,
            "replication.factor": 1,
            # As in Onefold, a record that cannot be parsed does not end the process.
            "deserialization.exception.handler": "org.apache.kafka.streams.errors.LogAndContinueExceptionHandler",
            "buffered.records.per.partition": 5000,
            "consumer.auto.offset.reset": "earliest",
            "consumer.max.poll.records": 4000,
            "consumer.max.partition.fetch.bytes": 4 * 1024 * 1024,
            "producer.compression.type": "lz4",
            "producer.batch.size": 256 * 1024,
            "producer.linger.ms": 20,
            "producer.buffer.memory": 128 * 1024 * 1024,
        }


def compiled(running: Infrastructure, into: Path) -> Streams:
    """Compile the application into a folder, with downloaded jars of Kafka Streams.

    Raises UserError if the jars or the compiler are missing, RuntimeError if the source does not compile.
    """
    more = jars.ensure("peers", default_cache(), running.java.executable)
    path = ":".join(map(str, [into, *running.broker.jars, *more]))
    into.mkdir(parents=True)
    command = [str(compiler()), "--release", str(min(java.SUPPORTED)), "-d", str(into), "-cp", path, str(SOURCE)]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=_COMPILE_S
    )
    if done.returncode:
        raise RuntimeError(f"{SOURCE.name} does not compile:\n{done.stderr.strip()}")
    return Streams(running.java.executable, path)


def compiler() -> Path:
    """Find the javac of the Java in use, or else on the PATH. Raises UserError (exit code 69) if there is none."""
    beside = java.locate(default_cache()).executable.resolve().with_name("javac")
    if found := beside if beside.exists() else shutil.which("javac"):
        return Path(found)
    raise UserError(
        Code.PROGRAM_MISSING,
        "Kafka Streams cannot be compiled: there is no compiler here (javac), only a Java",
        "Install a JDK 17 or 21 (Debian and Ubuntu: apt install openjdk-17-jdk-headless), or set JAVA_HOME to one.",
        UNAVAILABLE,
    )
