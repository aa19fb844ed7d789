"""All services log in one way, and libraries with them: for people on a terminal, for programs elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onefold.config import logs
from tests.support.rooms import ROOT
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.promise("logs-for-people"), pytest.mark.slow]  # starts a process a test

PROGRAM = """
import logging
from onefold.error_codes import Code
from onefold.config import logs
from onefold.processor.core.errors import Retriable
from onefold.spark_sink.supervisor import QuerySupervisor
import structlog

class Query:
    name, landed = "made_up", 0
    def start(self): raise Retriable(Code.KAFKA_SILENT, "no Kafka")
    def failure(self): return None

logs.configure({log_format!r})
QuerySupervisor(Query(), 60.0, lambda: 1.0).tick()
structlog.get_logger().warning("a processor's", reason="no Kafka")
logging.getLogger("library").warning("%s of a library", "a line")
"""
FAILS = """
import structlog
from onefold.config import logs
logs.configure({log_format!r})
try:
    raise ValueError("seven\x1b[2J of nine")
except ValueError:
    structlog.get_logger().exception("it failed", where="at work", count=7, parts=["a", None])
"""
KAFKA = "[2026-11-25 01:00:00,000] INFO {} started (kafka.Server)"


def logged(log_format: str, text: str = PROGRAM) -> list[str]:
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    program = text.format(log_format=log_format)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, encoding="utf-8", check=True, env=here
    )
    return ran.stdout.splitlines()


@pytest.mark.parametrize("log_format", ["json", "auto"])
def test_in_json_every_line_has_the_same_fields(log_format: str) -> None:
    """For programs, and by default where there is no terminal: what happened, when, and how bad it is."""
    lines = [json.loads(line) for line in logged(log_format)]
    assert [line["event"] for line in lines] == [
        "made_up: no Kafka; starting again from Postgres",
        "a processor's",
        "a line of a library",
    ]
    assert all(line.keys() >= {"event", "level", "timestamp"} and line["level"] == "warning" for line in lines)


@pytest.mark.parametrize("number", [0, 1, 2], ids=["sink", "processor", "library"])
def test_for_people_every_line_begins_alike(number: int) -> None:
    words = logged("human")[number].split()
    assert words[0].endswith("Z")
    assert words[1] == "[warning"


def timeless(lines: list[str]) -> list[str]:
    return [" ".join(lines[0].split()[1:]), *lines[1:]]


def test_a_line_in_json_is_read_as_one_for_people() -> None:
    """The same but for its moment; what a terminal would obey is only letters again."""
    (line,) = logged("json", FAILS)
    shown = logs.readable(line)
    written = logged("human", FAILS)
    assert timeless(shown) == [found.replace("\x1b", r"\x1b") for found in timeless(written)]
    assert shown[0].endswith("count=7 parts=['a', None] where='at work'")
    assert shown[-1] == r"ValueError: seven\x1b[2J of nine"
    assert "\x1b" in logs.readable(line, colors=True)[0]


@pytest.mark.parametrize(
    "line",
    [
        KAFKA,
        "",
        "{not json}",
        "[" * 100_000,
        "{" * 100_000,
        '{"a":' * 100_000,
        '{"event": "a user\'s own"}',
        '{"event": 1, "level": "info", "timestamp": "now"}',
        '{"event": "x", "level": "info", "timestamp": "now", "exc_info": true}',
        '{"event": "x", "level": "info", "timestamp": "now", "exception": ["y"]}',
    ],
    ids=lambda line: line[:30],
)
def test_what_is_no_line_of_ours_is_shown_as_it_is(line: str) -> None:
    assert logs.readable(line) == [line]


def a_home(folder: Path, lines: list[str]) -> dict[str, str]:
    """In which a processor and a broker have run, and the environment of a command there."""
    (folder / "logs").mkdir()
    (folder / "logs" / "processor-runner-1.log").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "logs" / "kafka.log").write_text(f"{KAFKA}\n", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_")}
    return {**kept, "ONEFOLD_HOME": str(folder), "PYTHONPATH": str(ROOT / "src")}


@pytest.mark.parametrize("no_color", [False, True])
def test_logs_shows_them_for_people_on_a_terminal(tmp_path: Path, no_color: bool) -> None:
    """Each line of a stack trace with its service, and the broker's own lines as they are."""
    environment = a_home(tmp_path, logged("json", FAILS))
    with Terminal(environment | ({"NO_COLOR": "1"} if no_color else {}), tmp_path, "logs", size=(24, 200)) as terminal:
        terminal.shows("ValueError")
        assert terminal.process.wait(30) == 0
        lines = terminal.lines()
        assert ("\x1b" in terminal.written) is not no_color
    assert lines[0] == f"kafka              | {KAFKA}"
    assert "[error    ] it failed" in lines[1]
    assert lines[2] == "processor-runner-1 | Traceback (most recent call last):"


def test_a_service_in_a_terminal_writes_for_people(tmp_path: Path) -> None:
    """As `onefold process`, here with a Kafka that is not there."""
    environment = a_home(tmp_path, []) | {"ONEFOLD_BOOTSTRAP_SERVERS": "127.0.0.1:1", "NO_COLOR": "1"}
    with Terminal(environment, tmp_path, "process", "runner", "--processes", "1", size=(24, 200)) as terminal:
        terminal.shows("Z [warning")


@pytest.mark.parametrize(("log_format", "as_it_is"), [("", True), ("auto", True), ("json", True), ("human", False)])
def test_logs_gives_them_to_a_program_as_they_are(tmp_path: Path, log_format: str, as_it_is: bool) -> None:
    """Unless people are asked for, by whom goes on with `less`."""
    said = logged("json", FAILS)
    environment = a_home(tmp_path, said) | ({"ONEFOLD_LOG_FORMAT": log_format} if log_format else {})
    command = [sys.executable, "-m", "onefold.cli.main", "logs", "processor-runner-1"]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, env=environment, cwd=tmp_path)
    assert ran.stdout.splitlines() == (said if as_it_is else logs.readable(said[0]))
