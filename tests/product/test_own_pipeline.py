"""A pipeline of one's own, from an empty folder and the wheel: the tutorial, command by command, with its kill -9."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import urllib.request
import zipfile
from pathlib import Path

import psycopg
import pytest

from onefold.cli.starter import RESERVED
from onefold.config import stack_state
from tests.support.command_line import ROOT
from tests.support.command_line import shell as command_line_shell

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
PYTEST = "#!{python}\nimport sys, pytest\nsys.exit(pytest.console_main())\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an engineer installs."""
    folder = tmp_path_factory.mktemp("checkout") / "dist"
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, capture_output=True
    )
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The shell of somebody whose virtual environment has everything that Onefold needs, but not Onefold; and, as it is on
    PyPI, a package `avro`.
    """
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    packages = next(folder.glob("lib/python*/site-packages"))
    for there in Path(sysconfig.get_paths()["purelib"]).iterdir():
        mine = packages / there.name
        if not there.name.startswith(("onefold", "_editable", "__editable", "__pycache__")) and not mine.exists():
            mine.symlink_to(there)
    for name, text in {
        "avro/__init__.py": "",
        "avro-1.12.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: avro\nVersion: 1.12.0\n",
    }.items():
        (packages / name).parent.mkdir()
        (packages / name).write_text(text, encoding="utf-8")
    program = folder / "bin" / "pytest"
    program.write_text(PYTEST.format(python=folder / "bin" / "python"), encoding="utf-8")
    program.chmod(0o755)
    keep = {name: value for name, value in command_line_shell().items() if not name.startswith(("PYTEST_", "PYTHON"))}
    keep["ONEFOLD_CHAOS_PATIENCE"] = "10"  # a busy machine is late; the matrix measures seconds
    pip = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    pip["CHECKOUT"] = str(wheel.parent.parent)  # as the page calls it
    return {**keep, **pip, "VIRTUAL_ENV": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def test_the_wheel_claims_one_name(wheel: Path) -> None:
    """And the description of itself, nothing else; the template's hidden files are in it."""
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.split("/")[0] for name in names} == {"onefold", f"{'-'.join(wheel.stem.split('-')[:2])}.dist-info"}
    assert "onefold/cli/template/dot_github/workflows/ci.yml" in names
    assert "onefold/docs/operating.md" in names


@pytest.mark.promise("a-pipeline-of-your-own")
@pytest.mark.long  # 130 s
@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
def test_the_tutorial(environment: dict[str, str], tmp_path: Path) -> None:
    """Every command in order, in one shell a section; each must succeed, and the verdict after the kills is *valid*."""
    sections = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    begin, run, kill, chaos, end, *mine = sections
    assert "onefold kill" in kill
    assert "onefold chaos" in chaos
    assert "--wipe" in end
    shell(begin, tmp_path, environment)
    used = shell(
        "python -c 'import avro, onefold; print(avro.__file__, onefold.__file__)'", tmp_path, environment
    ).split()
    assert all(file.startswith(environment["VIRTUAL_ENV"]) and file.endswith("__init__.py") for file in used)
    try:
        said = shell(run, tmp_path, environment) + shell(kill, tmp_path, environment)
        look(tmp_path, environment)
        shell(chaos, tmp_path, environment)
    finally:
        shell(end, tmp_path, environment)
    assert sum("git apply" in section for section in mine) == 4
    try:
        changed = "".join(shell(section, tmp_path, environment) for section in mine)
    finally:
        shell("onefold down --wipe --yes", tmp_path, environment)

    assert re.search(r"^orders: valid", changed, re.MULTILINE)
    assert "largest_cents" in changed
    assert len(re.findall(r"^orders: valid", said, re.MULTILINE)) == 2


def look(project: Path, environment: dict[str, str]) -> None:
    """The stack is the project's from each of its folders; the page shows the table; the services were really killed."""
    assert "is up already" in shell("onefold up", project / "sql" / "merge", environment)
    status = json.loads(shell("onefold status --json", project / "avro", environment))
    assert status["lag"]["orders"]["events"] == 0
    for service in ("processor-orders-1", "sink-1"):
        assert status["services"][service]["restarts"] >= 1
    with urllib.request.urlopen(f"{status['dashboard']}/tables/orders/totals", timeout=30) as page:
        assert "total_cents" in page.read().decode()
    with psycopg.connect(stack_state.read_running(project / ".onefold")["postgres_dsn"]) as connection:
        words = connection.execute("SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T')").fetchall()
    assert {word for (word,) in words} <= RESERVED


def shell(commands: str, folder: Path, environment: dict[str, str]) -> str:
    """Run them; what they printed."""
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=400,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
