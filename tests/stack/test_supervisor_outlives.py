"""A supervisor outlives what it supervises: one service's trouble is that service's state, and nobody else's end."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.spark_sink.supervisor import QuerySupervisor
from onefold.stack import foreground
from onefold.stack.service import Ready, SupervisedService
from onefold.stack.supervisor import BACKOFF_MAX_S, Managed, Supervisor
from onefold.stack.supervisor import run as run_supervisor
from tests.stack.test_supervisor import FOREVER, SAY_RUNNING, service, turn_until
from tests.support.clock import Clock
from tests.support.waiting import eventually

FAILURES = 2_000  # beyond 1,024 a power of two is no float any more


@pytest.fixture
def bystander(tmp_path: Path) -> Iterator[Callable[[SupervisedService], tuple[Supervisor, Managed, Managed]]]:
    """Makes a supervisor of a service in trouble and one that is well."""
    made: list[Supervisor] = []

    def make(troubled: SupervisedService) -> tuple[Supervisor, Managed, Managed]:
        told.clear()
        made.append(Supervisor([[troubled, service(tmp_path, "well", SAY_RUNNING + FOREVER)]], told.append))
        in_trouble, well = made[-1].stages[0]
        return made[-1], in_trouble, well

    told: list[dict[str, Any]] = []
    yield make
    for supervisor in made:
        supervisor.stop()


def until(supervisor: Supervisor, reached: Callable[[], bool], why: str) -> None:
    """Turns the supervisor, as its loop does, until it is so."""

    def turned() -> bool:
        supervisor.turn()
        return reached()

    eventually(turned, 10, why)


def test_two_thousand_failures_in_a_row_are_a_state(tmp_path: Path) -> None:
    """Three hours of a service that refuses."""
    clock = Clock()
    managed = Managed(service(tmp_path, "refuses", "exit 3"), clock)
    # Two thousand processes would show nothing more.
    vars(managed.child).update(start=lambda: None, poll=lambda: 3)
    while managed.restarts < FAILURES:
        managed.turn()
        clock.now += BACKOFF_MAX_S
    assert (managed.state, managed.exit_code) == ("restarting", 3)
    assert managed._pause == BACKOFF_MAX_S


def test_two_thousand_starts_of_a_query_that_fails_are_a_reason() -> None:
    """The sink's query supervisor counts its pauses the same way."""

    class Fails:
        name, landed = "fails", 0

        def failure(self) -> BaseException | None:
            return None

        def displaced(self) -> BaseException | None:
            return None

        def start(self) -> None:
            raise Retriable(Code.KAFKA_SILENT, "there is no topic")

        def stop(self) -> None:
            """It never ran."""

    supervised = QuerySupervisor(Fails(), patience_s=float("inf"), clock=Clock())
    for _ in range(FAILURES):
        supervised._not_before = 0.0
        supervised.tick()
    assert supervised.trouble == "there is no topic"


@pytest.mark.parametrize("trouble", ["a program's folder that is gone", "a log that cannot be written"])
def test_a_service_that_cannot_be_started_is_restarting_and_the_others_run(
    tmp_path: Path, trouble: str, bystander: Callable[[SupervisedService], tuple[Supervisor, Managed, Managed]]
) -> None:
    broken = service(tmp_path, "broken", FOREVER)
    file = tmp_path / "file"
    file.touch()
    broken = replace(broken, folder=tmp_path / "gone") if "folder" in trouble else replace(broken, log=file / "log")
    supervisor, troubled, well = bystander(broken)
    until(supervisor, lambda: well.state == "running" and troubled.restarts > 1, "it goes on")
    assert troubled.state == "restarting"
    assert troubled.detail.startswith("could not be started: ")
    assert "starts again after" in troubled.detail
    assert supervisor._published is not None
    assert supervisor._published["broken"]["detail"] == troubled.detail
    for repaired in (tmp_path / "gone", file):
        repaired.unlink(missing_ok=True)
        repaired.mkdir()
    until(supervisor, lambda: troubled.state == "starting", "it starts when it can")


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError(), RuntimeError("odd")])
def test_a_machine_that_gives_no_process_is_one_services_trouble(
    tmp_path: Path,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    bystander: Callable[[SupervisedService], tuple[Supervisor, Managed, Managed]],
) -> None:
    supervisor, troubled, well = bystander(service(tmp_path, "broken", FOREVER))
    popen = subprocess.Popen

    def refuse(argv: list[str], **options: Any) -> Any:
        if troubled.service.argv[-1] == argv[-1] and "broken" in str(options["env"]["STATUS"]):
            raise error
        return popen(argv, **options)

    monkeypatch.setattr(subprocess, "Popen", refuse)
    until(supervisor, lambda: well.state == "running" and troubled.restarts > 1, "the other one runs")
    assert troubled.state == "restarting"


def test_a_status_file_that_cannot_be_removed_is_one_services_trouble(
    tmp_path: Path, bystander: Callable[[SupervisedService], tuple[Supervisor, Managed, Managed]]
) -> None:
    (tmp_path / "broken.status").mkdir()
    supervisor, troubled, well = bystander(service(tmp_path, "broken", FOREVER))
    until(supervisor, lambda: well.state == "running", "the other one runs")
    assert troubled.state == "restarting"
    assert "broken.status" in troubled.detail


def test_a_service_that_cannot_be_asked_runs_on_and_says_so(
    tmp_path: Path, bystander: Callable[[SupervisedService], tuple[Supervisor, Managed, Managed]]
) -> None:
    odd = replace(service(tmp_path, "odd", FOREVER), ready=Ready("kafka", "127.0.0.1:no-port"))
    supervisor, troubled, well = bystander(odd)
    until(supervisor, lambda: well.state == "running", "the other one runs")
    assert troubled.child.running()
    assert (troubled.state, troubled.restarts) == ("starting", 0)
    assert troubled.detail.startswith("cannot be looked at: ")


def test_a_state_that_cannot_be_written_is_written_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full, told = [True], []

    def publish(services: dict[str, Any]) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        told.append(services)

    supervisor = Supervisor([[service(tmp_path, "one", SAY_RUNNING + FOREVER)]], publish)
    (managed,) = supervisor.stages[0]
    try:
        until(supervisor, lambda: managed.state == "running", "it runs although nobody can be told")
        assert told == []
        full[0] = False
        supervisor.turn()
        assert told[-1]["one"]["state"] == "running"
    finally:
        full[0] = True
        supervisor.stop()
    assert not managed.child.running()
    said = capsys.readouterr().err
    assert said.count("No space left on device") == 2, "once for each time that it began"


def test_one_that_may_not_be_signalled_does_not_keep_the_others_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(
        [[service(tmp_path, name, SAY_RUNNING + FOREVER) for name in ("first", "last")]], lambda services: None
    )
    first, last = supervisor.stages[0]
    for managed in (first, last):
        turn_until(managed, "running")
    ask = first.child.ask_to_stop

    def may_not() -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(first.child, "ask_to_stop", may_not)
    try:
        supervisor.stop()
        assert not last.child.running()
    finally:
        ask()
        first.child.kill()


def test_several_processors_outlive_a_status_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, or what lies there is no status of ours."""
    turns = []

    def run(supervisor: Supervisor, tell: Callable[[], None]) -> None:
        tell()
        (tmp_path / "status.one.json").write_text('["odd"]', encoding="utf-8")
        tell()
        (tmp_path / f"status.json.{os.getpid()}").mkdir()
        tell()
        turns.append(supervisor)

    assert run_supervisor is vars(foreground)["run"]
    monkeypatch.setattr(foreground, "run", run)
    foreground.process({"one": 1}, "1", tmp_path / "status.json")
    assert len(turns) == 1
