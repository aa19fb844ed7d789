"""Clean clones, and environments with one Python and no other software."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.command_line import ROOT

# Programs to hide: Java, PostgreSQL, container engines.
_HIDDEN = ("java", "javac", "keytool", "psql", "postgres", "pg_", "initdb", "docker", "mvn")
# Kept variables: settings of pip and of the network, the language, and the options that reduce the load of the tests' JVMs.
_KEPT = ("PIP_", "SSL_", "REQUESTS_", "http", "HTTP", "no_proxy", "NO_PROXY", "LANG", "LC_", "JDK_JAVA_OPTIONS")


def python_of(release: str) -> Path | None:
    """Find an installed Python, on PATH or in pyenv. pyenv also puts shims on PATH for versions that are not selected, so run
    each."""
    named = [*filter(None, [shutil.which(f"python{release}")])]
    for program in [*map(Path, named), *sorted(Path.home().glob(f".pyenv/versions/{release}.*/bin/python{release}"))]:
        asked = [str(program), "-c", "import sys, venv, ensurepip; print(sys.base_prefix)"]
        ran = subprocess.run(asked, capture_output=True, encoding="utf-8", check=False)
        if ran.returncode == 0:
            return Path(ran.stdout.strip()) / "bin" / f"python{release}"
    return None


def clone(to: Path) -> Path:
    """Copy the checkout's files that git tracks or would add, links as links. Returns `to`."""
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in tracked.stdout.decode().split("\0"):
        if name and (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name, follow_symlinks=False)
    return to


def bare_environment(python: Path, folder: Path) -> dict[str, str]:
    """Environment of a machine with all programs except the hidden ones, `python` as python3, and empty caches.

    Args:
        folder: parent of the new folders bin and home.
    """
    programs = folder / "bin"
    programs.mkdir()
    for source in (Path("/usr/bin"), Path("/bin")):
        for program in source.iterdir():
            link = programs / program.name
            if not program.name.startswith((*_HIDDEN, "python")) and not link.exists():
                link.symlink_to(program)
    (programs / "python3").symlink_to(python)
    (folder / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith(_KEPT)}
    return kept | {"PATH": str(programs), "HOME": str(folder / "home")}
