"""The command line as users have it, in a data directory of the test."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

from onefold.config import stack_state
from onefold.exit_codes import OK, UNAVAILABLE
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
#: Settings of this test run that also apply to the stacks of the tests.
KEPT = ("ONEFOLD_CACHE", "ONEFOLD_KAFKA_PORT", "ONEFOLD_POSTGRES_PORT", "ONEFOLD_DASHBOARD_PORT")
#: Private variables of a user's shell, which must not reach other processes.
CANARIES = {"AWS_SECRET_ACCESS_KEY": "canary-of-a-cloud", "MY_HANDLERS_KEY": "canary-of-a-handler"}


def shell() -> dict[str, str]:
    """Environment for a child process: the present one without settings of the developer's own stack."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_") or name in KEPT}


class Onefold:
    """The command line in a data directory of the test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = shell() | {"ONEFOLD_HOME": str(home), "PYTHONPATH": str(ROOT / "src")}

    def __call__(self, *arguments: str, says: bytes = b"", code: int = 0, **settings: str) -> str:
        """Run a command, and return the output. Fails if the exit code is not `code`."""
        ran = self.run(*arguments, says=says, **settings)
        assert code == ran.returncode, (
            f"onefold {' '.join(arguments)} ended with {ran.returncode}: {ran.stdout!r} {ran.stderr!r}"
        )
        return ran.stdout.decode()

    def run(self, *arguments: str, says: bytes = b"", **settings: str) -> "subprocess.CompletedProcess[bytes]":
        """Run a command to completion."""
        return subprocess.run(
            [sys.executable, "-m", "onefold.cli.main", *arguments],
            input=says,
            capture_output=True,
            timeout=300,
            env=self.environment | settings,
            cwd=self.home,
        )

    def start(self, *arguments: str, **settings: str) -> "subprocess.Popen[bytes]":
        """Start a command in the background, with the output in a file of the data directory."""
        with (self.home / f"{arguments[0]}.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "onefold.cli.main", *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment | settings, cwd=self.home,
            )  # fmt: skip

    def pipe(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command with an open stdin."""
        return subprocess.Popen(
            [sys.executable, "-m", "onefold.cli.main", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=self.environment, cwd=self.home,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """Output of `onefold status --json`."""
        ran = self.run("status", "--json")
        # If a server is restarting, the command exits with UNAVAILABLE, and still prints the other parts.
        assert ran.returncode in (OK, UNAVAILABLE), f"{ran.stdout!r} {ran.stderr!r}"
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    def services(self) -> dict[str, dict[str, Any]]:
        """Services from the supervisor's file, as `onefold status` shows them, without a process for each look. Empty if none
        runs."""
        found: dict[str, dict[str, Any]] = stack_state.read_running(self.home).get("services", {})
        return found

    @property
    def dsn(self) -> str:
        """Connection string of this stack's database, with the password, from the same file as the commands use."""
        found = stack_state.read_running(self.home)["postgres_dsn"]
        assert isinstance(found, str)
        return found

    def pid(self, service: str) -> int:
        """Process id of a service of this stack."""
        pid = eventually(lambda: self.services().get(service, {}).get("pid"), 30, f"{service} runs")
        assert isinstance(pid, int)
        return pid

    def kill(self, service: str) -> None:
        """Kill with SIGKILL, and wait until the supervisor has restarted the service."""
        before = self.pid(service)
        os.kill(before, signal.SIGKILL)

        def back() -> bool:
            entry = self.services().get(service, {})
            return entry.get("pid") not in (None, before) and entry["state"] == "running"

        eventually(back, 180, f"{service} is back")  # long enough for a sink of six pipelines beside a second stack

    def drained(self, deadline_s: float = 120) -> None:
        """Wait until all records are processed and written."""
        ran = subprocess.run(
            [sys.executable, "-P", "-m", "tests.support.drained", str(deadline_s)],
            capture_output=True,
            timeout=deadline_s + 60,
            env=self.environment | {"PYTHONPATH": os.pathsep.join((self.environment["PYTHONPATH"], str(ROOT)))},
            cwd=self.home,
        )
        assert ran.returncode == 0, (
            f"not drained within {deadline_s} s:\n{ran.stdout.decode()}\n{self._how_services_are()}"
        )

    def _how_services_are(self) -> str:
        """State and end of the log of each service, for a failure message."""
        return "\n".join(
            "\n  ".join(
                [f"{name}: {one['state']}, {one['restarts']} restarts, {one['detail']}", *_end_of(Path(one["log"]))]
            )
            for name, one in self.services().items()
        )

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Query the database."""
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query, values).fetchall()


def _end_of(log: Path, lines: int = 12) -> list[str]:
    return log.read_text(errors="replace", encoding="utf-8").splitlines()[-lines:] if log.exists() else []
