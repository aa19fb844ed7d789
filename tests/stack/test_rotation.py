"""Logs go on in new files while a service runs: no line is lost, also where a process of it is killed."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from onefold.config.settings import Settings
from onefold.stack import plan
from onefold.stack.child import Child
from onefold.stack.log_files import StackLogReader, around, tail
from onefold.stack.log_writer import LogFiles
from onefold.stack.service import Ready, SupervisedService
from onefold.stack.supervisor import Managed
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("rotating-logs")

#: So many bytes a file, in which no line of these tests is alone.
SMALL = 2_000
LINES = 400
#: Prints numbered lines, one after each line that it reads.
COUNT = "import sys\nfor n, _ in enumerate(sys.stdin): print('line', n, 'x' * 20, flush=True)"


def files(log: Path) -> list[Path]:
    """The files of a log, the newest first."""
    return [log, *sorted(log.parent.glob(f"{log.name}.*"))]


def written(log: Path) -> list[str]:
    """The lines of all files; fewer while the writer renames them."""
    found: list[str] = []
    for file in reversed(files(log)):
        with suppress(FileNotFoundError):
            found += file.read_text(encoding="utf-8").splitlines()
    return found


def lines(count: int = LINES) -> list[str]:
    return [f"line {n} {'x' * 20}" for n in range(count)]


def program(tmp_path: Path, words: str, count: int = 10) -> Child:
    argv = (sys.executable, "-c", words)
    return Child(SupervisedService("one", argv, tmp_path / "one.log", Ready("done"), log_bytes=SMALL, log_files=count))


def ended(child: Child) -> None:
    eventually(lambda: child.poll() is not None, 30, "the service has ended")
    child.stop()


@pytest.mark.parametrize("size", [1, 7, 100, 64 * 1024])
def test_files_end_with_a_line_and_hold_every_line(size: int, tmp_path: Path) -> None:
    """However the output is cut into blocks."""
    log, text = tmp_path / "one.log", "".join(f"{line}\n" for line in lines(200)).encode()
    writer = LogFiles(log, SMALL, 10)
    for begin in range(0, len(text), size):
        writer.write(text[begin : begin + size])
    assert written(log) == lines(200)
    assert len(files(log)) == len(text) // SMALL + 1
    assert all(file.read_bytes().endswith(b"\n") for file in files(log))
    assert all(SMALL <= file.stat().st_size < SMALL + 50 for file in files(log)[1:])


def test_only_so_many_files_are_kept(tmp_path: Path) -> None:
    child = program(tmp_path, f"for n in range({LINES}): print('line', n, 'x' * 20)", count=3)
    child.start()
    ended(child)
    assert [file.name for file in files(tmp_path / "one.log")] == ["one.log", "one.log.1", "one.log.2"]
    kept = written(tmp_path / "one.log")
    assert kept == lines()[-len(kept) :]
    assert all(file.stat().st_mode & 0o077 == 0 for file in files(tmp_path / "one.log")[:-1])


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    writer = LogFiles(tmp_path / "one.log", SMALL, 10)
    for _ in range(100):
        writer.write(b"y" * 100)
    assert max(file.stat().st_size for file in files(tmp_path / "one.log")) <= 2 * SMALL
    assert sum(file.stat().st_size for file in files(tmp_path / "one.log")) == 10_000


def full(write: Callable[[int, bytes], int], left: list[int], file: int, data: bytes) -> int:
    """`os.write` on a disk with so many bytes left."""
    if not left[0]:
        raise OSError(28, "No space left on device")
    written = write(file, data[: left[0]])
    left[0] -= written
    return written


@pytest.mark.parametrize("room", [0, 5, 8, 20, 100])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_the_note_of_what_a_full_disk_lost_is_a_line_with_the_number_of_bytes(
    room: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the disk has taken a part of a line, a file was begun within a block, and the note itself did not fit."""
    log, left = tmp_path / "one.log", [room]
    writer, text = LogFiles(log, 30, 100), "".join(f"{line}\n" for line in lines(4)).encode()

    writer.write(b"first\n")
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", partial(full, os.write, left))
        for begin in range(0, len(text), size):
            writer.write(text[begin : begin + size])
    writer.write(b"last\n")
    kept = written(log)
    note = kept.pop(-2)
    assert (kept.pop(0), kept.pop()) == ("first", "last")
    assert "\n".join([*kept, ""]).encode()[:room] == text[:room]
    assert note == f"onefold: {len(text) - room} bytes of this log could not be written"


def test_a_note_that_a_full_disk_took_a_part_of_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, left = LogFiles(tmp_path / "one.log", SMALL, 3), [0]

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", partial(full, os.write, left))
        writer.write(b"lost\n")
        left[0] = 9
        writer.write(b"gone\n")
    writer.write(b"last\n")
    assert written(tmp_path / "one.log")[1:] == ["onefold: 10 bytes of this log could not be written", "last"]


def test_a_service_that_is_started_again_goes_on_in_the_same_files(tmp_path: Path) -> None:
    child = program(tmp_path, "for n in range(50): print('line', n, 'x' * 20)")
    for _ in range(3):
        child.start()
        ended(child)
    assert written(tmp_path / "one.log") == lines(50) * 3


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Child]:
    """A service that prints a line whenever it is asked; `ask` has the end of a pipe to it."""
    child = program(tmp_path, f"{COUNT}".replace("sys.stdin", f"open({str(tmp_path / 'ask')!r})"))
    os.mkfifo(tmp_path / "ask")
    child.start()
    yield child
    child.kill()


def test_what_a_killed_writer_did_not_get_to_is_written_by_the_next_one(counting: Child, tmp_path: Path) -> None:
    """The pipe stays, so the service does not even notice."""
    log = tmp_path / "one.log"
    with (tmp_path / "ask").open("w", buffering=1, encoding="utf-8") as ask:
        for number in range(LINES):
            ask.write("\n")
            if number % 100 == 50:
                expected = lines(number + 1)
                eventually(lambda: written(log) == expected, 30, "the writer has nothing under way")  # noqa: B023
                writer_of(counting).kill()
                writer_of(counting).wait()
            if number % 100 == 90:
                before = writer_of(counting)
                eventually(lambda: counting.poll() is None and writer_of(counting) != before, 30, "a new one")  # noqa: B023
    ended(counting)
    assert (counting.poll(), written(log)) == (0, lines())


def writer_of(child: Child) -> "subprocess.Popen[bytes]":
    assert child._output is not None
    assert child._output._writer is not None
    return child._output._writer


def test_last_words_are_written_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """Its writer reads to the end, which the service is told of by its guard."""
    words = (
        "import signal, sys; signal.signal(15, lambda *_: (print('last words', flush=True), sys.exit())); "
        "print('begun', flush=True); signal.pause()"
    )
    service = f"'one', ({sys.executable!r}, '-c', {words!r}), Path({str(tmp_path / 'one.log')!r}), Ready('done')"
    supervisor = f"""
import signal
from pathlib import Path
from onefold.stack.child import Child
from onefold.stack.service import Ready, SupervisedService
child = Child(SupervisedService({service}, death_signal=15))
child.start()
signal.pause()
"""
    log = tmp_path / "one.log"
    running = subprocess.Popen([sys.executable, "-c", supervisor])
    eventually(lambda: log.exists() and "begun" in log.read_text(encoding="utf-8"), 30, "it has begun")
    running.kill()
    running.wait()
    eventually(lambda: log.read_text(encoding="utf-8") == "begun\nlast words\n", 10, "its last words")


def test_a_reader_follows_across_files(tmp_path: Path) -> None:
    """Also where several were begun between two looks."""
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "one.log"
    writer, text = LogFiles(log, SMALL, 10), [f"{line}\n".encode() for line in lines()]
    for line in text[:100]:
        writer.write(line)
    with closing(StackLogReader(tmp_path)) as reader:
        assert [line for _, line in reader.last(90)] == lines()[10:100], "of more than one file"
        told = []
        for begin, end in ((100, 101), (101, 130), (130, 330), (330, 331), (331, LINES)):
            for line in text[begin:end]:
                writer.write(line)
            told += [line for _, line in reader.more()]
        assert told == lines()[100:]
        assert list(reader.more()) == []
    assert tail(log, 30) == lines()[-30:]


def test_a_reader_that_looks_all_the_time_sees_each_line_once(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "one.log"
    log.touch()
    child = Child(
        SupervisedService("one", (sys.executable, "-c", f"for n in range(4 * {LINES}): print('line', n, 'x' * 20, flush=True)"),
                log, Ready("done"), log_bytes=SMALL * 5, log_files=10)
    )  # fmt: skip
    with closing(StackLogReader(tmp_path)) as reader:
        child.start()
        told: list[str] = []

        def looked() -> bool:
            told.extend(line for _, line in reader.more())
            return child.poll() is not None

        eventually(looked, 30, "it has ended")
        child.stop()
        told += [line for _, line in reader.more()]
    assert told == lines(4 * LINES)


def test_the_place_where_a_service_ended_is_found_in_an_older_file(tmp_path: Path) -> None:
    managed = Managed(
        SupervisedService("one", (sys.executable, "-c", "print('the reason'); raise SystemExit(1)"), tmp_path / "one.log",
                Ready("status_file", str(tmp_path / "status")), log_bytes=SMALL, log_files=3)
    )  # fmt: skip

    def turned() -> bool:
        managed.turn()
        return managed.state == "restarting"

    eventually(turned, 30, "it has ended")
    end = managed.describe()["last_end"]
    place = (tmp_path / "one.log", end["log_at"], end["log_file"])
    writer = LogFiles(tmp_path / "one.log", SMALL, 3)
    writer.write(b"after\n" + b"z" * SMALL + b"\nnewer\n")
    assert "newer" in (tmp_path / "one.log").read_text(encoding="utf-8")
    assert around(*place)[:2] == ["the reason", "after"]


def test_a_plan_has_the_sizes_that_are_set(tmp_path: Path) -> None:
    public = {"bootstrap_servers": "here", "postgres_dsn": "postgresql://", "dashboard": None}
    stages = plan.pipeline(Settings(home=tmp_path, log_file_mb=3, log_files=7), ["runner"], public)
    assert {(one.log_bytes, one.log_files) for stage in stages for one in stage} == {(3_000_000, 7)}
    assert (
        SupervisedService("", (), tmp_path, Ready("done")).log_bytes,
        SupervisedService("", (), tmp_path, Ready("done")).log_files,
    ) == (
        10_000_000,
        5,
    )
