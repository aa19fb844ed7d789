"""One fault, one exit code: of the processor and of the sink."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold import pipelines, postgres
from onefold.config.errors import UserError, of_postgres
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, REFUSED, UNAVAILABLE, USAGE
from onefold.operate.pipelines import migrate_engine
from onefold.operate.reset import empty_tables
from onefold.operate.reset.session import alone
from onefold.pipelines import Pipeline
from onefold.processor import service as processor
from onefold.spark_sink import service as sink


def process(pipeline: Pipeline) -> int:
    return processor.run(pipeline.name, client={"bootstrap.servers": "127.0.0.1:9"}, instance="one")


def land(pipeline: Pipeline) -> int:
    given: dict[str, Any] = {
        "bootstrap_servers": "127.0.0.1:9",
        "kafka_options": {},
        "spark_kafka": {},
        "postgres_dsn": "",
        "writer": "w",
        "jars": [],
        "java_home": "",
        "checkpoint_root": pipeline.contracts,
        "status_file": None,
        "step": lambda name: None,
    }
    return sink.run([pipeline], **given)


@pytest.mark.parametrize("content", [None, "{", '{"topics": ["runner.updates"], "type": "nothing"}'], ids=str)
@pytest.mark.parametrize("run", [process, land])
def test_a_contract_that_is_missing_or_none_is_a_fault_of_the_configuration(
    run: Callable[[Pipeline], int], content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but an edit can help: 2, and not the 3 by which a person is asked about the data."""
    if content is not None:
        (tmp_path / "runner.Update.avsc").write_text(content, encoding="utf-8")
    broken = replace(pipelines.find()["runner"], contracts=tmp_path)
    monkeypatch.setattr(pipelines, "find", lambda: {"runner": broken})
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert run(broken) == USAGE


def test_a_pipeline_that_is_not_there_is_a_fault_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `onefold sink nothing` says before it starts."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert processor.run("nothing", client={}, instance="one") == USAGE


def test_an_address_that_is_none_is_a_fault_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a schema registry: whoever gave it can mend it."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    assert processor.run("runner", client={}, instance="one", schema_registry_url="nowhere") == USAGE


NOBODY = "postgresql://me@127.0.0.1:9/none"  # port 9 takes no connection


def empty() -> None:
    with empty_tables.transaction(NOBODY, ""):
        pass


def keep_out() -> None:
    with alone(NOBODY, "runner"):
        pass


def show() -> None:
    try:
        with postgres.connect(NOBODY, "onefold explain"):
            pass
    except psycopg.Error as error:
        raise of_postgres(error, "the database does not answer") from None


@pytest.mark.parametrize("ask", [lambda: migrate_engine(Settings(postgres_dsn=NOBODY)), empty, keep_out, show])
def test_a_postgresql_that_does_not_answer_is_unavailable(ask: Callable[[], object]) -> None:
    """And no failure of the command, which is worth another try later."""
    with pytest.raises(UserError) as told:
        ask()
    assert told.value.exit_code == UNAVAILABLE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (psycopg.OperationalError("connection refused"), UNAVAILABLE),
        (psycopg.errors.CannotConnectNow("the database system is starting up"), UNAVAILABLE),
        (psycopg.errors.AdminShutdown("terminating connection"), UNAVAILABLE),
        (psycopg.errors.IdleSessionTimeout("terminating connection"), UNAVAILABLE),
        (psycopg.errors.ConnectionFailure("lost"), UNAVAILABLE),
        (psycopg.errors.InsufficientPrivilege("permission denied"), REFUSED),
        (psycopg.errors.DatabaseDropped("the database was dropped"), FAILED),
        (psycopg.errors.QueryCanceled("canceling statement due to statement timeout"), FAILED),
        (psycopg.errors.DiskFull("no space left"), FAILED),
        (psycopg.InterfaceError("the connection is closed"), FAILED),
    ],
)
def test_what_the_server_refuses_is_a_failure(error: psycopg.Error, code: int) -> None:
    assert of_postgres(error, "not done").exit_code == code


@pytest.mark.parametrize(
    ("said", "shown"), [("connection refused\nIs it running?", "connection refused"), ("", "OperationalError")]
)
def test_an_error_of_postgresql_is_told_by_its_first_line(said: str, shown: str) -> None:
    error = of_postgres(psycopg.OperationalError(said), "the database does not answer")
    assert error.message == f"the database does not answer: {shown}"


def test_an_error_of_postgresql_keeps_its_code() -> None:
    assert of_postgres(postgres.HeldUp("a lock"), "not done").code is Code.POSTGRES_HELD_UP
    assert of_postgres(psycopg.OperationalError("gone"), "not done").code is Code.POSTGRES_SILENT
    unfit = postgres.Unfit("the database has the encoding LATIN1", "Make another one.")
    assert of_postgres(unfit, "not done") is unfit
