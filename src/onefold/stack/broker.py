"""The embedded Apache Kafka: one KRaft node in combined roles, on loopback, with settings that fit one small
machine.
"""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onefold import jvm
from onefold.config import private_files
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, USAGE
from onefold.stack import inherited
from onefold.stack.service import Ready, Service

FORMAT_S = 60.0  # many times what it takes; a minute is a machine in deep trouble
STOP_S = 15.0  # many times what a controlled shutdown of a single node takes

# The serial collector and a small heap: on a small machine that also runs Spark and Postgres, the JVM's own threads compete
# with the work. Both compilers: what the second one takes in the first minute of many small requests it has saved by its end,
# and from then on it saves a third (docs/decisions/jvm-settings.md).
JVM_FLAGS = (
    "-Xms256m",
    "-Xmx640m",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)

LOGGING = Path(__file__).with_name("logging.properties")
# Which Kafka has formatted a folder: a file beside meta.properties, so that both come with the same rename.
MADE_BY = "kafka.version"
# Before there was this file there was one Kafka, which writes what older ones do not read.
MADE_BEFORE = "4.3.1"


@dataclass(frozen=True)
class Broker:
    """The node's folder, ports, Java and jars. `prepare()` once, then run `command()`."""

    home: Path
    port: int
    controller_port: int
    java: Path
    jars: Sequence[Path]

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Writes the configuration and formats the storage if that was not done yet. Raises UserError when Kafka
        refuses, or when a newer Kafka has written there.
        """
        if "," in str(self.home):
            raise UserError(
                Code.FOLDER_UNUSABLE,
                f"Kafka cannot have its data in {self.home}: it reads a comma as the end of a folder's name",
                "Set ONEFOLD_HOME to a folder that has no comma in its path.",
                USAGE,
            )
        private_files.folder(self.home)
        shutil.rmtree(self._temporary, ignore_errors=True)  # a JVM that was killed has left its libraries there
        data = self.home / "data"
        (self.home / "server.properties").write_text(self.configuration(data), encoding="ascii")
        if not (data / "meta.properties").exists():
            if data.is_dir() and any(data.iterdir()):
                raise UserError(
                    Code.DATA_DIRECTORY,
                    f"{data} holds files, and meta.properties, which each storage of Kafka has, is missing",
                    "Put the file back, or set ONEFOLD_HOME to a folder of its own.",
                    USAGE,
                )
            self._format()
        self._check_version()
        private_files.folder(data)

    @property
    def version(self) -> str:
        """Of its Kafka, as "4.2.2"."""
        return next((jar.stem.rpartition("-")[2] for jar in self.jars if jar.name.startswith("kafka_")), "")

    def configuration(self, data: Path) -> str:
        """The server.properties of this node with its log in `data`, in ASCII."""
        return jvm.as_properties(self._settings(data))

    def command(self) -> list[str]:
        """The command line that runs the node in the foreground."""
        return [*self._java(*JVM_FLAGS), "kafka.Kafka", str(self.home / "server.properties")]

    def service(self, log: Path) -> Service:
        """The node as a service for the supervisor."""
        return Service(
            name="kafka",
            argv=tuple(self.command()),
            log=log,
            ready=Ready("kafka", self.bootstrap_servers),
            stop_signal=signal.SIGTERM,
            stop_s=STOP_S,
            inherits=inherited.KAFKA,
        )

    def tool(self, main_class: str, *arguments: str) -> list[str]:
        """The command line of one of Kafka's own tools, as `org.apache.kafka.tools.ConsoleProducer`."""
        return [*self._java("-Xmx256m", "-XX:+UseSerialGC"), main_class, *arguments]

    def _java(self, *flags: str) -> list[str]:
        own = (*jvm.temporary(self._temporary), f"-Dlog4j2.configurationFile={LOGGING.as_uri()}")
        return [str(self.java), *flags, *own, "-cp", ":".join(map(str, self.jars))]

    @property
    def _temporary(self) -> Path:
        return self.home / "tmp"

    def _format(self) -> None:
        """Formats in a folder of another name first, so that an interrupted format is never taken for a finished
        one.
        """
        draft = self.home / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        properties = self.home / "format.properties"
        properties.write_text(self.configuration(draft), encoding="ascii")
        # Joined to its option by "=": one id in 64 begins with a dash and would be read as an option.
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self.tool("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config", str(properties))
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=FORMAT_S,
            stdin=subprocess.DEVNULL,
            env=inherited.environment(inherited.KAFKA),
        )
        if done.returncode != 0:
            reason = jvm.last_words(done.stdout + done.stderr, done.returncode)
            raise UserError(Code.SERVICE_FAILED, f"Kafka could not format its storage in {draft}: {reason}")
        properties.unlink()
        (draft / MADE_BY).write_text(f"{self.version}\n", encoding="utf-8")
        draft.rename(self.home / "data")  # in the place of an empty folder, if there is one

    def _check_version(self) -> None:
        made_by = self.home / "data" / MADE_BY
        made = made_by.read_text(encoding="utf-8").strip() if made_by.exists() else MADE_BEFORE
        if _release(made) > _release(self.version):
            raise UserError(
                Code.NEWER_VERSION,
                f"the topics in {self.home / 'data'} were written by Kafka {made}, and Kafka {self.version} does not read them",
                "Start over with `onefold down --wipe`, or go on with the Onefold that wrote them; why it is an older Kafka is in"
                " `onefold docs guarantee`, Kafka.",
                REFUSED,
            )

    def _settings(self, data: Path) -> dict[str, object]:
        here = f"127.0.0.1:{self.port}"
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{here},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{here}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": data,
            # A misspelt topic is an error, not a new topic.
            "auto.create.topics.enable": "false",
            "unclean.leader.election.enable": "false",
            # One node holds one replica of everything. Four partitions: each one is loaded at every start.
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            # The log is the truth here: nothing in it gets too old.
            "log.retention.ms": -1,
            # A member that joins need not wait for others; a killed one is missed after a second.
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            # An abandoned transaction blocks readers until this check ends it (default 10 s).
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            # After a kill -9 the controller waits until the old incarnation's session is over (default 9 s).
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 500,
            # Threads and buffers for two cores and a heap of 640 MB; the defaults are for a server of its own.
            "num.network.threads": 2,
            "num.io.threads": 4,
            "background.threads": 4,
            "num.recovery.threads.per.data.dir": 2,
            "log.cleaner.dedupe.buffer.size": 32 * 1024 * 1024,
        }


def _release(version: str) -> tuple[int, ...]:
    """4.2 of 4.2.2: what the third number stands for changes nothing on the disk."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
