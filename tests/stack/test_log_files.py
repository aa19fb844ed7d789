"""Logs of services as a reader has them: no line twice, none left out, none in halves."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.stack import log_files
from onefold.stack.log_files import StackLogReader, around, tail
from tests.support.coded import raises

FAILED = {
    "event": "it failed",
    "level": "error",
    "timestamp": "t",
    "exception": "Traceback:\n  one\n\tat java.Two(Two.java)\nlast",
}
SHOWN = ["t [error    ] it failed", "Traceback:", "  one", "\tat java.Two(Two.java)", "last"]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The logs of two services."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "kafka.log").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (folder / "sink-1.log").write_text("landed\n", encoding="utf-8")
    (folder / "kafka.log.before").write_text("of the run before\n", encoding="utf-8")
    return folder


@pytest.fixture
def reader(logs: Path) -> Iterator[StackLogReader]:
    made = StackLogReader(logs.parent)
    yield made
    made.close()


def add(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def test_the_last_lines_of_each(reader: StackLogReader) -> None:
    assert reader.services == ["kafka", "sink-1"]
    assert list(reader.last(2)) == [("kafka", "two"), ("kafka", "three"), ("sink-1", "landed")]
    assert list(reader.last(0)) == []


def test_what_comes_meanwhile_is_told_once(reader: StackLogReader, logs: Path) -> None:
    add(logs / "kafka.log", "four\n")
    assert [line for _, line in reader.last(20)] == ["one", "two", "three", "landed"]
    assert list(reader.more()) == [("kafka", "four")]
    assert list(reader.more()) == []


def test_a_line_is_told_when_it_is_whole(logs: Path) -> None:
    add(logs / "kafka.log", "fo")
    reader = StackLogReader(logs.parent, "kafka")
    assert [line for _, line in reader.last(1)] == ["three"]
    assert list(reader.more()) == []
    add(logs / "kafka.log", "ur\nfi")
    assert list(reader.more()) == [("kafka", "four")]
    add(logs / "kafka.log", b"v\xff\r\n\n")
    assert list(reader.more()) == [("kafka", "fiv\ufffd"), ("kafka", "")]
    reader.close()


def test_long_logs_and_long_lines(logs: Path) -> None:
    """Longer than what is read at once: the ends of logs are found, and a line of that length does not stop anything."""
    lines = [f"{number} {'x' * 100}" for number in range(3_000)]
    (logs / "kafka.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    reader = StackLogReader(logs.parent, "kafka")
    assert [line for _, line in reader.last(1_500)] == lines[-1_500:]
    add(logs / "kafka.log", "y" * 200_000 + "\nafter\n")
    told = [line for _, line in reader.more()]
    assert "".join(told[:-1]) == "y" * 200_000
    assert told[-1] == "after"
    reader.close()


def test_a_log_that_is_begun_anew_and_a_service_that_is_new(reader: StackLogReader, logs: Path) -> None:
    """As `up` does it: the log of the run before gets another name first."""
    add(logs / "kafka.log", "the last\n")
    (logs / "kafka.log").replace(logs / "kafka.log.before")
    assert list(reader.more()) == [("kafka", "the last")]
    (logs / "kafka.log").write_text("the first\n", encoding="utf-8")
    (logs / "worker.log").write_text("hello\n", encoding="utf-8")
    assert list(reader.more()) == [("kafka", "the first"), ("worker", "hello")]


@pytest.mark.parametrize(
    ("service", "code", "says"), [("sink", 2, "There are: kafka, sink-1."), ("kafka-", 2, "no log of")]
)
def test_a_service_that_is_not_there(logs: Path, service: str, code: int, says: str) -> None:
    with pytest.raises(UserError) as caught:
        log_files.files(logs.parent, service)
    assert says in caught.value.as_text()
    assert caught.value.exit_code == code


def test_a_home_without_logs(tmp_path: Path) -> None:
    with raises(UserError, Code.STACK_STOPPED):
        StackLogReader(tmp_path)


def test_a_log_around_a_moment(tmp_path: Path) -> None:
    """A few lines on each side, however long they are, and whatever has become of the file."""
    log = tmp_path / "one.log"
    log.write_bytes(b"".join(b"%d\n" % number for number in range(20)))
    at = log.stat().st_size
    assert around(log, at) == [str(number) for number in range(12, 20)]
    with log.open("ab") as file:
        file.write(b"\xff" + b"x" * 100_000 + b"\nlast\n")
    lines = around(log, at)
    assert lines[:8] == [str(number) for number in range(12, 20)]
    assert lines[8] == "\ufffd" + 299 * "x"
    assert around(log, 10**9) == [], "it was begun anew"
    assert around(tmp_path / "gone.log", 0) == []


def test_what_is_quoted_of_a_log_is_for_people(tmp_path: Path) -> None:
    """As many lines as ever, where one in JSON becomes several; of Java's stack traces an error message has no frames."""
    log = tmp_path / "one.log"
    log.write_text(f"begun\n{json.dumps(FAILED)}\nwent on\n", encoding="utf-8")
    assert around(log, log.stat().st_size) == ["begun", *SHOWN, "went on"]
    assert tail(log, 12) == ["begun", *SHOWN[:3], "last", "went on"]
    assert tail(log, 2) == ["last", "went on"]
    assert tail(tmp_path / "gone.log", 2) == []
    log.write_text(f"{json.dumps(FAILED)}\n" * 9, encoding="utf-8")
    at = log.stat().st_size // 3
    assert around(log, at) == [*SHOWN[2:], *SHOWN, *SHOWN, *SHOWN[:3]]
