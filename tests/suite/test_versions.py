"""The fast tier on other releases of Python and PostgreSQL, where they are installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import clones
from tests.support.command_line import ROOT

# Debian's packages postgresql-15 and so on put their programs there.
DEBIAN = "/usr/lib/postgresql/{}/bin"
# Several times what the tier takes on two cores, with the packages of the environment.
PATIENCE_S = 3600
pytestmark = [pytest.mark.matrix, pytest.mark.timeout(PATIENCE_S + 60)]


@pytest.mark.parametrize("release", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.postgres
def test_python(release: str, tmp_path: Path) -> None:
    """A clean clone makes its environment with that Python."""
    python = clones.python_of(release)
    if python is None:
        pytest.skip(f"no Python {release} with venv is installed")
    clone, environment = clones.clone(tmp_path / "clone"), clones.bare_environment(python, tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=clone, check=True)  # some tests list the files that git knows
    subprocess.run(["git", "add", "-A"], cwd=clone, check=True)
    passed(["./onefold", "test", "--fast", "--quiet"], clone, environment)


@pytest.mark.parametrize("release", ["15", "16", "17"])
@pytest.mark.postgres
def test_postgres(release: str) -> None:
    """The release beside 18, which every other run has."""
    programs = Path(DEBIAN.format(release))
    if not (programs / "initdb").exists():
        pytest.skip(f"no PostgreSQL {release} is installed in {programs}")
    passed([sys.executable, "-m", "pytest", "--fast", "-m", "postgres", f"--postgres={programs}", "--quiet"], ROOT)


def passed(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    """Fails with what a run said when it does not end well."""
    ran = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr).decode()[-20_000:]
    assert " passed" in ran.stdout.decode()
