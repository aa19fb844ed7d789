"""One status for several processors, and what a container's health check makes of it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from onefold.operate import healthy
from onefold.stack import foreground
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow  # starts a process a test

RUNNING = {"state": "running", "detail": "4 tasks", "updated_at": 100.0}
WAITING = {"state": "waiting", "detail": "Kafka does not answer", "updated_at": 103.0}
ALIVE = {"state": "running", "detail": "4 tasks"}
ENDED = {"state": "restarting", "detail": "ended with exit code 3; starts again after 0.4 s"}


@pytest.mark.parametrize(
    ("first", "second", "state", "detail", "updated_at"),
    [
        ((ALIVE, RUNNING), (ALIVE, RUNNING), "running", "one: 4 tasks; two: 4 tasks", 100.0),
        ((ALIVE, RUNNING), (ALIVE, WAITING), "waiting", "two: Kafka does not answer", 100.0),
        ((ALIVE, RUNNING), (ENDED, RUNNING), "starting", f"two: {ENDED['detail']}", 100.0),
        (
            (ALIVE, RUNNING),
            (ENDED, {**WAITING, "state": "stopped", "detail": "a topic is gone"}),
            "starting",
            f"two: {ENDED['detail']} (a topic is gone)",
            100.0,
        ),
        ((ALIVE, RUNNING), ({"state": "starting", "detail": ""}, {}), "starting", "two: starting", 0.0),
    ],
)
def test_all_are_running_or_none_is(first: Any, second: Any, state: str, detail: str, updated_at: float) -> None:
    """And the summary is as old as the oldest of what it sums up: one that hangs must not hide behind the others."""
    services, statuses = {"one": first[0], "two": second[0]}, {"one": first[1], "two": second[1]}

    assert foreground.summary(services, statuses) == {"state": state, "detail": detail, "updated_at": updated_at}


# Runs shell scripts as the processes of one command; its arguments are a file, the codes that end all, and the scripts.
COMMAND = """
import sys
from pathlib import Path
from onefold.stack import foreground, service
service.command = lambda script: ("/bin/sh", "-c", script)
path, codes, *scripts = sys.argv[1:]
made = [(str(number), (script,)) for number, script in enumerate(scripts)]
sys.exit(foreground._run(made, 5.0, Path(path), 7000, [int(code) for code in codes.split()]))
"""
SAY = """echo '{"state": "running", "detail": "well"}' > "$ONEFOLD_STATUS_FILE"; echo "$$ on $ONEFOLD_METRICS_PORT"; """
STAY = SAY + "exec sleep 1000"


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts it, with its output in the file `out`; it is gone at the end of the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(codes: str, *scripts: str) -> "subprocess.Popen[bytes]":
        with (tmp_path / "out").open("wb") as out:
            arguments = [sys.executable, "-c", COMMAND, str(tmp_path / "all.json"), codes, *scripts]
            started.append(subprocess.Popen(arguments, stdout=out, stderr=out))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait(10)


def told(folder: Path) -> list[tuple[int, int]]:
    """(pid, metrics port) of each process that began, in order."""
    lines = re.findall(r"^(\d+) on (\d+)$", (folder / "out").read_text(encoding="utf-8"), re.MULTILINE)
    return [(int(pid), int(port)) for pid, port in lines]


def test_one_that_is_killed_starts_again_alone(command: Callable[..., Any], tmp_path: Path) -> None:
    """On its own port, and the log says why there are two beginnings. Whoever asks all of them to end gets 0."""
    running = command("2 3", STAY, STAY)
    eventually(lambda: len(told(tmp_path)) == 2, 20, "both run")
    first = dict(sorted((port, pid) for pid, port in told(tmp_path)))
    assert first.keys() == {7000, 7001}
    os.kill(first[7000], signal.SIGKILL)
    eventually(lambda: len(told(tmp_path)) == 3, 20, "it runs again")
    assert told(tmp_path)[-1][1] == 7000
    assert "was killed by signal 9; starts again" in (tmp_path / "out").read_text(encoding="utf-8")
    eventually(
        lambda: json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))["state"] == "running",
        20,
        "the status says so",
    )

    running.send_signal(signal.SIGTERM)
    assert running.wait(20) == 0
    assert not any(psutil.pid_exists(pid) for pid, _ in told(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_terminal_ends_it_in_order(command: Callable[..., Any], tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, and a window that is closed."""
    running = command("", """trap 'echo in order; exit 0' TERM; """ + SAY + "while :; do sleep 0.05; done")
    eventually(lambda: len(told(tmp_path)) == 1, 20, "it runs")
    running.send_signal(number)
    assert running.wait(20) == 0
    assert "in order" in (tmp_path / "out").read_text(encoding="utf-8")


def test_one_that_refuses_ends_all(command: Callable[..., Any], tmp_path: Path) -> None:
    """With its code; the others would come to the same end, or wait for a person without saying so."""
    running = command("2 3", STAY, "sleep 0.3; exit 3")
    assert running.wait(20) == 3
    assert not any(psutil.pid_exists(pid) for pid, _ in told(tmp_path))
    assert json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))["state"] == "stopped"


def test_of_several_domains_one_that_refuses_leaves_the_others_alone(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    running = command("", STAY, "exit 3")
    eventually(
        lambda: (tmp_path / "out").read_text(encoding="utf-8").count("ended with exit code 3") >= 2,
        20,
        "it is tried again",
    )
    assert running.poll() is None
    assert len(told(tmp_path)) == 1


# The auditors of two domains, each a shell script, as `onefold audit` without a name has them.
AUDIT = """
import sys
from onefold.cli.commands import audit
from onefold.config import settings
from onefold.operate import auditing
from onefold.stack import service
left = iter(sys.argv[1:])
service.command = lambda *arguments: ("/bin/sh", "-c", next(left))
settings.Settings.usable_client = settings.Settings.postgres = lambda self: {}
auditing.audited = lambda *given: ["bank", "runner"]
try:
    audit.command(None, once=False, until_found=False)
except audit.typer.Exit as end:
    sys.exit(end.exit_code)
"""
ENDS_WITH = f"trap 'exit %d' TERM; {SAY}while :; do sleep 0.05; done"


@pytest.mark.parametrize(("first", "second", "code"), [(0, 0, 0), (0, 1, 1), (1, 0, 1), (2, 0, 0)])
def test_auditors_of_which_one_has_found_something_end_with_that(
    first: int, second: int, code: int, tmp_path: Path
) -> None:
    """Asked to stop, an auditor ends with 1 for what it has found, and so do all of them together."""
    with (tmp_path / "out").open("wb") as out:
        scripts = [ENDS_WITH % first, ENDS_WITH % second]
        home = {**os.environ, "ONEFOLD_STATUS_FILE": str(tmp_path / "all.json")}
        running = subprocess.Popen([sys.executable, "-c", AUDIT, *scripts], stdout=out, stderr=out, env=home)
    try:
        eventually(lambda: len(told(tmp_path)) == 2, 20, "both run")
        running.send_signal(signal.SIGTERM)
        running.wait(20)
    finally:
        running.kill()
        running.wait(10)
    assert running.returncode == code, (tmp_path / "out").read_text(encoding="utf-8")


def test_processes_of_one_domain_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same after every start, and those of an instance that is one process stay as they were."""
    made: list[Any] = []
    monkeypatch.setattr(foreground, "_run", lambda services, *more: made.append((services, more[-1])))
    foreground.process({"orders": 2, "mails": 1}, "a", tmp_path / "status.json")
    foreground.process({"orders": 2}, "a", tmp_path / "status.json")
    (several, none), (_, codes) = made
    assert several == [
        ("orders-1", ("process", "orders", "--processes", "1", "--instance", "a-1")),
        ("orders-2", ("process", "orders", "--processes", "1", "--instance", "a-2")),
        ("mails", ("process", "mails", "--processes", "1", "--instance", "a")),
    ]
    assert (none, codes) == ((), foreground.FOR_ALL)


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        (RUNNING, ""),
        ({**RUNNING, "updated_at": 85.0}, "it has reported nothing for 15 s; its last state was running: 4 tasks"),
        (WAITING, "waiting: Kafka does not answer"),
        ("{", "it has reported nothing yet"),
        (None, "it has reported nothing yet"),
    ],
)
def test_healthy_is_running_and_fresh(tmp_path: Path, status: Any, trouble: str) -> None:
    """One that hangs, as far as its status shows it: that it gets on is asked elsewhere."""
    file = tmp_path / "status.json"
    if status is not None:
        file.write_text(status if isinstance(status, str) else json.dumps(status), encoding="utf-8")

    assert healthy.trouble(file, now=100.0) == trouble


def test_the_health_check_is_cheap(tmp_path: Path) -> None:
    """Nothing but the standard library: it is asked every few seconds, in every container."""
    heavy = "('typer', 'onefold.cli.main')"
    program = f"import sys; import onefold.operate.healthy; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    asked = subprocess.run(
        [sys.executable, "-m", "onefold.operate.healthy", str(tmp_path / "nothing")], check=False, capture_output=True
    )
    assert (asked.returncode, asked.stdout) == (1, b"it has reported nothing yet\n")
