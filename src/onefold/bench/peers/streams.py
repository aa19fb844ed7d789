"""Kafka Streams as a program to be measured: compiled here from `TradeDeltas.java`, with settings that make it fast."""

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

_COMPILE_S = 120.0  # many times what it takes
_STOP_S = 30.0  # it commits what it has in hand, and closes its stores
# A heap with room for millions of trades, given at once: its growth is not what is measured. The parallel collector was the
# fastest for it, by a fifth to a third.
_JVM_FLAGS = ("-Xms2g", "-Xmx3g", "-XX:+UseParallelGC")


class StreamsStore(StrEnum):
    """Where Kafka Streams keeps its states."""

    MEMORY = "memory"
    ROCKSDB = "rocksdb"


@dataclass(frozen=True)
class Streams:
    """A compiled Kafka Streams application.

    Attributes:
        java: that runs it.
        path: the class path.
    """

    java: Path
    path: str

    def service(
        self, home: Path, bootstrap: str, name: str, topics: tuple[str, str], options: "Options"
    ) -> SupervisedService:
        """The application as a program to start, with its settings and states in the folder `home`.

        Args:
            name: its consumer group, and what the topics that it makes for itself begin with.
            topics: that it reads, and that it writes.
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
    """What of Kafka Streams may be chosen.

    Attributes:
        threads: stream threads, which share the tasks.
        commit_ms: between two transactions.
    """

    threads: int
    store: StreamsStore
    commit_ms: int

    def settings(self) -> dict[str, str | int]:
        """Of Kafka Streams: exactly once, and for the rest what it is fastest with here."""
        return {
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": self.commit_ms,
            "num.stream.threads": self.threads,
            "replication.factor": 1,
            # As with Onefold, what cannot be parsed does not end the process.
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
    """The application, compiled into a folder, with Kafka Streams' jars, which are fetched. Raises UserError where it cannot
    be.
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
    """The javac that came with the Java that runs here, else that of the PATH. Raises UserError (exit code 69) where there is
    none.
    """
    beside = java.locate(default_cache()).executable.resolve().with_name("javac")
    if found := beside if beside.exists() else shutil.which("javac"):
        return Path(found)
    raise UserError(
        Code.PROGRAM_MISSING,
        "Kafka Streams cannot be compiled: there is no compiler here (javac), only a Java",
        "Install a JDK 17 or 21 (Debian and Ubuntu: apt install openjdk-17-jdk-headless), or set JAVA_HOME to one.",
        UNAVAILABLE,
    )
