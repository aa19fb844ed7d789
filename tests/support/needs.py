"""Markers of a test's requirements, derived from its fixtures: `broker`, `postgres`, `spark`, `s3`, `docker`, `browser`.

A test that starts such a program without a listed fixture needs an explicit marker, such as `@pytest.mark.broker`.
Otherwise the test fails: an unmarked test may not start these programs.
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
#: Spark of the session starts after the broker, which starts after the database, in the first test that needs one of them.
BEFORE = {"spark": {"broker", "postgres"}, "broker": {"postgres"}}
#: Markers excluded from each tier (tests/README.md); `slow` and `long` tests take seconds and minutes, `matrix` hours.
LEFT_OUT = {
    "fast": {"broker", "spark", "s3", "docker", "browser", "slow", "long", "matrix"},
    "default": {"s3", "docker", "browser", "long", "matrix"},
    "all": {"matrix"},
    "matrix": set[str](),
}
ON_SERVERS = {"broker", "spark"}
LENGTHS = ("slow", "long", "matrix")
#: Marker of tests that run alone (`turns`).
ALONE = "alone"
#: By fixture, including nested fixtures. The fixture `onefold`, a running stack, includes all three servers.
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
#: Words of a command line that identify the program.
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
#: Number of examples of each Hypothesis test without --all, to keep --fast fast.
EXAMPLES = 10
_STARTS_ALL = {"up", "demo"}
_running: list[pytest.Item] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for a quick run, and for a full one."""
    parser.addoption("--fast", action="store_true", help="only what needs no server but PostgreSQL")
    parser.addoption("--all", action="store_true", help="also containers, browsers, S3, a fresh clone")


def pytest_configure(config: pytest.Config) -> None:
    """Add the audit hook once per process, because an audit hook cannot be removed."""
    sys.addaudithook(_watch)
    # No time limit except pytest's, because a busy machine makes an example slow.
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("whole", patient)
    settings.register_profile("fast", patient, max_examples=EXAMPLES)
    settings.load_profile("fast" if tier(config) in ("fast", "default") else "whole")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test, and deselect tests outside the tier."""
    for item in items:
        for need in needs(item):
            item.add_marker(need)
    asked = tier(config)
    left_out = {item for item in items if _is_left_out({marker.name for marker in item.iter_markers()}, asked)}
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _is_left_out(marks: set[str], asked: str) -> bool:
    # By default, only promise tests use a broker or Spark; --all runs the rest.
    return bool(marks & LEFT_OUT[asked]) or (asked == "default" and bool(marks & ON_SERVERS) and "promise" not in marks)


def tier(config: pytest.Config) -> str:
    """Tier of the run, `default` without an option. Named files, tests or markers select all tests but the matrix."""
    if config.getoption("--fast"):
        return "fast"
    if "matrix" in config.getoption("-m"):
        return "matrix"
    named = config.getoption("-m") or config.option.file_or_dir
    return "all" if config.getoption("--all") or named else "default"


def first_of(names: Iterable[str]) -> list[ParameterSet]:
    """Parameters of a test that repeats for each name: the first by default, all with -m matrix."""
    return [pytest.param(name, marks=[pytest.mark.matrix] if number else []) for number, name in enumerate(names)]


def needs(item: pytest.Item) -> set[str]:
    """Requirements of a test's fixtures, down to the listed fixtures."""
    found = getattr(item, "_fixtureinfo", None)
    return set(_needs(found.initialnames, found.name2fixturedefs)) if found else set()


def _needs(names: Iterable[str], fixtures: Mapping[str, Sequence[Any]], within: tuple[str, ...] = ()) -> Iterator[str]:
    for name in names:
        if name in FIXTURES:
            yield from FIXTURES[name]
            continue
        # A fixture that requests its own name means the overridden one.
        known, level = fixtures.get(name, ()), within.count(name)
        if level < len(known):
            yield from _needs(known[-1 - level].argnames, fixtures, (*within, name))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the running test for `_watch`."""
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
    """Requirements of a command line, as far as recognisable; `tool --version` has none."""
    words = [os.fsdecode(word) for word in command] if isinstance(command, list | tuple) else []
    if words[-1:] == ["--version"]:
        return set()
    found = {PROGRAMS[name] for word in words if (name := PurePath(word).name) in PROGRAMS}
    if "onefold.cli.main" in words and _STARTS_ALL & set(words):
        found |= {"broker", "postgres"} if "--only" in words else {"broker", "postgres", "spark"}
    return found
