"""Run pytest in a separate folder, for tests of the suite's plugins."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.rooms import ROOT


def own_pytest(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the tests of a folder with this checkout's support modules, without configuration, and with pytest-xdist as the only
    plugin."""
    path = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", "--rootdir", ".", *options],
        cwd=folder, env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True,
        encoding="utf-8", stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
