"""A service as data: the program, the check for readiness, the way to stop. The supervisor gets the data as JSON."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from onefold import status_file
from onefold.config.errors import first_line

PROBE_S = 0.5  # time-out of a query to a service; the supervisor repeats the query
ANSWER_S = 2.0  # the shortest time-out of libpq
# Fields with a different name in plan.json.
_STORED = {"stop_s": "stop_seconds"}


@dataclass(frozen=True)
class Ready:
    """The check that a service is ready.

    Attributes:
        kind: kafka: the node at `target` ("host:port") answers a metadata request. postgres: the database at `target` (a DSN)
            answers a query. status_file: the state in the file `target` is "running". done: the program ends with exit code 0
            (a task, not a service).
        target: see `kind`; empty for done.
    """

    kind: Literal["kafka", "postgres", "status_file", "done"]
    target: str = ""


@dataclass(frozen=True)
class SupervisedService:
    """A program under supervision.

    Attributes:
        folder: the working folder; None for the supervisor's.
        stop_s: seconds from `stop_signal` to SIGKILL.
        death_signal: the signal to the program if the supervisor ends without stopping the program.
        account: the program's (uid, gid); None keeps the supervisor's.
        needed: whether the stack is useless without the service; a single pipeline's processor is not needed.
        inherits: the names of the inherited environment variables (`stack.inherited`); None: all.
        log_bytes: the size of a log file, after which a new file begins.
        log_files: the number of kept log files.
        stopped: whether the user stopped the service: the supervisor does not start it.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    ready: Ready
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    stop_signal: int = signal.SIGTERM
    stop_s: float = 10.0
    death_signal: int = signal.SIGKILL
    account: tuple[int, int] | None = None
    needed: bool = True
    inherits: tuple[str, ...] | None = None
    log_bytes: int = 10_000_000
    log_files: int = 5
    stopped: bool = False

    def as_json(self) -> dict[str, Any]:
        """The service as plain JSON values, by the names in plan.json."""
        paths = {"log": str(self.log), "folder": str(self.folder) if self.folder else None}
        return {_STORED.get(name, name): value for name, value in (asdict(self) | paths).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SupervisedService:
        """The service from the output of `as_json`, without unknown fields."""
        account = value["account"]
        stored = {one.name: _STORED.get(one.name, one.name) for one in fields(cls)}
        known = {name: value[there] for name, there in stored.items() if there in value}
        return cls(
            **{
                **known,
                "argv": tuple(value["argv"]),
                "log": Path(value["log"]),
                "ready": Ready(**value["ready"]),
                "folder": Path(value["folder"]) if value["folder"] else None,
                "account": tuple(account) if account else None,
                "inherits": tuple(inherits) if (inherits := value.get("inherits")) is not None else None,
            }
        )


def command(*arguments: str) -> tuple[str, ...]:
    """The command line of a command of Onefold."""
    return sys.executable, "-P", "-m", "onefold.cli.main", *arguments


def of_command(
    name: str, arguments: Sequence[str], log: Path, status: Path, environment: Mapping[str, str], **more: Any
) -> SupervisedService:
    """A command of Onefold as a service; ready if the state in the status file is "running".

    Args:
        more: further fields of the service.
    """
    made = {**environment, "ONEFOLD_STATUS_FILE": str(status)}
    return SupervisedService(
        name, command(*arguments), log, **{"ready": Ready("status_file", str(status)), "environment": made, **more}
    )


def is_ready(ready: Ready) -> tuple[bool, str]:
    """Query the service once. Returns (ready, a few words about the state)."""
    match ready.kind:
        case "kafka":
            return _kafka_answers(ready.target)
        case "postgres":
            return _postgres_answers(ready.target)
        case "status_file":
            return _status_is_running(Path(ready.target))
    return False, ""


def _kafka_answers(address: str) -> tuple[bool, str]:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PROBE_S).close()  # cheap: no client before the port is open
    except OSError:
        return False, "not listening yet"
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    try:
        found = kafka_client.admin({"bootstrap.servers": address}).list_topics(timeout=PROBE_S)
    except KafkaException as error:
        return False, str(error.args[0].str())
    return bool(found.brokers), f"listening on {address}"


def _postgres_answers(dsn: str) -> tuple[bool, str]:
    import psycopg

    from onefold import postgres

    try:
        with postgres.connect(dsn, "onefold up", connect_s=ANSWER_S, patience_s=ANSWER_S) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        return False, first_line(error)
    return True, f"listening on 127.0.0.1:{psycopg.conninfo.conninfo_to_dict(dsn)['port']}"


def _status_is_running(path: Path) -> tuple[bool, str]:
    try:
        status = status_file.read(path)
    except status_file.Newer as error:
        return False, str(error)
    return status.get("state") == "running", status.get("detail", "")
