"""What only connections between neighbours have: ends that are no deaths, strangers, and a kernel that answers."""

import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from onefold.processor.core.neighbours import Place
from onefold.processor.io import neighbours
from onefold.processor.io.neighbours import ASKS_MAX, KEEPALIVE, NEIGHBOURS_MAX, WAITING_MAX, ConnectedNeighbours
from tests.support.neighbours import SERVERS, connected, dies, place_of
from tests.support.waiting import eventually


@pytest.fixture
def elsewhere() -> Iterator[socket.socket]:
    """What b says that it listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def asked_for(a: ConnectedNeighbours, server: socket.socket) -> socket.socket:
    """The connection that it asks for."""

    def taken() -> socket.socket | None:
        assert not a.succeeds("b")
        with suppress(TimeoutError):
            return server.accept()[0]
        return None

    found = eventually(taken, 5, "it asks for a connection")
    assert found is not None
    return found


def test_who_takes_a_connection_again_lives(monkeypatch: pytest.MonkeyPatch, elsewhere: socket.socket) -> None:
    """What is between the two has ended one that was not used."""
    elsewhere.settimeout(0.01)
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        for number in range(4):
            a.hears("b", Place(*elsewhere.getsockname()))
            for _ in range(1 + ASKS_MAX):
                ended = asked_for(a, elsewhere)
                by_a_reset = struct.pack("ii", number % 2, 0)
                ended.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, by_a_reset)
                ended.close()
            for _ in range(100):
                assert not a.succeeds("b"), "who ends each of them is not asked without end"
            with pytest.raises(TimeoutError):
                elsewhere.accept()
            with monkeypatch.context() as later:
                later.setattr(neighbours, "AGAIN_S", 0.0)
                later.setattr(time, "monotonic", lambda: 1e9)
                assert not a.succeeds("b"), "it has taken each of them"
        a.hears("b", Place(*elsewhere.getsockname()))
        last = asked_for(a, elsewhere)
        elsewhere.close()
        last.close()
        dies(a, "b")


def test_those_that_have_ended_keep_nobody_out() -> None:
    """A process that lives long sees many others die."""
    with closing(ConnectedNeighbours("b", SERVERS)) as b:
        for _ in range(2 * NEIGHBOURS_MAX):
            with closing(ConnectedNeighbours("a", SERVERS)) as a:
                a.hears("b", place_of(b))
            b.hears("b", place_of(b))
        assert len(b._guests) <= 1
        assert not b._links, "to itself"
        with closing(ConnectedNeighbours("a", SERVERS)) as a:
            a.hears("b", place_of(b))
            eventually(a._links["b"].lives, 5, "it has got in")


def test_strangers_keep_nobody_out() -> None:
    """They may take all that there are: then the oldest end, and a replica whose connection is among them asks for another."""
    with closing(ConnectedNeighbours("a", SERVERS)) as a, closing(ConnectedNeighbours("b", SERVERS)) as b:
        connected(a, "b", place_of(b))
        strangers = []
        for _ in range(2 * NEIGHBOURS_MAX):
            strangers.append(socket.create_connection(place_of(b), 5))
            b.hears("b", place_of(b))
            assert not a.succeeds("b")
            connected(a, "b", place_of(b))
        b.hears("b", place_of(b))
        assert len(b._guests) == NEIGHBOURS_MAX
        with closing(ConnectedNeighbours("c", SERVERS)) as late:
            connected(late, "b", place_of(b))
            b.hears("b", place_of(b))
            assert not late.succeeds("b")
            assert late._links["b"]._asks_left == ASKS_MAX, "the oldest end, not who comes last"
        b.close()
        dies(a, "b")
        for one in strangers:
            one.close()


def test_who_is_asked_again_and_says_nothing_is_dead(monkeypatch: pytest.MonkeyPatch, elsewhere: socket.socket) -> None:
    """As when its machine has gone with it. Until then nobody is waited for."""
    monkeypatch.setattr(neighbours, "AGAIN_S", 0.2)
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        a.hears("b", Place(*elsewhere.getsockname()))
        guest, _ = elsewhere.accept()
        elsewhere.listen(0)
        with socket.create_connection(elsewhere.getsockname()[:2]):  # nobody else gets in, nor is turned away
            guest.close()
            assert not a.succeeds("b"), "it is asked"
            dies(a, "b")


def test_who_has_taken_one_again_lives_on(monkeypatch: pytest.MonkeyPatch, elsewhere: socket.socket) -> None:
    """It is not doubted later."""
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        a.hears("b", Place(*elsewhere.getsockname()))
        asked_for(a, elsewhere).close()
        again = asked_for(a, elsewhere)
        with monkeypatch.context() as later:
            later.setattr(time, "monotonic", lambda: 1e9)
            assert not a.succeeds("b")
        again.close()


def test_who_takes_a_last_one_while_it_dies_is_seen_to_die(elsewhere: socket.socket) -> None:
    """The kernel ends what it has connected a moment before it takes no more."""
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        a.hears("b", Place(*elsewhere.getsockname()))
        guest, _ = elsewhere.accept()
        guest.close()
        assert not a.succeeds("b"), "it is asked, and takes it"
        elsewhere.close()
        dies(a, "b")


def test_who_has_just_spoken_is_asked_anew(monkeypatch: pytest.MonkeyPatch, elsewhere: socket.socket) -> None:
    """It has ended a connection, and there was no descriptor for another one until then."""
    monkeypatch.setattr(neighbours, "AGAIN_S", 1000.0)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        place = Place(*elsewhere.getsockname())
        a.hears("b", place)
        guest, _ = elsewhere.accept()
        elsewhere.listen(0)
        with socket.create_connection(place):
            guest.close()
            with monkeypatch.context() as broken:
                broken.setattr(neighbours._Link, "_begin", lambda link: None)
                assert not a.succeeds("b")
                now[0] += 999
                assert not a.succeeds("b")
                assert a._links["b"].lives(), "nothing else is known, and nobody takes its place by name"
            a.hears("b", place)
            now[0] += 999
            assert not a.succeeds("b"), "from when it spoke"
            now[0] += 2
            assert a.succeeds("b")
            assert not a._links["b"].lives()


def test_there_are_so_many_links_and_no_more() -> None:
    """Processes that have another name in each life are many, in time."""
    with closing(ConnectedNeighbours("a", SERVERS)) as a, closing(ConnectedNeighbours("b", SERVERS)) as b:
        for number in range(2 * NEIGHBOURS_MAX):
            a.hears(f"c{number}", Place("127.0.0.1", 1))
            b.hears("b", place_of(b))
            connected(a, "b", place_of(b))
        assert len(a._links) == NEIGHBOURS_MAX
        b.close()
        dies(a, "b")


def test_who_connects_faster_than_they_are_taken_holds_nobody_up() -> None:
    with closing(ConnectedNeighbours("b", SERVERS)) as b:
        assert b._listener is not None
        real, taken = b._listener, list[socket.socket]()

        class Crowded:
            def accept(self) -> tuple[socket.socket, Any]:
                assert len(taken) < 10 * WAITING_MAX
                taken.append(socket.create_connection(place_of(b), 5))
                return real.accept()

        b._listener = Crowded()  # type: ignore[assignment]  # only what is asked of it
        b.hears("b", place_of(b))
        assert len(taken) == WAITING_MAX + 1
        b._listener = real
        for one in taken:
            one.close()


def test_it_is_for_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere a process listens nowhere, and is missed."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert ConnectedNeighbours("a", SERVERS).place is None


def test_who_dies_before_anybody_has_looked_is_seen_to_die(elsewhere: socket.socket) -> None:
    """A note is read a second before the next; a machine that is far away is connected some time after the first look."""
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        a.hears("b", Place(*elsewhere.getsockname()))
        guest, _ = elsewhere.accept()
        a._links["b"]._connected = False
        elsewhere.close()
        guest.close()
        dies(a, "b")


def test_who_was_never_connected_has_not_died(elsewhere: socket.socket) -> None:
    place = Place(*elsewhere.getsockname())
    elsewhere.listen(0)
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        with socket.create_connection(place):
            a.hears("b", place)
            assert not a._links["b"].lives(), "nobody else gets in"
            assert not a.succeeds("b")
        elsewhere.close()
        link = a._links["b"]
        link.close()
        for _ in range(3):
            a.hears("b", place)
            eventually(lambda: not a.succeeds("b") and link._socket is None, 5, "it is refused")


def test_who_is_there_again_at_the_same_place_lives(monkeypatch: pytest.MonkeyPatch, elsewhere: socket.socket) -> None:
    """There was no way to it for a while. That nobody listens there is known at once."""
    monkeypatch.setattr(neighbours, "AGAIN_S", 1000.0)
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        place = Place(*elsewhere.getsockname())
        a.hears("b", place)
        guest, _ = elsewhere.accept()
        elsewhere.close()
        guest.close()
        dies(a, "b")
        with socket.create_server(place):
            connected(a, "b", place)
            assert not a.succeeds("b")


def test_who_does_not_answer_the_kernel_has_died(monkeypatch: pytest.MonkeyPatch, elsewhere: socket.socket) -> None:
    """Its connection then fails without an end; who was never connected is not known to have lived."""
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        a.hears("b", Place(*elsewhere.getsockname()))
        monkeypatch.setattr(neighbours, "_state_of", lambda _: neighbours._State.FAILED)
        a.hears("c", Place(*elsewhere.getsockname()))
        assert a.succeeds("b")
        assert not a.succeeds("c")


def test_an_address_says_of_which_kind_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def none(*kind: Any) -> socket.socket:
        asked.append(kind[0])
        raise OSError(97, "Address family not supported by protocol")

    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        monkeypatch.setattr(socket, "socket", none)
        for host in ("::1", "127.0.0.1"):
            a.hears(host, Place(host, 1))
        assert asked == [socket.AF_INET6, socket.AF_INET]
        monkeypatch.undo()


def test_a_machine_that_says_nothing_any_more_is_not_waited_for_without_end(elsewhere: socket.socket) -> None:
    """Linux asks for us."""
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        a.hears("b", Place(*elsewhere.getsockname()))
        connection = a._links["b"]._socket
        assert connection is not None
        for level, option, value in KEEPALIVE:
            assert connection.getsockopt(getattr(socket, level), getattr(socket, option)) == value


def test_nothing_is_waited_for(elsewhere: socket.socket) -> None:
    """Neither of the first connection nor of another one: a replica decides meanwhile."""
    with closing(ConnectedNeighbours("a", SERVERS)) as a:
        for _ in range(2):
            a.hears("b", Place(*elsewhere.getsockname()))
            guest, _ = elsewhere.accept()
            connection = a._links["b"]._socket
            assert connection is not None
            assert connection.gettimeout() == 0.0
            guest.close()
            assert not a.succeeds("b")


def test_threads_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each task one that reads notes, and one that asks."""
    with closing(ConnectedNeighbours("a", SERVERS)) as a, closing(ConnectedNeighbours("b", SERVERS)) as b:
        lock: Any = Locked()
        a._lock = lock
        looks: list[tuple[Any, str]] = [
            (neighbours, "_state_of"),
            (neighbours._Link, "connect"),
            (neighbours._Link, "close"),
            (ConnectedNeighbours, "_take_guests"),
        ]
        for where, name in looks:
            monkeypatch.setattr(where, name, lock.around(getattr(where, name)))
        a.hears("b", place_of(b))
        assert not a.succeeds("b")
        a.close()
        assert lock.around_which == {name for _, name in looks}


class Locked:
    """Nothing is done without it."""

    def __init__(self) -> None:
        self.held = False
        self.around_which = set[str]()

    def __enter__(self) -> None:
        assert not self.held
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False

    def around(self, real: Any) -> Any:
        def checked(*arguments: Any) -> Any:
            assert self.held
            self.around_which.add(real.__name__)
            return real(*arguments)

        return checked


@pytest.mark.parametrize("servers", ["127.0.0.1:port", "127.0.0.1:99999", "", ":9092", "SASL_SSL://", "[::1"])
def test_who_finds_no_way_to_kafka_listens_nowhere(servers: str) -> None:
    with closing(ConnectedNeighbours("a", servers)) as a:
        assert a.place is None
        a.hears("b", Place("127.0.0.1", 1))
        assert not a.succeeds("b")


@pytest.mark.parametrize("servers", ["127.0.0.1", "127.0.0.1:9092,10.0.0.1:9092", "SASL_SSL://localhost:9092"])
def test_it_listens_where_kafka_is_reached_from(servers: str) -> None:
    """And nowhere else."""
    with closing(ConnectedNeighbours("a", servers)) as a:
        assert place_of(a).host in ("127.0.0.1", "::1")


def test_who_has_no_descriptor_left_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(*_: Any) -> socket.socket:
        raise OSError(24, "Too many open files")

    with closing(ConnectedNeighbours("a", SERVERS)) as a, closing(ConnectedNeighbours("b", SERVERS)) as b:
        with monkeypatch.context() as broken:
            broken.setattr(socket, "socket", no_more)
            a.hears("b", place_of(b))
            assert not a.succeeds("b")
        connected(a, "b", place_of(b))
