"""Two processes may share the suite (`pytest -n 2`): who runs which, which tests come first, and what they must not do to
each other.

A test marked `alone` measures time, or fills the machine: while it runs, the other process waits. Every other test may run
beside any. Within one process each test leaves Python's modules and its search path as it found them, or what one has
imported from a project of its own would be *installed* for the next.
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
#: The tests of its files share a stack, so a single process runs them all.
STACK = "tests/product/stack"
#: The longest, in this order. The number of its tests says how long another file is.
FIRST = (
    "tests/product/test_fresh_clone.py",
    STACK,
    "tests/chaos/test_containers.py",
    "tests/product/test_own_pipeline.py",
    "tests/product/test_spark_cluster.py",
    "tests/product/test_documents.py",
)


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A process has the tests of a file, or of a folder whose files share more than a file has."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


def together(nodeid: str) -> str:
    """The file of a test, or the folder whose files share a stack: all that runs in one process."""
    return STACK if nodeid.startswith(f"{STACK}/") else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """For `--dist loadfile`, which `onefold test` asks for."""
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)  # after pytest-randomly has shuffled, and it is known what is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First the longest, then files with a broker or Spark, and last files with small tests, which leave no process waiting for
    the other one at the end. A single process has the same order, so that a seed means the same there.
    """
    items[:] = longest_first(items)


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """All that runs in one process stays together, in its order: the files of the folder with the stack start one stack."""
    work: dict[str, list[pytest.Item]] = {}
    for item in items:
        work.setdefault(together(item.nodeid), []).append(item)
    served = {name for name in work if any(item.get_closest_marker(mark) for item in work[name] for mark in ON_SERVERS)}
    first = {name: place for place, name in enumerate(FIRST)}
    order = sorted(work, key=lambda name: (first.get(name, len(FIRST)), name not in served, -len(work[name])))
    return [item for name in order for item in work[name]]


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the time limit: waiting is no part of a test
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test with its set-up and what is torn down after it."""
    run = getattr(item.config, "workerinput", {}).get("testrunuid")
    if run is None:
        return (yield)
    with turn(Path(tempfile.gettempdir()) / f"onefold-tests-{run}", alone=item.get_closest_marker(ALONE) is not None):
        return (yield)


@contextmanager
def turn(place: Path, *, alone: bool) -> Iterator[None]:
    """Beside others who are not alone, or with nobody. Who waits to be alone is waited for: there are two locks, and the
    gate is held while one waits for the room."""
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
            # Not by closing alone: a child that was forked meanwhile would go on holding it.
            fcntl.flock(room, fcntl.LOCK_UN)


@pytest.fixture(autouse=True)
def _projects_are_left() -> Iterator[None]:
    with left_projects():
        yield


@contextmanager
def left_projects() -> Iterator[None]:
    """What is imported meanwhile from a project is gone afterwards, and so is the way to it."""
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
    """Whether it is an example, or neither of this checkout nor installed."""
    others = not any(file.is_relative_to(place) for place in (ROOT, sys.prefix, sys.base_prefix))
    return others or file.is_relative_to(ROOT / "examples")
