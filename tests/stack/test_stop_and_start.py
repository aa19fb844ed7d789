"""`onefold stop`, `start`, `restart` and `kill`, on a real supervisor with small services."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onefold.cli.main import run
from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, OK, USAGE
from onefold.operate.progress import StageProgress
from onefold.stack import control
from onefold.stack.plan import StackPlan
from onefold.stack.service import Ready
from tests.stack.test_supervisor import FOREVER, SAY_RUNNING, service
from tests.support.coded import code_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow  # starts a process a test

NOTED = f"""trap 'echo "stop $0" >> "$TRACE"; exit 0' TERM; {SAY_RUNNING} while :; do sleep 0.01; done"""


def entry(home: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = stack_state.read(home)["services"][name]
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of a running stack: two services in two stages, and a task between them."""
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path))

    def named(name: str) -> Any:
        made = service(tmp_path, name, NOTED)
        return replace(made, argv=(*made.argv, name))

    task = service(tmp_path, "task", "exit 0", "done")
    StackPlan([[named("kafka")], [task], [named("one"), named("two")]], {}).write(tmp_path)
    process = subprocess.Popen([sys.executable, "-P", "-m", "onefold.stack.supervisor", str(tmp_path)])
    running = lambda: all(entry(tmp_path, name)["state"] == "running" for name in ("kafka", "one", "two"))  # noqa: E731
    try:
        eventually(
            lambda: stack_state.read_running(tmp_path).get("services", {}).keys() >= {"one", "two"}, 10, "it runs"
        )
        eventually(running, 10, "all services run")
        yield tmp_path
    finally:
        process.terminate()
        process.wait(20)


def test_a_stopped_service_stays_stopped_until_it_is_started(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the others run on."""
    others = {name: entry(home, name)["pid"] for name in ("kafka", "two")}
    assert run(["stop", "one"]) == OK
    assert capsys.readouterr().out == "one is stopped.\n"
    stopped = entry(home, "one")
    assert (stopped["state"], stopped["pid"], stopped["restarts"]) == ("stopped", None, 0)
    assert stopped["detail"] == "`onefold start one` starts it"
    assert (home / "trace").read_text(encoding="utf-8") == "stop one\n"
    assert run(["stop", "one"]) == OK
    assert capsys.readouterr().out == "one is stopped already.\n"

    assert run(["start", "one", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == {"started": ["one"]}
    assert entry(home, "one")["state"] == "running"
    assert {name: entry(home, name)["pid"] for name in others} == others
    assert run(["start", "one"]) == OK
    assert capsys.readouterr().out == "one was not stopped.\n"


def test_without_a_name_all_services_stop_the_last_stage_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A processor ends its transaction while Kafka runs. Tasks that are done are no services."""
    assert run(["stop", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == {"stopped": ["kafka", "one", "two"]}
    assert sorted((home / "trace").read_text(encoding="utf-8").splitlines()[:2]) == ["stop one", "stop two"]
    assert (home / "trace").read_text(encoding="utf-8").splitlines()[2:] == ["stop kafka"]

    assert run(["start"]) == OK
    assert {entry(home, name)["state"] for name in ("kafka", "one", "two")} == {"running"}
    assert entry(home, "task")["state"] == "done"
    capsys.readouterr()
    assert run(["start"]) == OK
    assert capsys.readouterr().out == "No service was stopped.\n"


def test_up_starts_what_was_stopped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, *pipelines = StackPlan.read(home).stages
    monkeypatch.setattr(control, "pipeline", lambda *of: [list(stage) for stage in pipelines])
    assert run(["stop", "kafka", "two"]) == OK
    taken_in = control._take_in(Settings(home=home), [], stack_state.read_running(home), StageProgress())
    assert taken_in[1]
    assert {entry(home, name)["state"] for name in ("kafka", "one", "two")} == {"running"}
    assert not control._take_in(Settings(home=home), [], stack_state.read_running(home), StageProgress())[1]


def test_a_killed_service_is_started_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: entry(home, name)["pid"] for name in ("one", "two")}
    assert run(["kill", "one", "two", "--json"]) == OK
    assert json.loads(capsys.readouterr().out) == {"killed": before}

    def back(name: str) -> bool:
        found = entry(home, name)
        return (found["restarts"], found["state"]) == (1, "running") and found["pid"] != before[name]

    eventually(lambda: back("one") and back("two"), 10, "both run again")
    assert entry(home, "one")["last_end"]["why"] == "was killed by signal 9"
    assert not (home / "trace").exists(), "a service was asked to stop"


def test_a_stopped_service_keeps_no_later_stage_from_being_started_again(home: Path) -> None:
    assert run(["stop", "kafka"]) == OK
    before = entry(home, "one")["pid"]
    assert run(["kill", "one"]) == OK
    eventually(lambda: entry(home, "one")["pid"] not in (None, before), 10, "one runs again")


def test_a_restart_says_the_new_process(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = entry(home, "one")["pid"]
    assert run(["restart", "one", "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert told == {"service": "one", "pid": entry(home, "one")["pid"]}
    assert told["pid"] != before


@pytest.mark.parametrize("verb", ["stop", "start", "kill", "restart"])
def test_a_name_that_is_no_service_is_one_sentence(verb: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A task that is done is none."""
    assert run([verb, "task"]) == USAGE
    assert code_of(capsys.readouterr().err, "no service task", "kafka, one, two") is Code.NAME_UNKNOWN


@pytest.mark.parametrize("verb", ["kill", "restart"])
def test_a_stopped_service_has_no_process(verb: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stop", "one"]) == OK
    assert run([verb, "one"]) == FAILED
    assert code_of(capsys.readouterr().err, "one", "stopped") is Code.SERVICE_FAILED


@pytest.mark.parametrize("words", [["stop"], ["start"], ["kill", "one"], ["restart", "one"]])
def test_without_a_stack_it_is_one_sentence(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path))
    assert run(words) == FAILED
    assert code_of(capsys.readouterr().err, str(tmp_path)) is Code.STACK_STOPPED


def test_an_older_supervisor_that_stops_no_single_service_is_one_sentence(home: Path) -> None:
    """It knows no stopped service, and runs on with it."""
    with pytest.raises(UserError) as refused:
        control._refuse_unstopped(home, "one", entry(home, "one"))
    assert refused.value.code is Code.STACK_RUNS


def test_a_stopped_service_travels_as_json(tmp_path: Path) -> None:
    """And the plan of an older Onefold, which does not say it, has none."""
    one = replace(service(tmp_path, "one", FOREVER), stopped=True, ready=Ready("done"))
    told = one.as_json()
    assert type(one).from_json(told) == one
    del told["stopped"]
    assert not type(one).from_json(told).stopped
