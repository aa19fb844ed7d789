"""Sharing the suite between two processes (`pytest -n 2`): distribution and order of tests, and isolation.

A test marked `alone` measures time or needs the whole machine: the other process waits meanwhile. All other tests may run
in parallel. Within a process, each test restores Python's modules and search path. Otherwise modules imported from a test's
project would be *installed* for the next test.
"""

import fcntl
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.support.needs import ALONE, ON_SERVERS

ROOT = Path(__file__).resolve().parents[2]
#: The tests of these files share a stack, so a single process runs all of them.
STACK = "tests/product/stack"
#: The longest files, in this order. Other files are ordered by their number of tests.
FIRST = (
    "tests/product/test_fresh_clone.py",
    STACK,
    "tests/chaos/test_containers.py",
    "tests/product/test_own_pipeline.py",
    "tests/product/test_spark_cluster.py",
    "tests/product/test_documents.py",
)


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Assigns the tests of a file, or of a folder whose files share a stack, to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


def together(nodeid: str) -> str:
    """Scope of a test in one process: the file, or the folder whose files share a stack."""
    return STACK if nodeid.startswith(f"{STACK}/") else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Scheduler for `--dist loadfile`, which `onefold test` requests."""
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)  # after pytest-randomly has shuffled, and after deselection
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort: the longest files first, then files with a broker or Spark, and last the short ones, so that both processes end
    together.

    A single process has the same order, so that a seed has the same meaning.
    """
    items[:] = longest_first(items)


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort by scopes, and keep the order within: the files of the folder with the stack start one stack."""
    work: dict[str, list[pytest.Item]] = {}
    for item in items:
        work.setdefault(together(item.nodeid), []).append(item)
    served = {name for name in work if any(item.get_closest_marker(mark) for item in work[name] for mark in ON_SERVERS)}
    first = {name: place for place, name in enumerate(FIRST)}
    order = sorted(work, key=lambda name: (first.get(name, len(FIRST)), name not in served, -len(work[name])))
    return [item for name in order for item in work[name]]


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the time limit, because waiting is no part of a test
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test with set-up and teardown in its turn."""
    run = getattr(item.config, "workerinput", {}).get("testrunuid")
    if run is None:
        return (yield)
    with turn(Path(tempfile.gettempdir()) / f"onefold-tests-{run}", alone=item.get_closest_marker(ALONE) is not None):
        return (yield)


@contextmanager
def turn(place: Path, *, alone: bool) -> Iterator[None]:
    """Run beside tests that are not alone, or alone.

    Two locks give priority to a test that waits to be alone: the waiting test holds the gate.
    """
    with (
        place.with_suffix(".gate").open("a", encoding="utf-8") as gate,
        place.with_suffix(".room").open("a", encoding="utf-8") as room,
    ):
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # Unlock explicitly, because a child forked meanwhile would keep the lock after a close.
            fcntl.flock(room, fcntl.LOCK_UN)


@pytest.fixture(autouse=True)
def _projects_are_left() -> Iterator[None]:
    with left_projects():
        yield


@contextmanager
def left_projects() -> Iterator[None]:
    """Remove modules imported from a project during the block, and restore the search path."""
    path, modules = [*sys.path], set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in sys.modules.keys() - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and _of_a_project(Path(file)):
                del sys.modules[name]


def _of_a_project(file: Path) -> bool:
    """Whether the file is an example, or neither in this checkout nor installed."""
    others = not any(file.is_relative_to(place) for place in (ROOT, sys.prefix, sys.base_prefix))
    return others or file.is_relative_to(ROOT / "examples")
