"""Functions that a forked process runs. The fork server imports this module, and so the product, once for all processes."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onefold.cli import main
from onefold.cli.commands import dashboard as _dashboard  # noqa: F401 - a command imports its module only when run
from onefold.config.settings import Settings
from onefold.dashboard import reader
from onefold.dashboard import serve as _serve  # noqa: F401 - that module imports the web server only when run
from onefold.operate.dead_letters import replay as replaying
from onefold.operate.dead_letters.letters import DeadLetters, Wanted
from onefold.processor.io.replays import Dropped


def run(what: Callable[..., int], given: dict[str, Any], log: Path, environment: dict[str, str], folder: Path) -> None:
    """Run `what` with these variables in `folder`, with output appended to `log`. Exits with the returned code."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    to = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for standard in (1, 2):
        os.dup2(to, standard)
    os.close(to)
    sys.exit(what(**given))


def dashboard(words: list[str], snapshot_s: float) -> int:
    """Run a command line. `snapshot_s`: time limit of the dashboard's snapshots."""
    reader.SNAPSHOT_S = snapshot_s
    return main.run(words)


def replay(domain: str, settings: dict[str, Any], dies_after: str) -> int:
    """Replay all dead letters, one transaction per record, until killed after a step."""
    replaying.RECORDS_MAX = 1
    asked = DeadLetters(domain, Settings(**settings))
    replaying.replay(asked, Wanted(), _killed_after(dies_after))
    return 0


def drop(domain: str, settings: dict[str, Any], dies_after: str) -> int:
    """Drop all dead letters, one transaction per record, until killed after a step."""
    replaying.RECORDS_MAX = 1
    asked = DeadLetters(domain, Settings(**settings))
    replaying.drop(asked, Wanted(), Dropped("ada@laptop", "a test event"), _killed_after(dies_after))
    return 0


def reset(domain: str, settings: dict[str, Any], dies_after: str, inputs: bool) -> int:
    """Reset a pipeline until killed after a step."""
    from onefold.cli.commands.reset import jobs_of  # imports Arrow, whose threads do not survive a fork
    from onefold.operate.reset.reset import Reset

    asked = Settings(**settings)
    Reset(domain, asked, inputs=inputs, jobs=jobs_of(domain, asked)).run(_killed_after(dies_after))
    return 0


def _killed_after(step: str) -> Callable[[str], None]:
    def taken(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return taken
