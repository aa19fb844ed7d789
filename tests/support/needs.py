"""What a test needs is a marker: `broker`, `postgres`, `spark`, `s3`, `docker`, `browser`, found by the fixtures that it uses.

A test that starts such a thing without a fixture of the list says so itself, `@pytest.mark.broker`. One that forgets it
fails when it does: an unmarked test may not start a program of theirs.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import HealthCheck, settings

NEEDS = ("broker", "postgres", "spark", "s3", "docker", "browser")
#: The session's Spark is started after its broker, and that after its database, by the first test that needs one of them.
BEFORE = {"spark": {"broker", "postgres"}, "broker": {"postgres"}}
#: What each tier of tests leaves out (tests/README.md); `slow` and `long` are seconds and minutes, `matrix` is hours.
LEFT_OUT = {
    "fast": {"broker", "spark", "s3", "docker", "browser", "slow", "long", "matrix"},
    "default": {"s3", "docker", "browser", "long", "matrix"},
    "all": {"matrix"},
    "matrix": set[str](),
}
ON_SERVERS = {"broker", "spark"}
LENGTHS = ("slow", "long", "matrix")
#: What runs while nothing else does (`turns`).
ALONE = "alone"
#: By fixture; what these use themselves is counted with them. All three servers come with `onefold`, the stack that is up.
FIXTURES = {
    "bootstrap_servers": ("broker",),
    "postgres_server": ("postgres",),
    "infrastructure": ("broker", "postgres"),
    "spark": ("spark",),
    "s3_server": ("s3",),
    "chromium": ("browser",),
    "images": ("docker",),
    "onefold": ("broker", "postgres", "spark"),
}
#: Words of a command line that tell whose program it is.
PROGRAMS = {
    "kafka.Kafka": "broker",
    "postgres": "postgres",
    "initdb": "postgres",
    "pyspark-shell": "spark",
    "org.apache.spark.deploy.master.Master": "spark",
    "org.apache.spark.deploy.worker.Worker": "spark",
    "org.gaul.s3proxy.Main": "s3",
    "compose": "docker",
    "chromedriver": "browser",
}
#: Examples of each Hypothesis test, but with --all: a tenth of them. They took a third of the time of --fast.
EXAMPLES = 10
_STARTS_ALL = {"up", "demo"}
_running: list[pytest.Item] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """For a first answer, and for a machine that has nothing."""
    parser.addoption("--fast", action="store_true", help="only what needs no server but PostgreSQL")
    parser.addoption("--all", action="store_true", help="also containers, browsers, S3, a fresh clone")


def pytest_configure(config: pytest.Config) -> None:
    """What watches for programs is put there once a process: it cannot be taken away again."""
    sys.addaudithook(_watch)
    # A machine that is busy for a moment makes an example slow, and no test wrong: no time limit but pytest's own.
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("whole", patient)
    settings.register_profile("fast", patient, max_examples=EXAMPLES)
    settings.load_profile("fast" if tier(config) in ("fast", "default") else "whole")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks every test; leaves out what was not asked for."""
    for item in items:
        for need in needs(item):
            item.add_marker(need)
    asked = tier(config)
    left_out = {item for item in items if _is_left_out({marker.name for marker in item.iter_markers()}, asked)}
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_left_out(marks: set[str], asked: str) -> bool:
    # By default a broker or Spark is for promises; what else is tested on them is left to --all.
    return bool(marks & LEFT_OUT[asked]) or (asked == "default" and bool(marks & ON_SERVERS) and "promise" not in marks)


def tier(config: pytest.Config) -> str:
    """`default` unless an option says another. Who names files, tests or markers gets all of them, but no matrix unasked."""
    if config.getoption("--fast"):
        return "fast"
    if "matrix" in config.getoption("-m"):
        return "matrix"
    named = config.getoption("-m") or config.option.file_or_dir
    return "all" if config.getoption("--all") or named else "default"


def first_of(names: Iterable[str]) -> list[ParameterSet]:
    """Parameters of a test that does the same for each of them: from day to day the first one, all with -m matrix."""
    return [pytest.param(name, marks=[pytest.mark.matrix] if number else []) for number, name in enumerate(names)]


def needs(item: pytest.Item) -> set[str]:
    """What the fixtures of a test need; down to those of the list, and not what these are made with."""
    found = getattr(item, "_fixtureinfo", None)
    return set(_needs(found.initialnames, found.name2fixturedefs)) if found else set()


def _needs(names: Iterable[str], fixtures: Mapping[str, Sequence[Any]], within: tuple[str, ...] = ()) -> Iterator[str]:
    for name in names:
        if name in FIXTURES:
            yield from FIXTURES[name]
            continue
        # A fixture that asks for its own name means the one whose place it takes.
        known, level = fixtures.get(name, ()), within.count(name)
        if level < len(known):
            yield from _needs(known[-1 - level].argnames, fixtures, (*within, name))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Whose programs are started now."""
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen" or not _running:
        return
    marked = {marker.name for marker in _running[-1].iter_markers()}
    if missing := started(arguments[1]) - marked.union(*(BEFORE.get(name, set()) for name in marked)):
        raise AssertionError(f"{_running[-1].nodeid} starts what it is not marked for: {', '.join(sorted(missing))}")


def started(command: Any) -> set[str]:
    """What a command line starts, as far as can be seen; a `tool --version` starts nothing."""
    words = [os.fsdecode(word) for word in command] if isinstance(command, list | tuple) else []
    if words[-1:] == ["--version"]:
        return set()
    found = {PROGRAMS[name] for word in words if (name := PurePath(word).name) in PROGRAMS}
    if "onefold.cli.main" in words and _STARTS_ALL & set(words):
        found |= {"broker", "postgres"} if "--only" in words else {"broker", "postgres", "spark"}
    return found
