"""What a session promises, on the simulated log and on a real broker alike."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.abc import TransactionSession
from onefold.processor.core.errors import Fenced, ProcessorError, Retriable, TooMuch
from onefold.processor.core.values import Record
from onefold.processor.io import kafka
from onefold.processor.io.kafka_errors import LOST_IN_A_CALLBACK
from tests.support.coded import raises
from tests.support.waiting import eventually
from tests.support.worlds import KafkaWorld, SimulatedWorld, World

#: The fixture of a broker is asked for in the middle, where nobody can see it beforehand.
KAFKA = pytest.param("kafka", marks=pytest.mark.broker)


@pytest.fixture(params=["simulated", KAFKA])
def world(request: pytest.FixtureRequest) -> World:
    """Each test twice."""
    return SimulatedWorld() if request.param == "simulated" else KafkaWorld(request.getfixturevalue("client"))


@pytest.fixture
def session(world: World) -> Iterator[TransactionSession]:
    """An open session."""
    opened = world.session()
    opened.open()
    yield opened
    opened.close()


def write(session: TransactionSession, topic: str, *values: bytes) -> None:
    session.begin()
    session.produce([(topic, 0, b"s", value, []) for value in values])


def commit(session: TransactionSession, topic: str, value: bytes) -> None:
    write(session, topic, value)
    session.commit()


def test_a_commit_makes_all_of_it_true(world: World, session: TransactionSession) -> None:
    """In every topic of the transaction."""
    session.begin()
    session.produce([(world.output, None, b"k", b"1", [("h", b"v")]), (world.changelog, 0, b"s", b"2", [])])
    session.commit()

    eventually(
        lambda: world.committed(world.output) == [b"1"] and world.committed(world.changelog) == [b"2"], 10, "visible"
    )


def test_an_abort_makes_none_of_it_true(world: World, session: TransactionSession) -> None:
    """And the session goes on with the next transaction."""
    write(session, world.output, b"lost")
    session.abort()
    write(session, world.output, b"kept")
    session.commit()

    eventually(lambda: world.committed(world.output) == [b"kept"], 10, "only the second transaction is visible")


def test_it_says_how_large_records_may_be(world: World, session: TransactionSession) -> None:
    """Of each topic that a task writes to, as its settings are when it is asked."""
    limits = session.record_bytes_max()
    assert limits.keys() == world.topology.written
    world.limit(world.output, 2_000)
    eventually(lambda: session.record_bytes_max() == {**limits, world.output: 2_000}, 10, "the limit is known")
    commit(session, world.output, os.urandom(1_500))
    with pytest.raises(TooMuch):
        commit(session, world.output, os.urandom(2_500))
    session.abort()


@pytest.mark.promise("zombie-commits-nothing")
def test_a_successor_fences_its_predecessor(world: World, session: TransactionSession) -> None:
    """The zombie's records are never seen, whatever it does next."""
    write(session, world.output, b"zombie")
    successor = world.session()
    successor.open()
    write(successor, world.output, b"successor")
    successor.commit()

    with pytest.raises(Fenced):
        session.commit()
    with pytest.raises(ProcessorError):
        commit(session, world.output, b"zombie again")
    eventually(lambda: world.committed(world.output) == [b"successor"], 10, "only the successor is visible")
    successor.close()


def test_a_producer_that_was_reinitialised_says_so(world: World, session: TransactionSession) -> None:
    """It has fenced whoever had the task meanwhile, so the task must look at what they committed."""
    assert not session.begin()
    session.produce([(world.changelog, 0, b"p", b"ours", [])])
    session.commit()
    write(session, world.output, b"lost")
    session.abort()
    successor = world.session()
    successor.open()
    successor.begin()
    successor.produce([(world.changelog, 0, b"p", b"theirs", [])])
    successor.commit()

    assert session.begin()
    assert session.last_progress() == b"theirs"
    successor.close()


def test_taking_over_ends_what_was_left_open(world: World, session: TransactionSession) -> None:
    """Readers do not wait for the timeout of a transaction whose owner was killed."""
    write(session, world.output, b"left open")
    successor = world.session()
    successor.open()
    world.append(world.output, b"after")

    eventually(lambda: world.committed(world.output) == [b"after"], 5, "a reader gets past the aborted transaction")
    successor.close()


@pytest.mark.parametrize("world", [KAFKA], indirect=True)
def test_taking_over_asks_only_what_can_be_answered(
    world: KafkaWorld, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """What librdkafka asks before it knows a broker it asks again half a second later: of its producer, and its reader."""
    world.client |= {"debug": "eos,topic"}
    session = world.session()
    session._ambiguous.logger.addHandler(caplog.handler)
    session.open()
    commit(session, world.changelog, b"state")
    assert list(session.restore()) == [(b"s", b"state")]
    session.close()

    assert "Querying for transaction coordinator" in caplog.text
    assert "Unable to query for transaction coordinator" not in caplog.text
    readers = capfd.readouterr().err
    assert "Start fetch for" in readers
    assert "no current leader for partition" not in readers


def test_restore_gives_what_was_committed_in_order(world: World, session: TransactionSession) -> None:
    """Aborted records are not among it, and markers at the end do not stop it."""
    for number in range(3):
        write(session, world.changelog, b"%d" % number)
        session.commit()
    write(session, world.changelog, b"lost")
    session.abort()

    assert list(session.restore()) == [(b"s", b"0"), (b"s", b"1"), (b"s", b"2")]


def test_restore_of_nothing_ends(world: World, session: TransactionSession) -> None:
    """An empty partition, and one that holds nothing but aborted records and markers."""
    assert list(session.restore()) == []
    write(session, world.changelog, b"lost")
    session.abort()
    assert list(session.restore()) == []


def test_restore_never_stops_before_the_high_watermark(
    world: World, session: TransactionSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A foreign transaction that is open hides later commits from readers; a restore that ended there would be stale."""
    monkeypatch.setattr(kafka, "RESTORE_STALL_S", 1.0)
    finish = world.leave_open(world.changelog)
    write(session, world.changelog, b"committed above")
    session.commit()

    with raises(Retriable, Code.TOPIC_UNREADABLE):
        list(session.restore())
    finish()
    assert eventually(lambda: list(session.restore()), 10, "restored") == [(b"s", b"committed above")]


def test_poll_gives_committed_records_from_the_progress_on(world: World, session: TransactionSession) -> None:
    """In order, with their offsets."""
    world.append(world.input, b"a", b"b")
    world.append(world.input, b"lost", commit=False)
    world.append(world.input, b"c")
    session.seek({world.input: 1})

    records = polled(session, 2)

    assert [(record.offset, record.value) for record in records] == [(1, b"b"), (5, b"c")]


def test_a_record_has_its_timestamp_and_its_headers(world: World, session: TransactionSession) -> None:
    """In order, a name twice, a header without a value; and none at all."""
    headers = [("trace", b"1"), ("empty", None), ("trace", b"2")]
    world.append(world.input, b"a", headers=headers, timestamp_ms=1_700_000_000_123)
    world.append(world.input, b"b", timestamp_ms=1)
    session.seek({world.input: 0})
    first, second = polled(session, 2)

    assert (first.timestamp_ms, first.headers) == (1_700_000_000_123, headers)
    assert (second.timestamp_ms, second.headers) == (1, [])


def test_a_copy_keeps_the_timestamp_and_the_headers_of_its_original(world: World, session: TransactionSession) -> None:
    """Also through a second copy. The processor's own headers are not among those that the sender set."""
    sent = [("trace", b"1"), ("empty", None)]
    signature = ("onefold-pipeline", session.owner.signature)
    source = f"{world.input}/1/0".encode()
    own = [("onefold-source", source), ("onefold-timestamp", b"1700000000123"), signature]
    session.begin()
    session.produce([(world.input, 0, b"k", b"copy", [*sent, *own])])
    session.commit()
    session.seek({world.input: 0})
    (copy,) = polled(session, 1)

    assert (copy.timestamp_ms, copy.headers) == (1_700_000_000_123, sent)


def test_what_is_there_does_not_wait_for_more(world: World, session: TransactionSession) -> None:
    """The time is for the first record only."""
    world.append(world.input, b"a", b"b")
    eventually(lambda: world.committed(world.input) == [b"a", b"b"], 10, "the marker is written")
    session.seek({world.input: 0})
    records: list[Record] = []

    asking = threading.Thread(target=lambda: records.extend(session.poll(100, 120.0)), daemon=True)
    asking.start()
    asking.join(20)

    assert [record.value for record in records] == [b"a", b"b"]


def test_positions_move_past_markers(world: World, session: TransactionSession) -> None:
    """So that a drained input has no lag."""
    world.append(world.input, b"a")
    world.append(world.input, b"lost", commit=False)
    session.seek({world.input: 0})
    polled(session, 1)

    eventually(lambda: not session.poll(10, 0.1) and session.positions() == {world.input: 4}, 10, "position at the end")
    assert session.identities()[world.input].end == 4


def test_positions_follow_the_records(world: World, session: TransactionSession) -> None:
    """Without the end of the input in sight: only as far as the records that were handed out."""
    for value in (b"a", b"b", b"c"):
        world.append(world.input, value)
    session.seek({world.input: 0})

    # each append is a transaction, so every record is followed by a marker
    eventually(lambda: session.poll(1, 0.1), 10, "a record")
    assert session.positions() == {world.input: 1}
    eventually(lambda: session.poll(1, 0.1), 10, "another record")
    assert session.positions() == {world.input: 3}


def test_a_recreated_topic_has_another_identity(world: World, session: TransactionSession) -> None:
    """Its name and offsets may be the same; it is not the same log."""
    world.append(world.input, b"a")
    before = session.identities()[world.input]
    world.recreate(world.input)
    world.append(world.input, b"b")
    after = eventually(lambda: session.identities()[world.input], 10, "described")

    assert before.topic_id != after.topic_id


@pytest.mark.parametrize("lost", LOST_IN_A_CALLBACK)
@pytest.mark.parametrize("world", [KAFKA], indirect=True)
def test_who_is_fenced_while_it_flushes_is_told_so(
    world: KafkaWorld, lost: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client raises it in a callback, and Python makes something else of it when another callback follows."""
    session, successor = world.session(), world.session()
    session.open()
    write(session, world.output, b"zombie")
    successor.open()

    class Flushes:
        """The real producer, but for what its flush raises."""

        def __init__(self, producer: Any) -> None:
            self._real = producer

        def flush(self, timeout_s: float) -> None:
            self._real.flush(timeout_s)
            raise lost("a callback returned a result with an exception set")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    monkeypatch.setattr(session, "_producer", Flushes(session._producer))
    with pytest.raises(Fenced):
        session.commit()
    session.close()
    successor.close()


def polled(session: TransactionSession, count: int) -> list[Record]:
    """So many records, over as many polls as it takes."""
    records: list[Record] = []

    def enough() -> bool:
        records.extend(session.poll(100, 0.1))
        return len(records) >= count

    eventually(enough, 10, f"{count} records")
    return records


def test_the_ids_of_the_inputs_are_those_of_the_moment(world: World, session: TransactionSession) -> None:
    """A topic that was made anew under its old name has another one: what was read there is not what was read before."""
    before = session.ask_topic_ids()()
    assert before == {topic: identity.topic_id for topic, identity in session.identities().items()}
    world.recreate(world.input)

    def now() -> str | None:
        try:
            return session.ask_topic_ids()()[world.input]
        except Retriable:  # the name is between two topics
            return None

    eventually(lambda: now() not in (None, before[world.input]), 20, "the name stands for the new topic")


def test_records_without_headers_come_in_order_with_those_that_have_some(
    world: World, session: TransactionSession
) -> None:
    """Also a key that comes twice, a deleted one and an empty one, and more of them than the client takes at once."""
    many = [(f"s{number}".encode(), b"%d" % number) for number in range(2_500)]
    states = [*many, (b"s", b"1"), (b"s", b"2"), (b"s", None), (b"s7", b"")]
    session.begin()
    session.produce([(world.output, None, b"k", b"1", [("h", b"v")])])
    session.produce([(world.changelog, 0, key, value, None) for key, value in states])
    session.produce([(world.output, None, b"k", b"2", [("h", b"v")]), (world.changelog, 0, b"p", b"last", None)])
    session.commit()

    assert list(session.restore()) == [*states, (b"p", b"last")]
    eventually(lambda: world.committed(world.output) == [b"1", b"2"], 10, "both outputs are visible")
