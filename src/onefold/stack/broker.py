"""The embedded Apache Kafka: one KRaft node in combined roles, on loopback, with settings for a small machine."""

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
from onefold.stack import service_environment
from onefold.stack.service import Ready, SupervisedService

FORMAT_S = 60.0  # long enough for formatting on an overloaded machine
STOP_S = 15.0  # long enough for a controlled shutdown of a single node

# The serial collector and a small heap, because the JVM's threads compete with Spark and PostgreSQL on a small machine. Both
# JIT compilers, because C2 pays off within the first minute (docs/decisions/jvm-settings.md).
JVM_FLAGS = (
    "-Xms256m",
    "-Xmx640m",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)

LOGGING = Path(__file__).with_name("logging.properties")
# The file with the Kafka version that formatted a folder; in the folder of meta.properties, so that one rename moves both.
MADE_BY = "kafka.version"
# The version of a folder without the file. Older Kafka versions do not read the folder.
MADE_BEFORE = "4.3.1"


@dataclass(frozen=True)
class Broker:
    """The node's folder, ports, Java and jars. Call `prepare()` once, then run `command()`."""

    home: Path
    port: int
    controller_port: int
    java: Path
    jars: Sequence[Path]

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, "host:port"."""
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Write the configuration, and format an unformatted storage.

        Raises:
            UserError: Kafka cannot format the storage, a newer Kafka has written the storage, or the folder is unusable.
        """
        if "," in str(self.home):
            raise UserError(
                Code.FOLDER_UNUSABLE,
                f"Kafka cannot have its data in {self.home}: it reads a comma as the end of a folder's name",
                "Set ONEFOLD_HOME to a folder that has no comma in its path.",
                USAGE,
            )
        private_files.folder(self.home)
        shutil.rmtree(self._temporary, ignore_errors=True)  # a killed JVM leaves unpacked libraries there
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
        """The version of Kafka by the jars, as "4.2.2"; "" if no jar has a version."""
        return next((jar.stem.rpartition("-")[2] for jar in self.jars if jar.name.startswith("kafka_")), "")

    def configuration(self, data: Path) -> str:
        """The node's server.properties in ASCII, with `data` as the log directory."""
        return jvm.as_properties(self._settings(data))

    def command(self) -> list[str]:
        """The command line that runs the node in the foreground."""
        return [*self._java(*JVM_FLAGS), "kafka.Kafka", str(self.home / "server.properties")]

    def service(self, log: Path) -> SupervisedService:
        """The node as a service for the supervisor."""
        return SupervisedService(
            name="kafka",
            argv=tuple(self.command()),
            log=log,
            ready=Ready("kafka", self.bootstrap_servers),
            stop_signal=signal.SIGTERM,
            stop_s=STOP_S,
            inherits=service_environment.KAFKA,
        )

    def tool(self, main_class: str, *arguments: str) -> list[str]:
        """The command line of a Kafka tool, as `org.apache.kafka.tools.ConsoleProducer`."""
        return [*self._java("-Xmx256m", "-XX:+UseSerialGC"), main_class, *arguments]

    def _java(self, *flags: str) -> list[str]:
        own = (*jvm.temporary(self._temporary), f"-Dlog4j2.configurationFile={LOGGING.as_uri()}")
        return [str(self.java), *flags, *own, "-cp", ":".join(map(str, self.jars))]

    @property
    def _temporary(self) -> Path:
        return self.home / "tmp"

    def _format(self) -> None:
        """Format a draft folder, then rename the folder: an interrupted format leaves no `data` folder."""
        draft = self.home / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        properties = self.home / "format.properties"
        properties.write_text(self.configuration(draft), encoding="ascii")
        # Joined to the option by "=": one id in 64 begins with a dash, and the tool would read the id as an option.
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
            env=service_environment.environment(service_environment.KAFKA),
        )
        if done.returncode != 0:
            reason = jvm.last_words(done.stdout + done.stderr, done.returncode)
            raise UserError(Code.SERVICE_FAILED, f"Kafka could not format its storage in {draft}: {reason}")
        properties.unlink()
        (draft / MADE_BY).write_text(f"{self.version}\n", encoding="utf-8")
        draft.rename(self.home / "data")  # replaces an empty folder

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
            # A misspelt topic name must be an error, not a new topic.
            "auto.create.topics.enable": "false",
            "unclean.leader.election.enable": "false",
            # A single node holds one replica. Few partitions, because the broker loads each at every start.
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            # Topics are the source for `verify` and `rebuild`: records never expire.
            "log.retention.ms": -1,
            # A joining member does not wait for further members; the broker detects a killed member after one second.
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            # An abandoned transaction blocks readers until the next check aborts the transaction (default: every 10 s).
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            # After kill -9 the controller waits for the end of the killed broker's session (default 9 s).
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 500,
            # Threads and buffers for two cores and a heap of 640 MB; the defaults are for a dedicated server.
            "num.network.threads": 2,
            "num.io.threads": 4,
            "background.threads": 4,
            "num.recovery.threads.per.data.dir": 2,
            "log.cleaner.dedupe.buffer.size": 32 * 1024 * 1024,
        }


def _release(version: str) -> tuple[int, ...]:
    """(4, 2) for "4.2.2". A patch release does not change the format on disk."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
