"""The judge reads several inputs in the order that the processor wrote down, and in no other."""

import dataclasses
import itertools
import json
import random
from typing import Any

import pytest

from onefold.processor.core.errors import Rejected
from onefold.processor.core.steps import STEPS
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Event
from onefold.processor.core.values import Record as Read
from onefold.processor.runtime import merge_order
from onefold.processor.runtime.task import Task
from onefold.processor.testing import Crash, SimulatedLog, SimulatedSession
from onefold.verify.order import Order
from onefold.verify.record import ReadRecord
from onefold.verify.verdict import CannotTell
from tests.support.clock import Clock
from tests.support.tasks import elastic_task

pytestmark = pytest.mark.promise("judged-joins")

LEFT, RIGHT = "join.left", "join.right"


def written(*runs: tuple[str, int, int], version: int = 1) -> ReadRecord:
    return ReadRecord("join.order", 0, 0, None, json.dumps({"version": version, "runs": runs}).encode())


def read(topic: str, *offsets: int) -> list[ReadRecord]:
    return [ReadRecord(topic, 0, offset, None, b"") for offset in offsets]


def test_however_the_topics_are_read_the_order_is_the_one_that_was_written_down() -> None:
    """A hundred ways in which a consumer may give three topics; offsets have holes."""
    runs = [(LEFT, 0, 3), (RIGHT, 1, 2), (LEFT, 5, 6), (RIGHT, 2, 9)]
    wanted = [(LEFT, 0), (LEFT, 2), (RIGHT, 1), (LEFT, 5), (RIGHT, 4), (RIGHT, 8)]
    for seed in range(100):
        dice = random.Random(seed)
        streams: list[list[ReadRecord]] = [
            read(LEFT, 0, 2, 5),
            read(RIGHT, 1, 4, 8),
            [written(*runs[:1]), written(*runs[1:3]), written(*runs[3:])],
        ]
        taken: list[tuple[str, int]] = []
        order = Order((LEFT, RIGHT), lambda record: taken.append((record.topic, record.offset)))  # noqa: B023
        while any(streams):
            record = dice.choice([stream for stream in streams if stream]).pop(0)
            order.add(record) if record.topic == "join.order" else order.feed(record)
        assert taken == wanted
        assert order.left_over() == ""


def test_what_no_order_speaks_of_is_left_over() -> None:
    """It was processed while there was no order, or not yet: nothing is known about it, also when the order begins after it."""
    order = Order((LEFT, RIGHT), lambda record: None)
    for record in read(LEFT, 0, 1, 2):
        order.feed(record)
    assert "merge order of join.left/0 is missing from offset 0 on" in order.left_over()
    order.add(written((LEFT, 1, 2)))
    assert "merge order of join.left/0 is missing from offset 0 on" in order.left_over()
    assert order.findings(drained=True) == []


def test_a_record_between_two_runs_was_never_processed() -> None:
    """A processor that loses a record, and writes an order without it: what comes after it goes on, as it did there."""
    taken: list[int] = []
    order = Order((LEFT, RIGHT), lambda record: taken.append(record.offset))
    for record in read(LEFT, 0, 1, 2, 4):
        order.feed(record)
    order.add(written((LEFT, 0, 1), (LEFT, 2, 3)))
    assert taken == [0, 2]
    assert order.left_over() == ""
    assert skipped(order, drained=False) == ["join.left/0/1"]
    assert skipped(order, drained=True) == ["join.left/0/1", "join.left/0/4"], "nothing is to come"
    order.add(written((RIGHT, 7, 8), (LEFT, 4, 5)))
    for record in read(RIGHT, 5, 7):
        order.feed(record)
    assert skipped(order, drained=True) == ["join.left/0/1"]
    assert "merge order of join.right/0 is missing from offset 5 on" in order.left_over(), (
        "it may be older than the order"
    )


def test_who_has_not_read_everything_waits_at_such_a_record() -> None:
    """An auditor does not know whether the record was processed without an order. Who goes on from what it leaves, and reads to
    the end, passes over the record.
    """
    taken: list[int] = []
    order = Order((LEFT, RIGHT), lambda record: None, stops=True)
    for record in read(LEFT, 0, 1, 2):
        order.feed(record)
    order.add(written((LEFT, 0, 1), (LEFT, 2, 3)))
    order.go_on(lambda record: taken.append(record.offset), stops=True)
    assert (taken, skipped(order, drained=False)) == ([], [])
    order.go_on(lambda record: taken.append(record.offset), stops=False)
    assert (taken, skipped(order, drained=False)) == ([2], ["join.left/0/1"])


def skipped(order: Order, *, drained: bool) -> list[str | None]:
    found = order.findings(drained=drained)
    assert {(one.kind, one.where) for one in found} <= {("skipped input", LEFT)}
    return [one.source for one in found]


@pytest.mark.parametrize(
    "record",
    [
        written((LEFT, 0, 1)),
        written((LEFT, 5, 5)),
        written(("other.topic", 7, 8)),
        written((LEFT, 7, 8), version=2),
        ReadRecord("join.order", 0, 0, None, b"junk"),
    ],
    ids=["repeated", "empty", "another topic", "a newer version", "junk"],
)
def test_an_order_that_makes_no_sense_is_no_verdict(record: ReadRecord) -> None:
    order = Order((LEFT, RIGHT), lambda record: None)
    order.add(written((LEFT, 0, 3)))
    with pytest.raises(CannotTell):
        order.add(record)


class Plain:
    """A codec of numbers."""

    def decode(self, record: Read) -> int:
        if record.value == b"junk":
            raise Rejected("no number")
        return int(record.value or b"")

    def encode(self, topic: str, value: Any) -> bytes:
        return b""

    def encode_state(self, state: Any) -> bytes:
        return json.dumps(state).encode()

    def decode_state(self, topology: Topology, data: bytes) -> Any:
        return json.loads(data)


def remember(state: list[Any] | None, event: Event) -> tuple[list[Any], list[Any]]:
    """The state is the order in which its key was folded."""
    return [*(state or []), [event.topic, event.offset]], []


JOIN = Topology("join", (LEFT, RIGHT), lambda value: "one", list, remember, {})


@pytest.mark.parametrize("step", STEPS)
def test_what_is_written_down_is_what_was_folded_whatever_crashes(step: str) -> None:
    """The state knows the order in which its key was folded; the judge's order is the same, after a crash at every step."""
    for hit in itertools.count(1):
        log = SimulatedLog()
        for topic in (*JOIN.inputs, *JOIN.dead.values(), "join.order", JOIN.changelog):
            log.create(topic, 1)
        left = [hit]

        def step_function(name: str, left: list[int] = left) -> None:
            left[0] -= name == step
            if name == step and left[0] == 0:
                raise Crash(step)

        crashed = False
        dice, sent = random.Random(hit), itertools.count()
        task: Task | None = None
        for _ in range(12):
            for _ in range(dice.randrange(4)):
                value = b"junk" if dice.random() < 0.2 else b"%d" % next(sent)
                log.append(dice.choice(JOIN.inputs), b"one", value, partition=0)
            try:
                if task is None:
                    task = _open(log, step_function)
                task.turn()
            except Crash:
                crashed, task = True, None
        task = task or _open(log, lambda name: None)
        while task.turn():
            pass
        folded: list[ReadRecord] = []
        order = Order(JOIN.inputs, folded.append)
        for topic, feed in ((LEFT, order.feed), (RIGHT, order.feed), ("join.order", order.add)):
            for offset, entry in log.read(topic, 0, 0)[0]:
                feed(ReadRecord(topic, 0, offset, entry.key, entry.value))
        assert order.left_over() == ""
        good = [[record.topic, record.offset] for record in folded if record.value != b"junk"]
        assert task.store.get("one") == good
        if not crashed:
            assert hit > 1
            return


def _open(log: SimulatedLog, step: Any) -> Task:
    task = elastic_task(JOIN, SimulatedSession(log, JOIN, 0), Plain(), step, clock=Clock())
    task.open()
    return task


def test_a_single_input_writes_no_order() -> None:
    """Its offsets are the order: nobody pays for what is known."""
    assert dataclasses.replace(JOIN, inputs=(LEFT,)).order is None
    assert json.loads(merge_order.encode([Read(LEFT, 0, 3, None, None), Read(LEFT, 0, 5, None, None)])) == {
        "version": 1,
        "runs": [[LEFT, 3, 6]],
    }
