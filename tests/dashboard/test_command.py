"""`onefold dashboard` as a command: where it listens, and how it ends."""

import os
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest

from onefold.cli.main import run
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, USAGE
from tests.support.coded import code_of
from tests.support.rooms import ROOT
from tests.support.silent import silent
from tests.support.site import Site
from tests.support.waiting import eventually

pytestmark = [pytest.mark.promise("host-names"), pytest.mark.slow]  # starts a process a test


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that nobody has to reach."""
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", "postgresql://nobody@127.0.0.1:1/none")


# A watcher that ends by an error, while a thread waits for good.
_BROKEN = """
import asyncio, sys, threading
from onefold.cli.main import main
from onefold.dashboard.watcher import Watcher

async def run(self):
    begun = threading.Event()
    asyncio.get_running_loop().run_in_executor(None, lambda: (begun.set(), threading.Event().wait()))
    await asyncio.to_thread(begun.wait)
    raise RuntimeError("the watcher is broken")

Watcher.run = run
sys.argv = ["onefold", "dashboard", "--port", "0"]
main()
"""


def test_it_does_not_leave_this_machine_by_accident(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dashboard", "--host", "0.0.0.0"]) == USAGE
    assert code_of(capsys.readouterr().err, "--expose") is Code.EXPOSED


def test_a_port_that_is_taken_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["dashboard", "--port", port]) == 1
    assert code_of(capsys.readouterr().err, port) is Code.PORT_TAKEN


def test_it_serves_without_a_database_and_ends_when_asked(tmp_path: Path) -> None:
    """The page shows that the database does not answer; an open stream holds nothing up."""
    site = Site(tmp_path, {"ONEFOLD_POSTGRES_DSN": "postgresql://nobody@127.0.0.1:1/none"})
    status, text = site.get("/")
    assert (status, "The database does not answer" in text) == (200, True)
    with urllib.request.urlopen(site.url + "/live", timeout=30) as stream:
        assert stream.readline().startswith(b"event: update")
        assert site.stop() == 0
    assert "Traceback" not in site.said()


@pytest.mark.parametrize("arguments", [(), ("--host", "0.0.0.0", "--expose"), ("--host", "::", "--expose")])
def test_it_answers_only_under_names_that_the_user_has_listed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Also when other machines reach it: a browser that another site has led here names that site."""
    environment = {
        "ONEFOLD_POSTGRES_DSN": "postgresql://nobody@127.0.0.1:1/none",
        "ONEFOLD_DASHBOARD_HOSTS": "board.example, *.inside.example",
    }
    site = Site(tmp_path, environment, *arguments, "--allowed-host", "dashboard")
    for path in ("/", "/live", "/tables", "/metrics", "/healthz", "/static/icon.svg"):
        status, text = site.get(path, Host="attacker.example")
        assert (status, "ONEFOLD_DASHBOARD_HOSTS" in text) == (400, True)
    for host in ("127.0.0.1.attacker.example", "inside.example", "xboard.example", "board.example:x", ""):
        assert site.get("/tables", Host=host)[0] == 400
    for host in ("board.example", "a.inside.example:8080", "DASHBOARD:80", "localhost", "[::1]:8080", "10.0.0.7:8080"):
        assert site.get("/tables", Host=host)[0] == 503, "the page, without its database"
    assert site.stop() == 0


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["dashboard", "--allowed-host", "http://board.example"]) == USAGE
    assert code_of(capsys.readouterr().err, "--allowed-host", "http://board.example") is Code.ARGUMENT_WRONG
    monkeypatch.setenv("ONEFOLD_METRICS_HOSTS", "*")
    assert run(["dashboard"]) == USAGE
    assert code_of(capsys.readouterr().err, "'*'") is Code.SETTING_WRONG


def test_it_ends_while_a_thread_waits_for_a_database_that_is_silent(tmp_path: Path) -> None:
    """For good: nothing bounds how long a server may be silent that has let somebody in."""

    def ask() -> None:
        with suppress(OSError, HTTPException):
            site.get("/explain/runner/stats?user_id=1")

    with silent() as database:
        site = Site(tmp_path, {"ONEFOLD_POSTGRES_DSN": database.dsn})
        before = len(database.asked)
        threading.Thread(target=ask, daemon=True).start()
        eventually(lambda: len(database.asked) > before, 30, "the row is asked for")
        assert site.stop() == 0


def test_what_nobody_expected_ends_it_while_a_thread_waits(tmp_path: Path) -> None:
    """A page that goes on showing what was true once would be worse than none."""
    environment = {**os.environ, "ONEFOLD_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run([sys.executable, "-c", _BROKEN], env=environment, capture_output=True, timeout=60)
    assert ended.returncode == FAILED
    assert b"RuntimeError: the watcher is broken" in ended.stderr
