"""What the documents tell a reader to type does what they say."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import ROOT, Onefold


def test_the_readmes_session(tmp_path_factory: object, onefold: Onefold, tmp_path: Path) -> None:
    """Every command of the README from `up` on, in one shell, in order; each must succeed."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    session = "\n".join(block for block in blocks if "./onefold demo" not in block and "docker compose" not in block)
    assert session.count("./onefold") >= 7
    program = tmp_path / "onefold"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/src exec {sys.executable} -m onefold.cli.main "$@"\n')
    program.chmod(0o755)
    environment = onefold.environment | {"ONEFOLD_HOME": str(tmp_path / "home")}
    try:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", session], cwd=tmp_path, env=environment, capture_output=True, timeout=400
        )
    finally:
        subprocess.run([program, "down", "--wipe"], env=environment, check=True, timeout=120)

    said = ran.stdout.decode()
    assert ran.returncode == 0, said + ran.stderr.decode()
    assert re.search(r"1 \|\s+100 \|\s+1000 \|\s+1100", said), said
    assert "valid" in said
