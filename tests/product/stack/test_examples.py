"""The example of each command's help runs on a stack that is up, in the order of the overview."""

import json
import shlex
from pathlib import Path

import pytest

from onefold.cli.main import Verbs
from onefold.exit_codes import FAILED, OK, REFUSED, USAGE
from tests.support.command_line import Onefold
from tests.support.verbs import COMMANDS, example, loaded

# Examples that end otherwise here, and why.
ENDS = {
    "jobs requeue": USAGE,  # the pipeline orders has no jobs
    "reset": REFUSED,  # processors run
    "sheets open": FAILED,  # there is no such sheet
}
# Examples that are run elsewhere, or never end.
ELSEWHERE = {
    "demo": "tests/product/test_demo.py",
    "down": "it would end the stack of the other tests",
    "migrate": "names servers that are not here: tests/product/test_mails.py",
    "kubernetes": "names servers that are not here: tests/operate/test_kubernetes.py",
    "grants": "a second program: tests/integration/test_grants.py",
    "acls": "tests/integration/test_acls.py",
    "docs": "a second program: tests/product/test_readme.py",
    "process": "a service",
    "sink": "a service",
    "work": "a service",
    "audit": "a service",
    "dashboard": "a service",
    "logs": "follows the log",
    "kafka": "reads a terminal: tests/product/test_documents.py",
    "chaos": "containers: tests/chaos",
    "dead-letters show": "needs that dead letter: tests/integration/test_dead_letters.py",
    "dead-letters drop": "needs that dead letter: tests/integration/test_dead_letters.py",
    "trades evaluate": "measures for minutes, on a stack of its own",
    "test": "runs all tests",
    "lint": "tests/suite/test_lint.py",
}


@pytest.mark.long  # a command after the other
def test_every_example_runs(onefold: Onefold) -> None:
    names = [" ".join(words) for words in COMMANDS]
    assert {*ENDS, *ELSEWHERE} <= {*names}, "each is a command"
    (onefold.home / "budget.csv").write_text("1,2\n", encoding="utf-8")
    send = {"id": 1, "email": "A", "subject": "A", "sent": 100, "date": "2021-12-01 12:00:00"}
    onefold("produce", "campaigns.sends", says=f"{json.dumps(send)}\n".encode())
    onefold.drained()
    for words in COMMANDS:
        name, line = " ".join(words), example(words)
        if name in ELSEWHERE or words[0] == "bench" or isinstance(loaded(words), Verbs):
            continue
        if name == "verify":
            onefold.drained()  # after the kill of the sink
        program, *arguments = shlex.split(line)
        assert program == "onefold", line
        onefold(*arguments, code=ENDS.get(name, OK))
    assert Path(onefold.home / "shop").is_dir(), "of `onefold new`"
