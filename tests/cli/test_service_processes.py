"""Processor, worker, sink and continuous verifier as processes: how each ends, by a signal, an error, a bug and by itself."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onefold import status_file
from onefold.exit_codes import FAILED, OK, REFUSED
from tests.support.forks import Process
from tests.support.service_processes import NEWER, auditor, processor, signalled_in_a_wait, sink, worker
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow  # starts a process a test

Service = Callable[[str, Path], int]
SERVICES = pytest.mark.parametrize("service", [processor, worker, sink, auditor], ids=lambda service: service.__name__)
ENDED_S = 30.0


class Started:
    """Starts services; kills what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.log, self._status, self._folder = folder / "log", folder / "status.json", folder
        self._process: Process | None = None

    def __call__(self, service: Service, fault: str = "") -> Process:
        environment = {"PATH": os.environ["PATH"], "ONEFOLD_HOME": str(self._folder)}
        given = {"fault": fault, "status": self._status}
        self._process = Process(service, given, self.log, environment, self._folder)
        return self._process

    def state(self) -> tuple[str, str]:
        said = status_file.read(self._status)
        return said.get("state", ""), said.get("detail", "")

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    started.end()


@SERVICES
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_service_that_waits(started: Started, service: Service, number: signal.Signals) -> None:
    process = started(service)
    eventually(lambda: started.state()[0] == "waiting", ENDED_S, "it waits for its servers")
    process.send_signal(number)
    assert process.wait(ENDED_S) == OK
    assert started.state() == ("stopped", "asked to stop")


@SERVICES
def test_an_error_with_a_code_ends_a_service_with_a_sentence(started: Started, service: Service) -> None:
    assert started(service, "refused").wait(ENDED_S) == REFUSED
    assert started.state() == ("stopped", NEWER)
    log = started.log.read_text(encoding="utf-8")
    assert NEWER in log
    assert "OF-133" in log
    assert "Traceback" not in log


@SERVICES
def test_a_bug_ends_a_service_with_a_traceback(started: Started, service: Service) -> None:
    assert started(service, "bug").wait(ENDED_S) == FAILED
    assert started.state() == ("stopped", "a bug")
    assert "ValueError: a bug" in started.log.read_text(encoding="utf-8")


def test_a_service_that_ends_by_itself_says_so(started: Started) -> None:
    """As a verifier that has found something."""
    assert started(auditor, "finds something").wait(ENDED_S) == FAILED
    assert started.state() == ("stopped", "ended by itself")


def test_a_signal_in_the_middle_of_a_wait_stops_a_service(started: Started) -> None:
    assert started(signalled_in_a_wait).wait(ENDED_S) == OK
    assert started.state() == ("stopped", "asked to stop")
