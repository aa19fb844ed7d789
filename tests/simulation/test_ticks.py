"""Ticks through the real loop: folded once whatever crashes, whoever writes them, and however the clock goes."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from onefold import Event, Outputs, Tick, Topology
from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.processor.core.values import Record
from onefold.processor.io.serde import OUTPUT_BYTES_MAX
from onefold.processor.runtime.changelog import TaskProgress
from onefold.processor.runtime.handler_errors import Bugs
from onefold.processor.runtime.loop import TaskLoop
from onefold.processor.runtime.pool import TaskPool
from onefold.processor.runtime.state_store import MemoryStateStore
from onefold.processor.runtime.task import Task
from onefold.processor.testing import SimulatedSession
from onefold.testing import STEPS, TopologyDriver
from tests.support.clock import Clock
from tests.support.coded import raises
from tests.support.crashes import crashed_at_every_hit
from tests.support.replicas import Replicas
from tests.support.tasks import elastic_task
from tests.support.waiting import eventually

FIELDS = {
    "beats": {"meter": "string", "amount": "long"},
    "sums": {"meter": "string", "amount": "long", "at_ms": "long", "ticks": "long"},
}


class Meter(Struct):
    """What a meter has counted since it was told last, and how often a tick has come."""

    amount: int = 0
    ticks: int = 0


def handle(meter: Meter | None, event: Event) -> tuple[Meter | None, Outputs]:
    old = meter or Meter()
    return Meter(old.amount + event.value.amount, old.ticks), ()


def on_tick(key: str, meter: Meter, at_ms: int) -> tuple[Meter | None, Outputs]:
    """Tells the sum. 666 is a bug, 777 is too long to be written, and a meter without a beat is forgotten at the third tick."""
    if meter.amount == 666:
        raise ZeroDivisionError("six hundred and sixty-six")
    name = "x" * OUTPUT_BYTES_MAX if meter.amount == 777 else key
    if meter.amount == 0 and meter.ticks >= 2:
        return None, ()
    row = {"meter": name, "amount": meter.amount, "at_ms": at_ms, "ticks": meter.ticks + 1}
    return Meter(0, meter.ticks + 1), (("meters.sums", row),)


METERS = Topology(
    name="meters",
    inputs=("meters.beats",),
    key=lambda beat: beat.meter,
    state=Meter,
    handle=handle,
    outputs={"meters.sums": None},
    tick=Tick(every_s=1, handle=on_tick),
)


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    for name, fields in FIELDS.items():
        columns = [{"name": field, "type": kind} for field, kind in fields.items()]
        schema = {"type": "record", "name": name.title(), "namespace": "meters", "topics": [f"meters.{name}"]}
        (tmp_path / f"meters.{name}.avsc").write_text(json.dumps({**schema, "fields": columns}), encoding="utf-8")
    return tmp_path


def beat(driver: TopologyDriver, *beats: tuple[str, int]) -> None:
    for meter, amount in beats:
        driver.send("meters.beats", {"meter": meter, "amount": amount})


def sums(driver: TopologyDriver) -> list[tuple[str, int, int]]:
    return sorted((row["meter"], row["amount"], row["at_ms"]) for row in driver.read("meters.sums"))


def feed(driver: TopologyDriver) -> None:
    """Beats and ticks in turn; every tick also from another process, some late, some from a clock that is behind."""
    for wave in range(1, 5):
        beat(driver, *((f"m{number}", 10 * wave + number) for number in range(wave)))
        driver.tick(1000 * wave)
        driver.tick(1000 * wave)
        driver.run()
        driver.tick(1000 * (wave - 1))
        driver.log.append("meters.ticks", None, b"noon", partition=0)
        driver.tick(1000 * wave)
        driver.run()
    driver.stop()


def outcome(driver: TopologyDriver) -> dict[str, Any]:
    progresses = [driver.task(partition).progress for partition in range(driver.partitions)]
    return {
        "sums": sorted(map(str, driver.read("meters.sums"))),
        "dead": [(value, headers["onefold-reason"]) for _, value, headers in driver.records("meters.ticks.dead")],
        "states": driver.states(),
        "progress": [(progress.counts, progress.ticked_ms) for progress in progresses],
    }


def test_a_tick_drives_an_output_once_however_often_it_was_written(contracts: Path) -> None:
    driver = TopologyDriver(METERS, contracts=contracts, partitions=2)
    feed(driver)

    assert sums(driver) == sorted(
        (f"m{number}", 10 * wave + number, 1000 * wave) for wave in range(1, 5) for number in range(wave)
    )
    assert [value for _, value, _ in driver.records("meters.ticks.dead")] == [b"noon"] * 4
    assert driver.task().progress.ticked_ms == 4000


@pytest.mark.parametrize("seed", range(10))
def test_replicas_decide_about_time_as_about_everything_else(contracts: Path, seed: int) -> None:
    """Each of them writes the tick, and it is folded once, whoever wins; a replica that starts knows the last one."""
    undisturbed = TopologyDriver(METERS, contracts=contracts)
    world = Replicas(METERS, driver=TopologyDriver(METERS, contracts=contracts))
    for wave in range(1, 5):
        for driver in (undisturbed, world.driver):
            beat(driver, *((f"m{number}", 10 * wave + number) for number in range(wave)))
        world.drain()
        undisturbed.run()
        for at_ms in (1000 * wave, 1000 * wave, 1000 * (wave - 1)):
            for driver in (undisturbed, world.driver):
                driver.tick(at_ms)
            world.run(100 * seed + wave, 5)
        undisturbed.run()
        world.drain()
        world.members["ab"[(seed + wave) % 2]].kill()

    for member in world.members.values():
        member.kill()
    world.driver.tick(4000)
    world.drain()
    world.driver.tick(4000)
    world.driver.run()  # and who takes the task back knows it as well
    assert sums(world.driver) == sums(undisturbed)
    assert {member.replica.progress.ticked_ms for member in world.members.values() if member.replica} == {4000}
    assert world.driver.states() == undisturbed.states()


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_no_trace_in_what_ticks_did(contracts: Path, step: str) -> None:
    """Records, dead letters, states, counts and the time of the last tick are those of a run without a crash."""
    make = partial(TopologyDriver, METERS, contracts=contracts, partitions=2)
    undisturbed = make()
    feed(undisturbed)
    expected = outcome(undisturbed)
    for where, driver in crashed_at_every_hit(step, make, feed):
        assert expected == outcome(driver), where


def test_a_successor_knows_the_last_tick(contracts: Path) -> None:
    """It is in the progress: what the predecessor folded is not folded again when somebody writes it once more."""
    driver = TopologyDriver(METERS, contracts=contracts)
    beat(driver, ("a", 1))
    driver.tick(5000)
    driver.run()
    driver.kill()
    driver.tick(5000)
    driver.tick(4000)
    driver.run()
    assert sums(driver) == [("a", 1, 5000)]
    driver.tick(3_605_000)
    driver.run()
    assert sums(driver) == [("a", 0, 3_605_000), ("a", 1, 5000)], "and an hour later there is one tick, and not 3,600"


def test_the_order_of_ticks_and_inputs_is_written_down(contracts: Path) -> None:
    """So that whoever folds them again sees the same time."""
    driver = TopologyDriver(METERS, contracts=contracts)
    beat(driver, ("a", 1), ("a", 2))
    driver.tick(1000)
    driver.run()
    ((_, value, _),) = driver.records("meters.order")
    assert json.loads(value or b"")["runs"] == [["meters.beats", 0, 2], ["meters.ticks", 0, 1]]


@pytest.mark.parametrize(
    ("amount", "reason"),
    [(666, "the handler raised ZeroDivisionError: six hundred and sixty-six (test_ticks.py:"), (777, "its record for")],
)
def test_a_tick_that_cannot_be_folded_is_a_dead_letter_and_nothing_else_is_lost(
    contracts: Path, amount: int, reason: str
) -> None:
    """A bug, or an output that cannot be written: the tick is set aside as a whole, and the next one comes to every key."""
    driver = TopologyDriver(METERS, contracts=contracts)
    beat(driver, ("a", 1), ("b", amount))
    driver.tick(1000)
    driver.run()
    beat(driver, ("b", 1))
    driver.run()
    assert sums(driver) == []
    ((_, value, headers),) = driver.records("meters.ticks.dead")
    assert (value, headers["onefold-source"]) == (b'{"at_ms":1000}', b"meters.ticks/0/0")
    assert (headers["onefold-reason"] or b"").decode().startswith(reason)
    driver.tick(2000)
    driver.run()
    assert sums(driver) == [("a", 1, 2000), ("b", amount + 1, 2000)]


def test_a_bug_of_another_record_is_found_beside_the_ticks_of_its_batch(contracts: Path) -> None:
    """Records are folded one by one to find it: the ticks among them see the keys as they were then, and come once."""
    driver = TopologyDriver(METERS, contracts=contracts)
    beat(driver, ("b", 1))
    driver.run()
    beat(driver, ("a", 2), ("b", 665))
    for at_ms in (1000, 1000, 2000):
        driver.tick(at_ms)
    driver.run()
    assert [value for _, value, _ in driver.records("meters.ticks.dead")] == [b'{"at_ms":1000}'] * 2 + [
        b'{"at_ms":2000}'
    ]
    assert driver.states() == {"a": Meter(2), "b": Meter(666)}


def test_a_stale_tick_is_not_blamed_for_the_bug_of_a_record_of_its_batch(contracts: Path) -> None:
    """To be folded, it would raise: who looks for the bug knows, too, what time it was before the batch."""

    def failing(meter: Meter | None, event: Event) -> tuple[Meter | None, Outputs]:
        if event.value.amount == 13:
            raise ZeroDivisionError("thirteen")
        return handle(meter, event)

    driver = TopologyDriver(replace(METERS, handle=failing), contracts=contracts)
    beat(driver, ("a", 1))
    driver.tick(2000)
    driver.run()
    beat(driver, ("a", 666))
    driver.run()
    driver.tick(1000)
    beat(driver, ("a", 13), ("b", 7))
    driver.run()

    assert driver.records("meters.ticks.dead") == []
    assert [headers["onefold-source"] for _, _, headers in driver.records("meters.beats.dead")] == [b"meters.beats/0/2"]
    assert sums(driver) == [("a", 1, 2000)]
    assert driver.states() == {"a": Meter(666, 1), "b": Meter(7)}


def test_while_a_bug_is_looked_for_ticks_are_what_they_were(contracts: Path) -> None:
    """One that came twice is no second one, and it sees a key once, as the records before it have left it."""
    driver = TopologyDriver(METERS, contracts=contracts)
    records = [
        Record("meters.ticks" if b"at_ms" in value else "meters.beats", 0, offset, None, value)
        for offset, value in enumerate(
            (
                b'{"meter":"a","amount":1}',
                b'{"at_ms":1000}',
                b'{"meter":"a","amount":666}',
                b'{"at_ms":1000}',
                b'{"at_ms":2000}',
            )
        )
    ]
    states = MemoryStateStore({"a": Meter(666)})
    faults = Bugs().at_fault(METERS, states, records, driver.codec.decode, lambda key: 0, lambda transaction: None)
    assert [record.offset for record in faults] == [4]


def test_the_progress_of_a_pipeline_without_ticks_is_what_it_was() -> None:
    """A version that does not know ticks reads it; and what it leaves out is no time at all."""
    assert "ticked_ms" not in json.loads(TaskProgress({"a": "id"}, {"a": 1}).encode())
    ticked = TaskProgress({"a": "id"}, {"a": 1}, ticked_ms=7000)
    assert TaskProgress.decode(ticked.encode()) == ticked
    assert ticked.advanced({}, ticked.counts).ticked_ms == 7000


def test_a_task_is_given_no_tick_before_it_has_caught_up(contracts: Path) -> None:
    """The first one would come before the records that have waited longer; and while it restores they would pile up."""
    driver = TopologyDriver(METERS, contracts=contracts)
    for number in range(20):
        beat(driver, ("a", number))
    seen: list[tuple[int, list[int]]] = []
    loops: list[TaskLoop] = []

    class Watched(SimulatedSession):
        def poll(self, count_max: int, timeout_s: float) -> Any:
            if loops:
                seen.append((self.positions()["meters.beats"], pool.caught_up()))
            return super().poll(min(count_max, 5), timeout_s)

    def make(partition: int, beating: Any) -> Task:
        loops[:] = [pool._loops[partition]] if partition in pool._loops else []
        return elastic_task(METERS, Watched(driver.log, METERS, partition), driver.codec, clock=Clock())

    pool = TaskPool(make, clock=Clock())
    pool.start([0])
    try:
        eventually(lambda: pool.caught_up() == [0], 10, "the task has caught up")
        eventually(lambda: any(caught_up for _, caught_up in seen), 10, "and is seen to")
    finally:
        pool.stop_all()
    assert {at for at, caught_up in seen if not caught_up} >= {5, 10, 15}
    assert all(at >= 20 for at, caught_up in seen if caught_up)


def test_removing_the_tick_leaves_the_states(contracts: Path) -> None:
    """And declaring it again goes on where the time was."""
    driver = TopologyDriver(METERS, contracts=contracts)
    beat(driver, ("a", 1))
    driver.tick(5000)
    driver.run()
    driver.kill()
    plain = Topology("meters", ("meters.beats",), METERS.key, Meter, handle, METERS.outputs)
    without = TopologyDriver(plain, contracts=contracts, log=driver.log)
    beat(without, ("a", 4))
    without.run()
    without.kill()
    with pytest.raises(AssertionError, match="meters declares no tick"):
        without.tick(6000)
    again = TopologyDriver(METERS, contracts=contracts, log=driver.log)
    again.tick(5000)
    again.run()
    assert sums(again) == [("a", 1, 5000)]
    again.log.create("meters.ticks", 1)
    with raises(Refused, Code.TOPIC_RECREATED, "meters.ticks"):
        again.run()
