"""Two processes that share the suite: what is alone is alone, and what a test imports is gone after it."""

import fcntl
import importlib.util
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.turns import left_projects, turn
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
    """A module of a project and the way to it; what is installed stays."""
    (tmp_path / "left_behind.py").touch()
    with left_projects():
        sys.path.insert(0, str(tmp_path))
        importlib.import_module("left_behind")
        assert importlib.util.find_spec("left_behind")

    assert "left_behind" not in sys.modules
    assert str(tmp_path) not in sys.path
    assert importlib.util.find_spec("left_behind") is None
    assert "pytest" in sys.modules
