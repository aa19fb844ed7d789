"""A command's work that is ended by kill -9 at one step, as a child process."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

from tests.support.command_line import ROOT

_CHILD = """
import json, os, signal, sys
from onefold.operate.settings import Settings
options = json.loads(sys.argv[1])
settings = Settings(**options["settings"])
def step(name):
    if name == options["dies_after"]:
        os.kill(os.getpid(), signal.SIGKILL)
if options["work"] == "replay":
    from onefold.operate import dead_letters, replaying
    replaying.RECORDS_MAX = 1
    replaying.replay(dead_letters.DeadLetters(options["domain"], settings), dead_letters.Wanted(), step)
else:
    from onefold.cli.commands.reset import jobs_of
    from onefold.operate.reset import Reset
    jobs = jobs_of(options["domain"], settings)
    Reset(options["domain"], settings, inputs=options["inputs"], jobs=jobs).run(step)
"""


def dies(work: str, domain: str, settings: dict[str, Any], after: str, *, inputs: bool = False) -> None:
    """Replay, with a transaction a record, or reset, until that step was taken; it is killed then, and has left nothing in
    good order.
    """
    asked = {"work": work, "domain": domain, "settings": settings, "dies_after": after, "inputs": inputs}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_")}
    ran = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(asked)],
        env={**environment, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        timeout=90,
    )
    assert ran.returncode == -signal.SIGKILL, f"killed after {after}: {ran.stderr.decode()}"
