"""The fault point kills the process that reaches it, at the hit that was asked for, with nothing in between."""

import os
import signal
import subprocess
import sys

import pytest

from console import failpoint
from console.errors import UserError

PROGRAM = """
from console import failpoint
step = failpoint.from_environment()
for number in range(5):
    step("other")
    print(number, flush=True)
    step("point")
"""


def test_it_kills_at_the_nth_hit_of_its_name_only() -> None:
    environment = {**os.environ, failpoint.VARIABLE: "point:3"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1", "2"]


def test_without_the_variable_nothing_happens() -> None:
    step = failpoint.from_environment({})
    step("point")


@pytest.mark.parametrize("value", ["point", "point:", ":3", "point:0", "point:-1", "point:x"])
def test_a_broken_value_is_one_sentence(value: str) -> None:
    with pytest.raises(UserError, match=failpoint.VARIABLE) as caught:
        failpoint.from_environment({failpoint.VARIABLE: value})
    assert caught.value.exit_code == 2
