"""The whole package in mypy's strict mode."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.rooms import ROOT, modules

# Slow machines need a minute for the first time; after that only what was changed is read again.
ANSWER_S = 300


@pytest.fixture(scope="module")
def cache(request: pytest.FixtureRequest) -> Path:
    """Kept between runs, beside what pytest keeps."""
    return Path(request.config.cache.mkdir("mypy")) if request.config.cache else ROOT / ".mypy_cache"


def mypy(cache: Path, *arguments: str) -> str:
    """What it finds, "" when nothing."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(cache), *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False, timeout=ANSWER_S)
    return ran.stdout + ran.stderr


def test_the_package_is_typed_strictly(cache: Path) -> None:
    """As pyproject.toml says."""
    assert mypy(cache) == ""


@pytest.mark.slow  # a quarter of a minute where nothing is cached, and no user ever imports a test
def test_the_tests_are_typed_strictly(cache: Path) -> None:
    """As the package is."""
    assert mypy(cache, "-p", "tests") == ""


def test_mypy_finds_what_is_wrong(cache: Path, tmp_path: Path) -> None:
    """That it is content could also mean that it looks away: at our package, at a library with types, at settings."""
    planted = tmp_path / "planted.py"
    planted.write_text(
        "from confluent_kafka import Message\n"
        "from onefold.operate.settings import Settings\n"
        "from onefold.processor.core.topology import Topology\n"
        "def wrong(topology: Topology, message: Message, settings: Settings):\n"
        "    one: int = topology.changelog\n"
        "    two: str = message.topic()\n"
        "    three: str = settings.partitions\n",
        encoding="utf-8",
    )

    found = mypy(cache, str(planted))

    assert re.findall(r"\[([a-z-]+)\]$", found, re.MULTILINE) == ["no-untyped-def", *["assignment"] * 3], found


def test_nothing_is_looked_away_from() -> None:
    """Strict for every module of ours; what is ignored is one line, one kind, and has its reason."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    ours = [path for path in modules().values() if path != Path(__file__)]
    ignored = [
        (path, line)
        for path in ours
        for line in path.read_text(encoding="utf-8").splitlines()
        if "type: ignore" in line
    ]
    bare = [f"{path.name}: {line}" for path, line in ignored if not re.search(r"# type: ignore\[[a-z-]+\]  # \w", line)]
    switches = [
        path.name
        for path in ours
        if re.search(r"^# mypy:|no_type_check", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]

    assert settings["strict"] is True
    assert all(set(each) == {"module", "ignore_missing_imports"} for each in settings["overrides"])
    assert not any(name.startswith(("onefold", "*")) for each in settings["overrides"] for name in each["module"])
    assert bare == []
    assert switches == []
