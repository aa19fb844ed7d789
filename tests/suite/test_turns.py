"""Two processes that share the suite: what is alone is alone, and what a test imports is gone after it."""

import fcntl
import importlib.util
import re
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.own_pytest import own_pytest
from tests.support.turns import ROOT, left_projects, turn
from tests.support.waiting import eventually

DEADLINE_S = 20.0


class Other(threading.Thread):
    """Takes its turn beside the test's own, and keeps it until it is told to go."""

    def __init__(self, place: Path, *, alone: bool) -> None:
        super().__init__(daemon=True)
        self.here, self.may_go = threading.Event(), threading.Event()
        self._place, self._alone = place, alone

    def run(self) -> None:
        """Waits for its turn first."""
        with turn(self._place, alone=self._alone):
            self.here.set()
            self.may_go.wait(DEADLINE_S)

    def end(self) -> None:
        """And wait for it."""
        self.may_go.set()
        self.join(DEADLINE_S)


@pytest.mark.parametrize(("one", "other"), [(True, True), (True, False), (False, True)])
def test_nothing_runs_beside_what_is_alone(tmp_path: Path, one: bool, other: bool) -> None:
    """Whichever of them came first."""
    beside = Other(tmp_path / "turn", alone=other)
    with turn(tmp_path / "turn", alone=one):
        beside.start()
        assert not beside.here.wait(0.2)
    assert beside.here.wait(DEADLINE_S)
    beside.end()


def test_all_others_run_at_once(tmp_path: Path) -> None:
    """That is what it is for."""
    beside = Other(tmp_path / "turn", alone=False)
    with turn(tmp_path / "turn", alone=False):
        beside.start()
        assert beside.here.wait(DEADLINE_S)
    beside.end()


def test_who_waits_to_be_alone_is_not_passed_by(tmp_path: Path) -> None:
    """Or there would always be somebody."""
    place = tmp_path / "turn"
    alone, late = Other(place, alone=True), Other(place, alone=False)
    with ExitStack() as held:
        held.enter_context(turn(place, alone=False))
        alone.start()
        eventually(lambda: _held(place.with_suffix(".gate")), DEADLINE_S, "it waits, and holds the gate")
        late.start()
        assert not late.here.wait(0.2)
        assert not alone.here.is_set()
    assert alone.here.wait(DEADLINE_S)
    assert not late.here.is_set()
    alone.end()
    assert late.here.wait(DEADLINE_S)
    late.end()


def _held(lock: Path) -> bool:
    """Asked without taking it from anybody."""
    with lock.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_what_a_test_imports_is_gone_after_it(tmp_path: Path) -> None:
    """A module of a project or of an example, and the way to it; what is installed stays."""
    (tmp_path / "left_behind.py").touch()
    with left_projects():
        sys.path[:0] = [str(tmp_path), str(ROOT / "examples" / "commands")]
        importlib.import_module("left_behind")
        importlib.import_module("overdue")
        assert importlib.util.find_spec("left_behind")

    assert not {"left_behind", "overdue"} & sys.modules.keys()
    assert str(tmp_path) not in sys.path
    assert importlib.util.find_spec("left_behind") is None
    assert "pytest" in sys.modules


@pytest.mark.slow  # starts a process
@pytest.mark.parametrize("seed", range(2))
def test_shuffled_files_that_share_a_stack_start_it_once(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "tests/product/stack"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture(scope='package')\ndef stack(): print('a stack starts')\n", encoding="utf-8"
    )
    for name in ("product/stack/test_a.py", "product/stack/test_b.py", "test_c.py", "test_d.py"):
        stack = "stack" if "stack" in name else ""
        (tmp_path / "tests" / name).write_text(
            f"def test_one({stack}): pass\ndef test_two({stack}): pass\n", encoding="utf-8"
        )
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['tests.support.turns']\n", encoding="utf-8")
    options = ("-p", "randomly", f"--randomly-seed={seed}", "--import-mode=importlib", "-s")

    printed = own_pytest(tmp_path, *options).stdout

    assert f"Using --randomly-seed={seed}" in printed
    assert "8 passed" in printed, printed
    assert printed.count("a stack starts") == 1, printed


@pytest.mark.long  # 9 s: two more pytest
def test_one_process_runs_the_files_that_share_a_stack(tmp_path: Path) -> None:
    """First, and in their order; the other process has a file at a time, those with a broker before others."""
    text = "import pytest\n\n@pytest.mark.parametrize('number', range({}))\n{}\ndef test_it(number): pass\n"
    for name, tests, mark in (
        ("tests/product/stack/test_a.py", 1, ""),
        ("tests/product/stack/test_b.py", 1, ""),
        ("tests/test_many.py", 9, ""),
        ("tests/test_served.py", 3, "@pytest.mark.broker"),
        ("tests/test_served_more.py", 4, "@pytest.mark.broker"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.format(tests, mark), encoding="utf-8")
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['tests.support.turns']\n", encoding="utf-8")
    options = (
        "-n",
        "2",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        "-v",
        "-W",
        "ignore::pytest.PytestUnknownMarkWarning",
    )

    printed = own_pytest(tmp_path, *options, "--import-mode=importlib").stdout

    ran = re.findall(r"^\[(gw\d)\] .*PASSED (\S+)::", printed, re.MULTILINE)
    files = {worker: list(dict.fromkeys(file for one, file in ran if one == worker)) for worker, _ in ran}
    stack = ["tests/product/stack/test_a.py", "tests/product/stack/test_b.py"]
    (shared,) = (worker for worker, names in files.items() if stack[0] in names)
    assert files[shared][:2] == stack, printed
    (other,) = files.keys() - {shared}
    assert len(ran) == 18
    assert files[other][0] == "tests/test_served_more.py", printed
