"""What the documents tell a reader to type does what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import ROOT, Onefold


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
def test_the_commands_for_a_first_hour(tmp_path: Path) -> None:
    """Those of the README and of the walk through it, in one shell, in order; each must succeed.

    But for the demo, which has a stack of its own: tests/product/test_fresh_clone.py runs it.
    """
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/walkthrough.md")]
    readme, walk = (re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL) for page in pages)
    (block,) = readme
    demo, *stays = block.splitlines(keepends=True)
    assert demo == "./onefold demo\n"
    commands = ["".join(stays), *(block for block in walk if "docker compose" not in block)]
    session = "\n".join(commands)
    assert session.count("./onefold") >= 9
    program = tmp_path / "onefold"
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT}/src exec {sys.executable} -m onefold.cli.main "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    environment = Onefold(tmp_path / "home").environment
    try:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", session], cwd=tmp_path, env=environment, capture_output=True, timeout=400
        )
    finally:
        subprocess.run([program, "down", "--wipe", "--yes"], env=environment, check=True, timeout=120)

    said = ran.stdout.decode()
    assert ran.returncode == 0, said + ran.stderr.decode()
    assert re.search(r"1 \|\s+100 \|\s+1000 \|\s+1100", said), said
    assert "valid" in said
