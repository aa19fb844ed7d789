"""Services without servers, for forked processes. Each waits for Kafka or PostgreSQL, or fails with the given fault."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from onefold.error_codes import Code
from onefold.process import ServiceProcess

AWAY = "127.0.0.1:9"
DSN = f"postgresql://{AWAY}/none"
NEWER = "a newer Onefold has made this"


def processor(fault: str, status: Path) -> int:
    from onefold.processor import service
    from onefold.processor.core.errors import Refused

    if fault:
        cast("Any", service).check_reachable = lambda client: _fail(fault, Refused)
    return service.run("runner", client={"bootstrap.servers": AWAY}, instance="1", status_file=status)


def worker(fault: str, status: Path) -> int:
    import psycopg

    from onefold.jobs import service
    from onefold.jobs.context import Context
    from onefold.operate import pipelines
    from onefold.processor.core.errors import Refused

    def prepare() -> None:
        _fail(fault, Refused)
        raise psycopg.OperationalError("connection refused")

    context = Context("sheets", DSN, {"bootstrap.servers": AWAY}, lambda: cast("Any", None), status.parent)
    return service.run(pipelines.found()["sheets"], context, instance="1", prepare=prepare, status_file=status)


def sink(fault: str, status: Path) -> int:
    from onefold.operate import pipelines
    from onefold.processor.core.errors import Refused
    from onefold.spark_sink import service
    from onefold.spark_sink.spark import session

    def start(*given: object) -> Any:
        _fail(fault, Refused)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as PySpark does
        return SimpleNamespace(stop=lambda: None, sparkContext=SimpleNamespace(master="local[*]"))

    cast("Any", session).Driver.start = start
    return service.run(
        [pipelines.found()["runner"]],
        bootstrap_servers=AWAY,
        kafka_options={},
        spark_kafka={},
        postgres_dsn=DSN,
        writer="sink-1",
        jars=[],
        java_home="",
        checkpoint_root=status.parent,
        status_file=status,
        step=lambda name: None,
    )


def auditor(fault: str, status: Path) -> int:
    from onefold.cli import main
    from onefold.processor.core.errors import Refused
    from onefold.verify.audit.auditor import Auditor, AuditStatus
    from onefold.verify.verdict import INVALID

    def run(self: Any, *given: object) -> AuditStatus:
        _fail(fault, Refused)
        return AuditStatus(outcome=INVALID, reason="a row is wrong")

    if fault:
        cast("Any", Auditor).run = run
    os.environ |= {"ONEFOLD_STATUS_FILE": str(status), "ONEFOLD_POSTGRES_DSN": DSN, "ONEFOLD_BOOTSTRAP_SERVERS": AWAY}
    return main.run(["audit", "runner"])


def signalled_in_a_wait(fault: str, status: Path) -> int:
    with ServiceProcess(status) as process:
        with cast("Any", process.stop)._cond:  # as for a moment of each `wait`
            os.kill(os.getpid(), signal.SIGTERM)
        process.stop.wait(60)
    return process.exit_code


def _fail(fault: str, refused: type[Exception]) -> None:
    if fault == "bug":
        raise ValueError("a bug")
    if fault == "refused":
        raise refused(Code.NEWER_VERSION, NEWER)
