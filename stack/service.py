"""What a service is, as data: what to run, how to know that it is ready, how to stop it. Travels to the supervisor as
JSON.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from onefold import status_file
from onefold.operate.errors import first_line

PROBE_S = 0.5  # how long one question to a service may take; it is asked again
ANSWER_S = 2.0  # the same of a question that libpq asks: it knows no shorter time
# Fields that plan.json has by another name.
_STORED = {"stop_s": "stop_seconds"}


@dataclass(frozen=True)
class Ready:
    """How to know that a service is ready.

    Attributes:
        kind: kafka: the node at `target` ("host:port") answers a metadata request. postgres: the database at `target` (a DSN)
            answers a query. status_file: the state in the file `target` is "running". done: the program ends with exit code 0
            (a task, not a service).
        target: see `kind`; empty for done.
    """

    kind: Literal["kafka", "postgres", "status_file", "done"]
    target: str = ""


@dataclass(frozen=True)
class Service:
    """One program under supervision.

    Attributes:
        folder: that it runs in; None for the supervisor's.
        stop_s: how long it may take to end after `stop_signal`, before it is killed.
        death_signal: what it gets when the supervisor ends without stopping it.
        account: the (uid, gid) that it runs as; None keeps the supervisor's.
        needed: whether the stack is of no use without it; one pipeline's processor is not.
        after_s: of a task for which nobody waits, and which is tried once: how long after the supervisor has taken it in.
        early: it starts with the first stage, and waits itself for what it needs of those before its own.
        spare: the name of a service that goes on in its place when it ends: while that one runs, there is no hurry to start this
            one again.
        inherits: the names of the variables that it gets of the supervisor's environment (`stack.inherited`); None: all.
        log_bytes: after so many its log goes on in a new file.
        log_files: so many are kept of them.
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
    after_s: float = 0.0
    early: bool = False
    spare: str = ""
    inherits: tuple[str, ...] | None = None
    log_bytes: int = 10_000_000
    log_files: int = 5

    def as_json(self) -> dict[str, Any]:
        """The service as plain JSON values, by the names that plan.json has."""
        paths = {"log": str(self.log), "folder": str(self.folder) if self.folder else None}
        return {_STORED.get(name, name): value for name, value in (asdict(self) | paths).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Service:
        """The service that `as_json` wrote. Fields that are not known are left out."""
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


def is_ready(ready: Ready) -> tuple[bool, str]:
    """Asks once. Returns (ready, a few words about its state)."""
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
        socket.create_connection((host, int(port)), PROBE_S).close()  # cheap: no client before something listens
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
