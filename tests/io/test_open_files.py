"""A process may have as many files open as its tasks need, or says how many they are."""

import re
import resource
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.processor import service
from onefold.processor.core.errors import Misconfigured
from onefold.processor.io import open_files
from onefold.processor.io.admin import create_topics
from onefold.processor.loading import topology_of
from tests.support.coded import raises

pytestmark = pytest.mark.promise("open-files")

RAISED = """
import resource, sys
from onefold.cli import process
resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv[1])))
process.raise_file_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize(("hard", "soft"), [(256, 256), (1024, 1024), (4096, 4096)])
def test_the_soft_limit_is_raised_to_the_hard_one(hard: int, soft: int) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("the limit of this process is lower")
    assert int(subprocess.check_output([sys.executable, "-P", "-c", RAISED, str(hard)])) == soft


def test_tasks_beyond_the_limit_are_refused_with_the_number_that_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    open_files.check(40, 1, replicated=False)
    with raises(Misconfigured, Code.TOO_FEW_OPEN_FILES, "64", "1,306", "1,024"):
        open_files.check(64, 1, replicated=False)
    with raises(Misconfigured, Code.TOO_FEW_OPEN_FILES, "64", "2,906"):
        open_files.check(64, 1, replicated=True)
    with raises(Misconfigured, Code.TOO_FEW_OPEN_FILES, "40", "1,306"):
        open_files.check(40, 3, replicated=False)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    open_files.check(64, 3, replicated=True)


def test_those_that_there_are_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group gives tasks one by one."""

    class Pool:
        tasks = 39

        def __init__(self) -> None:
            self.started: list[int] = []

        def start(self, partitions: Iterable[int]) -> None:
            self.started += partitions

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    monkeypatch.setattr(open_files, "brokers_of", lambda admin: 1)
    pool, no_admin = cast("Any", Pool()), cast("Any", None)
    start = partial(service._start, pool, 50, no_admin, False)
    start(iter([7]))
    assert pool.started == [7]
    with raises(Misconfigured, Code.TOO_FEW_OPEN_FILES, "89"):
        start(range(50))
    assert pool.started == [7], "none is begun of what cannot be had whole"


@pytest.mark.broker
def test_a_processor_within_a_hard_limit_that_is_too_low_ends_with_one_sentence(
    client: dict[str, str], tmp_path: Path, environment: dict[str, str]
) -> None:
    """And not with half of its tasks."""
    create_topics(topology_of("averages"), 64, client)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", LIMITED, "-P", "-m", "onefold.cli.main", "process", "averages",
         "--processes", "1"],
        env={**environment, "ONEFOLD_BOOTSTRAP_SERVERS": client["bootstrap.servers"], "ONEFOLD_HOME": str(tmp_path)},
        capture_output=True, encoding="utf-8", check=False, timeout=120,
    )  # fmt: skip

    assert ran.returncode == USAGE, ran.stderr
    assert re.search(
        r"64 tasks need about 1,306 open files, and the limit of this process is 1,024", ran.stdout + ran.stderr
    )
    assert "Traceback" not in ran.stdout + ran.stderr
