"""The fold with ticks: time comes as a record, and nothing else tells it."""

import itertools
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused, Rejected
from onefold.processor.core.fold import TICK_MS_MAX, fold
from onefold.processor.core.ticks import Ticking
from onefold.processor.core.topology import Tick, Topology
from onefold.processor.core.values import Event, Output, Outputs, Record, Transaction
from onefold.processor.runtime.state_store import MemoryStateStore
from onefold.processor.testing.partition import partition_of
from tests.support.coded import raises

HERE = partial(partition_of, partitions=1)


@dataclass(frozen=True)
class Open:
    """What was added since it was last told, and when that is to be."""

    amount: int
    until_ms: int = 1000


def add(state: Open | None, event: Event) -> tuple[Open | None, Outputs]:
    """Adds; nothing is told before a tick."""
    return Open((state.amount if state else 0) + event.value[1]), ()


def tell(key: str, state: Open, at_ms: int) -> tuple[Open | None, Outputs]:
    """Tells an amount and forgets it; 13 cannot be told, 0 is of no interest, and 1 is kept."""
    if state.amount == 13:
        raise Rejected("thirteen is not told")
    if state.amount == 0:
        return state, ()
    row = {"name": key, "amount": state.amount, "at_ms": at_ms}
    return (state if state.amount == 1 else None), [("sums.told", row), Output("sums.latest", row, key="all")]


SUMS = Topology(
    "sums",
    ("sums.in",),
    lambda value: value[0],
    Open,
    add,
    {"sums.told": None, "sums.latest": ("name",)},
    tick=Tick(1, tell),
)
WHEN_DUE = replace(SUMS, tick=Tick(1, tell, due=lambda state: state.until_ms or None))


def decode(record: Record) -> Any:
    if record.value == b"junk":
        raise Rejected("no tick")
    if record.topic == SUMS.ticks:
        return SimpleNamespace(at_ms=int(record.value or b""))
    return (record.key or b"").decode(), int(record.value or b"")


def batch(*given: tuple[str, int] | int | bytes) -> list[Record]:
    """A pair is a record, a number a tick, bytes are in the topic of the ticks as they are."""
    made = []
    for offset, item in enumerate(given):
        if isinstance(item, tuple):
            made.append(Record("sums.in", 0, offset, item[0].encode(), b"%d" % item[1]))
        else:
            made.append(Record("sums.ticks", 0, offset, None, item if isinstance(item, bytes) else b"%d" % item))
    return made


def folded(
    *given: tuple[str, int] | int | bytes,
    topology: Topology = SUMS,
    store: MemoryStateStore | None = None,
    ticked_ms: int = 0,
) -> Transaction:
    return fold(topology, store or MemoryStateStore(), batch(*given), decode, HERE, ticked_ms)


def told(transaction: Transaction) -> list[tuple[Any, Any, Any]]:
    return [(v["name"], v["amount"], v["at_ms"]) for topic, _, v, _, _ in transaction.outputs if topic == "sums.told"]


def test_a_tick_sees_every_key_that_has_a_state_in_the_order_of_the_keys() -> None:
    """Those of transactions before, as this one has left them, and those that are new in it."""
    store = MemoryStateStore({"z": Open(5), "b": Open(7), "gone": Open(1)})
    transaction = folded(("c", 2), ("z", 1), 1000, store=store)

    assert told(transaction) == [("b", 7, 1000), ("c", 2, 1000), ("gone", 1, 1000), ("z", 6, 1000)]
    assert {key: change[0] for key, change in transaction.changes.items()} == {
        "b": None,
        "c": None,
        "gone": Open(1),
        "z": None,
    }
    assert store.get("z") == Open(5), "the store is not touched"


def test_what_a_tick_forgot_begins_anew_and_is_no_key_of_the_next_one() -> None:
    transaction = folded(("a", 2), 1000, ("a", 3), 2000, 3000)

    assert told(transaction) == [("a", 2, 1000), ("a", 3, 2000)]
    assert transaction.changes["a"][0] is None
    assert transaction.ticked_ms == 3000


def test_an_output_of_a_tick_names_it_as_its_source_and_may_name_a_key() -> None:
    """Of a topic where the latest row counts there is one record a row, as for other records."""
    transaction = folded(("a", 2), 1000, ("a", 3), 2000)

    assert [(topic, key, cause.source) for topic, key, _, cause, _ in transaction.outputs] == [
        ("sums.told", "a", b"sums.ticks/0/1"),
        ("sums.told", "a", b"sums.ticks/0/3"),
        ("sums.latest", "all", b"sums.ticks/0/3"),
    ]
    assert transaction.offsets_next == {"sums.in": 3, "sums.ticks": 4}


@pytest.mark.parametrize("at_ms", [1000, 999, 0])
def test_a_tick_that_is_not_later_than_the_last_one_is_ignored(at_ms: int) -> None:
    """In the same transaction, and after that of the last one."""
    store = MemoryStateStore({"a": Open(1)})
    assert told(folded(1000, at_ms, store=store)) == [("a", 1, 1000)]
    transaction = folded(at_ms, store=store, ticked_ms=1000)
    assert (told(transaction), transaction.changes, transaction.counts.ignored) == ([], {}, 1)
    assert transaction.ticked_ms == 1000


def test_a_tick_that_changes_nothing_is_ignored_and_its_time_has_come_all_the_same() -> None:
    transaction = folded(1000, 500, store=MemoryStateStore({"a": Open(0)}))
    assert (transaction.counts.accepted, transaction.counts.ignored, transaction.ticked_ms) == (0, 2, 1000)
    assert transaction.changes == {}


def test_a_tick_is_refused_as_a_whole() -> None:
    """One key cannot be told: it is one dead letter, and no key has changed."""
    transaction = folded(("a", 2), ("b", 13), ("c", 2), 1000, ("b", 1), 500)

    assert [(letter.record.offset, letter.reason) for letter in transaction.dead_letters] == [
        (3, "thirteen is not told")
    ]
    assert told(transaction) == [("a", 2, 500), ("b", 14, 500), ("c", 2, 500)], "and it was not the last tick"


@pytest.mark.parametrize(
    ("value", "reason"), [(b"junk", "no tick"), (b"-1", "at_ms is -1"), (b"1700000000000000", "at_ms is")]
)
def test_what_is_no_tick_is_a_dead_letter(value: bytes, reason: str) -> None:
    """Microseconds would be the last tick for ever."""
    assert TICK_MS_MAX == 253_402_300_799_999
    transaction = folded(("a", 2), value, 1000)
    (letter,) = transaction.dead_letters
    assert letter.record.value == value
    assert letter.reason.startswith(reason)
    assert told(transaction) == [("a", 2, 1000)]


def test_only_keys_that_are_due_are_called() -> None:
    """Not before their time, and never those that say so."""
    store = MemoryStateStore({"now": Open(2, 2000), "late": Open(2, 3000), "never": Open(2, 0)})
    assert told(folded(1000, topology=WHEN_DUE, store=store)) == []
    assert told(folded(2000, topology=WHEN_DUE, store=store)) == [("now", 2, 2000)]
    assert told(folded(3000, topology=WHEN_DUE, store=store)) == [("late", 2, 3000), ("now", 2, 3000)]


def test_a_key_that_a_tick_changed_is_emitted_as_a_change() -> None:
    """From how it was before the transaction, to what the tick has left."""
    topology = Topology(
        "sums",
        ("sums.in",),
        lambda value: value[0],
        Open,
        add,
        SUMS.outputs,
        emit_change=lambda key, before, after: [("sums.told", {"name": key, "amount": before, "at_ms": after})],
        tick=Tick(1, lambda key, state, at_ms: (Open(state.amount + at_ms), ())),
    )
    assert told(folded(("b", 1), 1000, topology=topology, store=MemoryStateStore({"a": Open(5)}))) == [
        ("b", None, Open(1001)),
        ("a", Open(5), Open(1005)),
    ]


@pytest.mark.parametrize("every_s", [0, -1, 0.5, 86_401, 1.0001])
def test_an_interval_that_cannot_be_is_refused(every_s: float) -> None:
    with raises(Refused, Code.PIPELINE_WRONG, "every_s", "86400"):
        Tick(every_s, tell)


def test_the_topic_of_the_ticks_is_nobody_elses() -> None:
    with raises(Refused, Code.PIPELINE_WRONG, "sums.ticks"):
        Topology("sums", ("sums.ticks",), lambda value: value, Open, add, {}, tick=Tick(1, tell))


def test_a_pipeline_without_a_tick_reads_its_inputs_alone() -> None:
    plain = Topology("sums", ("sums.in",), lambda value: value, Open, add, {})
    assert (plain.reads, plain.ticks, plain.order) == (("sums.in",), None, None)
    assert (SUMS.reads, SUMS.order, SUMS.tick and SUMS.tick.every_ms) == (("sums.in", "sums.ticks"), "sums.order", 1000)
    assert SUMS.dead == {"sums.in": "sums.in.dead", "sums.ticks": "sums.ticks.dead"}


def test_each_tick_is_written_once_a_partition_and_one_after_a_pause() -> None:
    """The clock goes on, stands, jumps an hour, steps back, and comes back."""
    ticking = Ticking(1000)
    said = [ticking.due([0], now_ms) for now_ms in (5400, 5900, 6000, 6300, 3_605_999, 6500, 3_605_500, 3_606_000)]
    assert said == [[(0, 5000)], [], [(0, 6000)], [], [(0, 3_605_000)], [], [], [(0, 3_606_000)]]
    assert ticking.due([0, 1], 3_606_100) == [(1, 3_606_000)], "another partition has ticks of its own"


def test_two_processes_write_the_same_ticks() -> None:
    """Whatever their phases: the times are multiples of the interval, so a reader can tell what it has seen."""
    times = [{at for now in range(start, 9000, 300) for _, at in Ticking(1000).due([0], now)} for start in (1000, 1100)]
    assert times[0] == times[1] == set(itertools.islice(itertools.count(1000, 1000), 8))
