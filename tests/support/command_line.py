"""The command line as its user has it, in a home of its own."""

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
#: Settings of this test run, for the stacks of its tests as well.
KEPT = ("ONEFOLD_CACHE", "ONEFOLD_KAFKA_PORT", "ONEFOLD_POSTGRES_PORT", "ONEFOLD_DASHBOARD_PORT")
#: Variables of a user's shell, which are nobody else's affair.
CANARIES = {"AWS_SECRET_ACCESS_KEY": "canary-of-a-cloud", "MY_HANDLERS_KEY": "canary-of-a-handler"}


def shell() -> dict[str, str]:
    """The environment for a child process of a test: this one's, without settings of a stack that the developer may run."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_") or name in KEPT}


class Onefold:
    """The command line, in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = shell() | {"ONEFOLD_HOME": str(home), "PYTHONPATH": str(ROOT / "src")}

    def __call__(self, *arguments: str, says: bytes = b"", code: int = 0, **settings: str) -> str:
        """Run a command to its end; what it printed. Fails when it ends with another code than that."""
        ran = self.run(*arguments, says=says, **settings)
        assert code == ran.returncode, (
            f"onefold {' '.join(arguments)} ended with {ran.returncode}: {ran.stdout!r} {ran.stderr!r}"
        )
        return ran.stdout.decode()

    def run(self, *arguments: str, says: bytes = b"", **settings: str) -> "subprocess.CompletedProcess[bytes]":
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "onefold.cli.main", *arguments],
            input=says,
            capture_output=True,
            timeout=300,
            env=self.environment | settings,
            cwd=self.home,
        )

    def start(self, *arguments: str, **settings: str) -> "subprocess.Popen[bytes]":
        """Start a command and leave it running; its output goes to a file in the home."""
        with (self.home / f"{arguments[0]}.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "onefold.cli.main", *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment | settings, cwd=self.home,
            )  # fmt: skip

    def pipe(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start a command whose input stays open."""
        return subprocess.Popen(
            [sys.executable, "-m", "onefold.cli.main", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=self.environment, cwd=self.home,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """What `onefold status --json` says."""
        ran = self.run("status", "--json")
        # A server that is being started again does not answer yet, and what is known is printed all the same.
        assert ran.returncode in (OK, UNAVAILABLE), f"{ran.stdout!r} {ran.stderr!r}"
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    def services(self) -> dict[str, dict[str, Any]]:
        """The services as `onefold status` shows them, from where the supervisor writes it, without a command for each look. {}:
        none runs.
        """
        found: dict[str, dict[str, Any]] = stack_state.read_running(self.home).get("services", {})
        return found

    @property
    def dsn(self) -> str:
        """The database of this stack, with the password, from where the commands have it."""
        found = stack_state.read_running(self.home)["postgres_dsn"]
        assert isinstance(found, str)
        return found

    def pid(self, service: str) -> int:
        """The process of a service of this stack."""
        pid = eventually(lambda: self.services().get(service, {}).get("pid"), 30, f"{service} runs")
        assert isinstance(pid, int)
        return pid

    def kill(self, service: str) -> None:
        """kill -9, and wait until the supervisor has it running again."""
        before = self.pid(service)
        os.kill(before, signal.SIGKILL)

        def back() -> bool:
            entry = self.services().get(service, {})
            return entry.get("pid") not in (None, before) and entry["state"] == "running"

        eventually(back, 180, f"{service} is back")  # a sink of six pipelines beside a second stack

    def drained(self, deadline_s: float = 120) -> None:
        """Wait until nothing is left to fold or to land."""
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
        """Each with its state and the end of its log, for whoever reads that something has not come about."""
        return "\n".join(
            "\n  ".join(
                [f"{name}: {one['state']}, {one['restarts']} restarts, {one['detail']}", *_end_of(Path(one["log"]))]
            )
            for name, one in self.services().items()
        )

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask the database."""
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query, values).fetchall()


def _end_of(log: Path, lines: int = 12) -> list[str]:
    return log.read_text(errors="replace", encoding="utf-8").splitlines()[-lines:] if log.exists() else []
