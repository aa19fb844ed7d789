"""What a forked process runs. The fork server imports this module, and with it the product, once for all of them."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onefold.cli import main
from onefold.cli.commands import dashboard as _dashboard  # noqa: F401 - a command imports its module when it runs
from onefold.config.settings import Settings
from onefold.dashboard import reader
from onefold.dashboard import serve as _serve  # noqa: F401 - and that one the web server
from onefold.operate.dead_letters import replay as replaying
from onefold.operate.dead_letters.letters import DeadLetters, Wanted
from onefold.processor.io.replays import Dropped


def run(what: Callable[..., int], given: dict[str, Any], log: Path, environment: dict[str, str], folder: Path) -> None:
    """Run it with these variables in that folder; its output goes to the end of a file. Exits with the code that it returns."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    to = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for standard in (1, 2):
        os.dup2(to, standard)
    os.close(to)
    sys.exit(what(**given))


def dashboard(words: list[str], snapshot_s: float) -> int:
    """A command line. `snapshot_s`: how long the dashboard waits for a snapshot."""
    reader.SNAPSHOT_S = snapshot_s
    return main.run(words)


def replay(domain: str, settings: dict[str, Any], dies_after: str) -> int:
    """A replay of all dead letters, with a transaction a record, that is killed after a step."""
    replaying.RECORDS_MAX = 1
    asked = DeadLetters(domain, Settings(**settings))
    replaying.replay(asked, Wanted(), _killed_after(dies_after))
    return 0


def drop(domain: str, settings: dict[str, Any], dies_after: str) -> int:
    """A drop of all dead letters, with a transaction a record, that is killed after a step."""
    replaying.RECORDS_MAX = 1
    asked = DeadLetters(domain, Settings(**settings))
    replaying.drop(asked, Wanted(), Dropped("ada@laptop", "a test event"), _killed_after(dies_after))
    return 0


def reset(domain: str, settings: dict[str, Any], dies_after: str, inputs: bool) -> int:
    """A reset that is killed after a step."""
    from onefold.cli.commands.reset import jobs_of  # Arrow, whose threads no fork has
    from onefold.operate.reset.reset import Reset

    asked = Settings(**settings)
    Reset(domain, asked, inputs=inputs, jobs=jobs_of(domain, asked)).run(_killed_after(dies_after))
    return 0


def _killed_after(step: str) -> Callable[[str], None]:
    def taken(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return taken
