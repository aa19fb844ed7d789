"""What neighbours promise, by the simulated ones and by those that are connected."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from onefold.processor.core.decision_log import Note
from onefold.processor.core.neighbours import Neighbours, NoNeighbours, Place, place_in
from onefold.processor.io.neighbours import ConnectedNeighbours
from onefold.processor.testing.neighbours import SimulatedNeighbours, Street
from tests.support.neighbours import SERVERS, Life, connected, dies, place_of

_CHILD = f"""
import sys, threading
from onefold.processor.io.neighbours import ConnectedNeighbours
b = ConnectedNeighbours("b", "{SERVERS}")
print(*b.place, flush=True)
threading.Event().wait()
"""


class Town:
    """Makes processes of either kind, and ends them."""

    def __init__(self, kind: str) -> None:
        self._street = Street() if kind == "simulated" else None
        self._all: list[Life] = []

    def life(self, name: str) -> Life:
        """Of a process."""
        made = ConnectedNeighbours(name, SERVERS) if self._street is None else SimulatedNeighbours(name, self._street)
        self._all.append(made)
        return made

    def end(self, one: Life) -> None:
        self._all.remove(one)
        one.close()

    def end_all(self) -> None:
        for one in self._all:
            one.close()


@pytest.fixture(params=["simulated", "connected"])
def town(request: pytest.FixtureRequest) -> Iterator[Town]:
    made = Town(request.param)
    yield made
    made.end_all()


def test_who_dies_is_seen_to_by_who_has_heard_where_it_is(town: Town) -> None:
    a, b, c = (town.life(name) for name in "abc")
    connected(a, "b", place_of(b))
    for one in (a, b, c):
        assert not any(one.succeeds(name) for name in ("a", "b", "c", "")), "all live, or are not known"
    was = place_of(b)
    town.end(b)
    dies(a, "b")
    assert a.succeeds("b") == was
    assert not c.succeeds("b"), "it has heard nothing of it"
    connected(a, "b", place_of(town.life("b")))
    assert not a.succeeds("b"), "it has another life"


def test_an_old_note_of_who_has_died_makes_it_no_living(town: Town) -> None:
    """It is read again, or late. Nor does one that is first read then say that somebody dies."""
    a, b = town.life("a"), town.life("b")
    was = place_of(b)
    connected(a, "b", was)
    town.end(b)
    dies(a, "b")
    a.hears("b", was)
    dies(a, "b")
    late = town.life("c")
    for _ in range(3):
        late.hears("b", was)
        assert not late.succeeds("b")


def test_of_those_who_live_the_first_by_name_succeeds(town: Town) -> None:
    """Or all take it up at once."""
    a, b, c = (town.life(name) for name in "abc")
    for one in (a, b):
        connected(one, "c", place_of(c))
    connected(a, "b", place_of(b))
    connected(b, "a", place_of(a))
    b.hears("b", place_of(b))
    assert not b.succeeds("b")
    town.end(c)
    dies(a, "c")
    assert not b.succeeds("c"), "a does"
    town.end(a)
    dies(b, "c")
    dies(b, "a")


def test_a_process_that_is_killed_is_seen_to_die_and_one_that_is_frozen_is_not() -> None:
    """By its machine: it says nothing itself."""
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        child = subprocess.Popen([sys.executable, "-c", _CHILD], stdout=subprocess.PIPE, encoding="utf-8")
        try:
            assert child.stdout is not None
            host, port = child.stdout.readline().split()
            os.kill(child.pid, signal.SIGSTOP)
            connected(a, "b", Place(host, int(port)))
            for _ in range(100):
                a.hears("b", Place(host, int(port)))
                assert not a.succeeds("b")
            os.kill(child.pid, signal.SIGKILL)
            dies(a, "b")
        finally:
            child.kill()
            child.communicate()


@pytest.mark.parametrize(
    "told",
    [None, 7, {}, {"listens": "127.0.0.1:80"}, {"listens": ["127.0.0.1"]}, {"listens": ["127.0.0.1", "80"]}]
    + [{"listens": [host, port]} for host, port in (("name.invalid", 80), ("", 80), ("127.0.0.1", 0), ("::1", 65536))]
    + [{"listens": [host, 80]} for host in ("::1%\x00", "::1%é", "::1%1", "0.0.0.0", "::", "224.0.0.1")]
    + [{"listens": ["127.0.0.1", True]}],
)
def test_what_is_no_place_is_none(told: Any) -> None:
    """A name is none: to look it up may take seconds."""
    assert place_in(Note(0, "b", {"replica": told})) is None


def test_a_place_is_an_address_and_a_port() -> None:
    assert place_in(Note(0, "b", {"replica": {"listens": ["::1", 80], "version": 7}})) == Place("::1", 80)
    assert place_in(Note(0, "b", {"published": 7})) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only there it connects")
@pytest.mark.parametrize(
    "servers", ["kafka-1.invalid:9092,127.0.0.1:9092", ":1, 127.0.0.1", "127.0.0.1:1,kafka-1.invalid"]
)
def test_any_server_that_resolves_tells_where_this_machine_is(servers: str) -> None:
    neighbours = ConnectedNeighbours("one", servers)
    try:
        assert neighbours.place is not None
        assert neighbours.place.host == "127.0.0.1"
    finally:
        neighbours.close()


def test_who_has_no_neighbours_succeeds_nobody() -> None:
    alone: Neighbours = NoNeighbours()
    alone.hears("b", Place("127.0.0.1", 1))
    assert not alone.succeeds("b")
    assert alone.place is None
