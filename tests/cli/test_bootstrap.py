"""The script `./onefold`: readable by old Pythons, honest about what is missing, and able to tell a whole environment
from half of one.
"""

import ast
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "onefold"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The script's names, with everything that it makes in a folder of the test."""
    names = runpy.run_path(str(SCRIPT))
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    for name, value in {
        "VENV": str(venv),
        "STAMP": str(venv / "onefold.stamp"),
        "LOG": str(venv / "log"),
        "PYTHON": str(venv / "bin/python"),
        "PROGRAM": str(venv / "bin/onefold"),
        "LOCK": str(tmp_path / "requirements.lock"),
        "ROOT": str(tmp_path),
        "PACKAGE": str(tmp_path / "src" / "onefold"),
        "TESTS": str(tmp_path / "tests.txt"),
        "OPTIONAL": str(tmp_path / "optional.txt"),
        "BUILD": str(tmp_path / "wheel.txt"),
    }.items():
        monkeypatch.setitem(names["main"].__globals__, name, value)
    package = tmp_path / "src" / "onefold"
    package.mkdir(parents=True)
    for linked in names["LINKED"]:
        (tmp_path / linked).mkdir()
        (package / linked).symlink_to(tmp_path / linked)
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    (tmp_path / "requirements.lock").write_text(
        "a==1 \\\n    --hash=sha256:aa\nsetuptools==2 \\\n    --hash=sha256:bb\nb==3\n", encoding="utf-8"
    )
    (tmp_path / "tests.txt").write_text("# of the tests\nb  # a reason\nsetuptools\n", encoding="utf-8")
    (tmp_path / "optional.txt").write_text("c\n", encoding="utf-8")
    (tmp_path / "wheel.txt").write_text("setuptools\n", encoding="utf-8")
    for program in ("python", "onefold"):
        (venv / "bin" / program).write_text("#!/bin/sh\n", encoding="utf-8")
        (venv / "bin" / program).chmod(0o755)
    return names


def test_an_old_python_can_read_it_and_it_needs_nothing_but_the_standard_library() -> None:
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 4))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.AnnAssign)]
    imported = {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert imported <= set(sys.stdlib_module_names)


def test_an_old_python_is_told_in_one_sentence(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SystemExit) as ended:
        script["main"]()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: Onefold needs Python 3.11 or newer; this is Python 3.9\n")


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_missing_module_is_told_with_the_package_that_brings_it(
    module: str, script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit):
        script["check_machine"]()
    told = capsys.readouterr().err
    assert module in told
    assert f"apt install python3.{sys.version_info[1]}-venv" in told


def test_an_environment_counts_only_with_the_stamp_of_this_lock(script: dict[str, Any], tmp_path: Path) -> None:
    assert not script["is_current"]("run"), "half-made: no stamp"
    stamp = tmp_path / ".venv" / "onefold.stamp"
    stamp.write_text(script["wanted_stamp"]("run"), encoding="utf-8")
    assert script["is_current"]("run")
    lock = tmp_path / "requirements.lock"
    lock.write_text(lock.read_text(encoding="utf-8").replace("a==1", "a==2"), encoding="utf-8")
    assert not script["is_current"]("run"), "the lock changed"
    stamp.write_text(script["wanted_stamp"]("run"), encoding="utf-8")
    (tmp_path / ".venv" / "bin" / "python").unlink()
    assert not script["is_current"]("run"), "its Python is gone"


def test_every_package_of_the_lock_is_enough_for_a_stack_and_not_the_other_way_round(
    script: dict[str, Any], tmp_path: Path
) -> None:
    stamp = tmp_path / ".venv" / "onefold.stamp"
    stamp.write_text(script["wanted_stamp"]("all"), encoding="utf-8")
    assert script["is_current"]("run")
    stamp.write_text(script["wanted_stamp"]("run"), encoding="utf-8")
    assert not script["is_current"]("all")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [(["test", "-x"], "all"), (["bench", "sink"], "all"), (["up"], "run"), ([], "run"), (["--help"], "run")],
)
def test_only_tests_and_benches_need_every_package(
    words: list[str], wanted: str, script: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["onefold", *words])
    assert script["wanted_packages"]() == wanted
    monkeypatch.setenv("ONEFOLD_PACKAGES", "all")
    assert script["wanted_packages"]() == "all"


def test_packages_are_picked_with_all_their_pins_and_hashes(script: dict[str, Any], tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(
        lock.read_text(encoding="utf-8") + "b==4 ; python_full_version >= '3.13'\nw==1 ; sys_platform == 'win32'\n",
        encoding="utf-8",
    )
    entries = script["lock_entries"]()
    assert entries["setuptools"] == "setuptools==2 \\\n    --hash=sha256:bb\n"
    assert entries["b"].count("b==") == 2, "a version for each Python"
    assert "w" not in entries
    assert script["left_out"]() == {"b", "c"}
    assert (
        Path(script["listed"]("picked", entries, ["a"])).read_text(encoding="utf-8")
        == "a==1 \\\n    --hash=sha256:aa\n"
    )


def test_a_download_is_announced_and_shown_by_bytes(script: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """By the lines that pip prints with `--progress-bar raw`; into a file at every tenth, and never a line twice."""
    script["announce"](["pyspark", "typer"])
    assert ": 2 packages, about 434 MB (pyspark 434 MB" in capsys.readouterr().err
    bar = script["Bar"](100_000_000)
    for line in (
        "Collecting pyspark==4.0.5",
        "Downloading pyspark-4.0.5.tar.gz (60.0 MB)",
        "Progress 30000000 of 60000000",
        "Progress 30000001 of 60000000",
        "Progress 60000000 of 60000000",
        "Using cached pyarrow-20.0-cp311.whl (20.0 MB)",
    ):
        bar.line(line)
    assert capsys.readouterr().err.splitlines() == [
        "  [..............................] 0 of about 100 MB, pyspark",
        "  [#########.....................] 30 of about 100 MB, pyspark",
        "  [##################............] 60 of about 100 MB, pyspark",
        "  [########################......] 80 of about 100 MB, pyarrow",
    ]


def test_modules_are_compiled_once_and_what_is_copied_stays_as_it_is(
    script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(script["main"].__globals__, "PYTHON", sys.executable)
    package = tmp_path / "src" / "onefold"
    (package / "template").mkdir()
    for module in (package / "names.py", tmp_path / "processor" / "main.py", package / "template" / "pipename.py"):
        module.write_text("x = 1\n", encoding="utf-8")
    script["compile_modules"]()
    compiled = {file.name.partition(".")[0] for file in tmp_path.rglob("*.pyc")}
    assert compiled == {"names", "main"}


def test_a_command_that_fails_is_one_sentence_with_the_end_of_its_log(
    script: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        script["run"]([sys.executable, "-c", "raise SystemExit('no network')"], "could not install")
    told = capsys.readouterr().err
    assert told.startswith("error: could not install\n")
    assert "no network" in told


@pytest.fixture
def made(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the script has run, without having run it, where it makes an environment."""
    ran: list[str] = []
    names = script["main"].__globals__
    monkeypatch.setitem(names, "run", lambda command, failed, bar=None: ran.append(" ".join(command)))
    monkeypatch.setitem(names, "compile_modules", lambda: None)
    monkeypatch.setitem(names, "BUILDERS", ("setuptools",))
    return ran


def test_a_checkout_without_links_is_said_in_one_sentence(
    script: dict[str, Any], made: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Git writes a file with the link's target where the file system has no links."""
    link = tmp_path / "src" / "onefold" / "processor"
    link.unlink()
    link.write_text("../../processor", encoding="utf-8")
    with pytest.raises(SystemExit):
        script["make_environment"]("run")
    assert "src/onefold/processor is not a link to the folder processor" in capsys.readouterr().err
    assert made == []


def test_an_environment_of_somebody_else_is_not_emptied(
    script: dict[str, Any], made: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the one that a developer has made by hand, in the same place."""
    before = {path: path.read_bytes() for path in (tmp_path / ".venv").rglob("*") if path.is_file()}
    with pytest.raises(SystemExit):
        script["make_environment"]("run")
    assert f"{tmp_path / '.venv'} holds files, and ./onefold has not made them" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / ".venv").rglob("*") if path.is_file()} == before
    assert made == []


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_what_is_no_folder_in_the_place_of_the_environment_is_one_sentence(
    kind: str, script: dict[str, Any], made: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some tools keep a file of that name."""
    venv = tmp_path / ".venv"
    shutil.rmtree(venv)
    if kind == "file":
        venv.write_text("/home/me/envs/onefold", encoding="utf-8")
    else:
        venv.symlink_to(tmp_path / "nowhere")
    with pytest.raises(SystemExit):
        script["make_environment"]("run")
    assert f"cannot make its environment in the folder {venv}: File exists" in capsys.readouterr().err
    assert made == []


@pytest.mark.parametrize("sign", ["log", "onefold.stamp"])
def test_a_half_made_environment_of_ours_is_made_anew(
    sign: str, script: dict[str, Any], made: list[str], tmp_path: Path
) -> None:
    """Also where it is interrupted again before it has its Python; a link in it is removed and not followed."""
    venv, elsewhere = tmp_path / ".venv", tmp_path / "elsewhere"
    (venv / sign).touch()
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (venv / "lib64").symlink_to(elsewhere)
    script["clear"]()
    assert [path.name for path in venv.iterdir()] == ["log"]
    script["make_environment"]("run")
    assert (elsewhere / "file").exists()
    assert made[0].endswith(f"-m venv {venv}")
