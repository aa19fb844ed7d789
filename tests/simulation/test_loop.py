"""The life of a task in its thread: what happens next after each kind of error."""

import dataclasses
import itertools
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Abortable, Corrupted, Fenced, Refused, Retriable
from onefold.processor.core.values import Event
from onefold.processor.loading import topology_of
from onefold.processor.runtime.batch_limit import BATCH, FIRST_RECORDS, TURN_S, BatchLimit, records_next
from onefold.processor.runtime.loop import BACKOFF_FIRST_S, BACKOFF_MAX_S, Phase, TaskLoop
from onefold.processor.runtime.pool import STOP_TIMEOUT_S
from onefold.processor.runtime.task import Task
from onefold.processor.testing import SimulatedSession, TopologyDriver
from tests.support.clock import Clock
from tests.support.tasks import elastic_task
from tests.support.waiting import eventually

RUNNER = topology_of("runner")


def update(number: int, meters: int = 10) -> dict[str, int]:
    return {"user_id": 1, "distance_meters": meters, "timestamp_utc": number, "sequence_id": number, "run_id": 1}


class Troubled(SimulatedSession):
    """Raises the given errors, one at each commit that is not the opening one, and then works."""

    troubles: list[Exception]

    def commit(self) -> None:
        if self.troubles and self._positions[RUNNER.inputs[0]]:
            raise self.troubles.pop(0)
        super().commit()


def loop_over(driver: TopologyDriver, troubles: list[Exception], topology: Any = RUNNER) -> TaskLoop:
    def make(beat: Any) -> Task:
        session = Troubled(driver.log, topology, 0)
        session.troubles = troubles
        return elastic_task(topology, session, driver.codec, beat=beat, clock=Clock())

    return TaskLoop(0, make, clock=Clock())


@pytest.mark.parametrize(
    "trouble",
    [
        Abortable(Code.TRANSACTION_LOST, "lost"),
        Retriable(Code.KAFKA_SILENT, "not now"),
        Corrupted(Code.CHANGELOG_WRONG, "who knows"),
    ],
)
def test_errors_that_can_be_recovered_from(trouble: Exception) -> None:
    """The same records are folded again, once; the loop goes on by itself."""
    driver = TopologyDriver(RUNNER)
    for number in range(1, 6):
        driver.send("runner.updates", update(number))
    running = loop_over(driver, [trouble])
    running.thread.start()
    eventually(lambda: running.offsets_next == {"runner.updates": 5}, 10, "all records are folded")
    running.stop()

    assert running.thread.join(5)
    assert running.failure is None
    assert [message["sequence_id"] for message in driver.read("runner.messages")] == [1, 2, 3, 4, 5]


def test_each_failure_in_a_row_doubles_the_wait() -> None:
    def make(beat: Any) -> Task:
        raise Retriable(Code.KAFKA_SILENT, "Kafka does not answer")

    waits = list(itertools.islice(TaskLoop(0, make, clock=Clock()).life(), 20))
    assert waits[:3] == [BACKOFF_FIRST_S, 2 * BACKOFF_FIRST_S, 4 * BACKOFF_FIRST_S]
    assert waits[-1] == BACKOFF_MAX_S


@pytest.mark.promise("failures-on-purpose")
def test_a_transaction_that_fails_on_purpose_is_folded_again() -> None:
    """Every third one, at its last step before the commit: aborted, rewound, and every record once in the end."""
    driver = TopologyDriver(RUNNER)
    failures: list[int] = []
    reached = itertools.count(1)

    def step(name: str) -> None:
        if name == "before_commit" and (number := next(reached)) % 3 == 0:
            failures.append(number)
            raise Abortable(Code.TRANSACTION_LOST, "a failure of state was injected")

    def make(beat: Any) -> Task:
        return elastic_task(RUNNER, SimulatedSession(driver.log, RUNNER, 0), driver.codec, step, beat, clock=Clock())

    running = TaskLoop(0, make, clock=Clock())
    life = running.life()
    for number in range(1, 10):
        driver.send("runner.updates", update(number))
        assert any(running.offsets_next == {"runner.updates": number} for _ in itertools.islice(life, 10))
    running.stop()

    assert list(life) == []
    assert running.failure is None
    assert len(failures) >= 3
    assert [message["sequence_id"] for message in driver.read("runner.messages")] == list(range(1, 10))


def test_a_trouble_outside_is_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that is away for a hundred tries costs time, and not one dead letter."""
    driver = TopologyDriver(RUNNER)
    for number in range(1, 4):
        driver.send("runner.updates", update(number))
    tries_left = [100]
    decode = driver.codec.decode

    def away(record: Any) -> Any:
        tries_left[0] -= 1
        if tries_left[0] > 0:
            raise Retriable(Code.KAFKA_SILENT, "the registry does not answer")
        return decode(record)

    monkeypatch.setattr(driver.codec, "decode", away)
    running = loop_over(driver, [])
    life = running.life()  # in this thread, which waits for none of the tries
    assert any(running.offsets_next == {"runner.updates": 3} for _ in itertools.islice(life, 1_000))
    running.stop()

    assert list(life) == []
    assert tries_left[0] <= 0
    assert driver.records("runner.updates.dead") == []
    assert len(driver.read("runner.messages")) == 3


def test_a_restore_ends_when_it_is_asked_to() -> None:
    """However much is left of it; a transaction in hand comes to its end all the same."""
    beats = list[int]()

    class Endless(SimulatedSession):
        beat: Any

        def restore(self, **given: Any) -> Any:
            for number in range(1_000):
                beats.append(number)
                if number == 100:
                    loop.stop()
                self.beat()
            return iter(())

    def make(beat: Any) -> Task:
        session = Endless(driver.log, RUNNER, 0)
        session.beat = beat
        return elastic_task(RUNNER, session, driver.codec, beat=beat, clock=Clock())

    driver = TopologyDriver(RUNNER)
    loop = TaskLoop(0, make, clock=Clock())
    assert list(loop.life()) == []
    assert (len(beats), loop.failure, loop.phase) == (101, None, Phase.RESTORING)


def test_fenced_leaves_quietly() -> None:
    """No failure, and no second try of its own: the pool asks the group first."""
    driver = TopologyDriver(RUNNER)
    driver.send("runner.updates", update(1))
    running = loop_over(driver, [Fenced(Code.FENCED, "another owner")])
    running.thread.start()

    assert running.thread.join(5)
    assert (running.fenced, running.failure, running.phase) == (True, None, Phase.STOPPED)


@pytest.mark.parametrize("trouble", [Refused(Code.TOPIC_RECREATED, "not the log it was"), ValueError("a bug")])
def test_what_it_cannot_go_on_from_is_handed_to_the_main_thread(trouble: Exception) -> None:
    """A refusal and a bug alike; the main thread tells them apart."""
    driver = TopologyDriver(RUNNER)
    driver.send("runner.updates", update(1))
    running = loop_over(driver, [trouble])
    running.thread.start()

    assert running.thread.join(5)
    assert trouble is running.failure


def test_a_handler_with_a_bug_costs_one_dead_letter_and_no_crash() -> None:
    """An ordinary exception is the record's: nothing ends, nothing is read again, and nobody else waits."""

    def buggy(state: Any, event: Event) -> Any:
        if event.value.distance_meters == 666:
            raise ZeroDivisionError
        return RUNNER.handle(state, event)

    topology = dataclasses.replace(RUNNER, handle=buggy)
    driver = TopologyDriver(RUNNER)
    for number, meters in enumerate((10, 10, 666, 10), 1):
        driver.send("runner.updates", update(number, meters))
    running = loop_over(driver, [], topology)
    running.thread.start()
    eventually(lambda: running.failure or running.offsets_next == {"runner.updates": 4}, 10, "a crash, or the end")
    running.stop()
    running.thread.join(5)

    assert running.failure is None
    assert running._aborts == running._failures == 0
    assert [headers["onefold-source"] for _, _, headers in driver.records("runner.updates.dead")] == [
        b"runner.updates/0/2"
    ]
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 30


def test_a_burst_is_seen_at_once_and_a_backlog_goes_in_large_transactions_soon() -> None:
    """At most twice as many records as before; what came in small pieces begins small again."""
    first = FIRST_RECORDS
    driver = TopologyDriver(RUNNER)
    task = elastic_task(RUNNER, SimulatedSession(driver.log, RUNNER, 0), driver.codec, clock=Clock())
    task.open()
    sent = itertools.count(1)
    for folded in ([first, 2 * first, first], [], [first, 2]):
        for _ in range(sum(folded)):
            driver.send("runner.updates", update(next(sent)))
        assert list(iter(task.turn, 0)) == folded


def test_a_backlog_goes_in_transactions_of_a_bounded_size() -> None:
    limit, sizes = BatchLimit(lambda quarantine: None), list[int]()
    for _ in range(10):
        sizes.append(limit.records_max)
        limit.committed(limit.records_max, 0.0, {})
    assert sizes == [min(FIRST_RECORDS * 2**number, BATCH[0]) for number in range(10)]


@pytest.mark.promise("slow-handlers")
def test_a_slow_handler_gets_smaller_transactions() -> None:
    """A turn fits into the time within which a task has to end; one that has become fast again gets more by and by."""
    assert TURN_S * 5 / 4 < STOP_TIMEOUT_S
    now, cost_s = 0.0, 1 / 512

    def slow(state: Any, event: Event) -> tuple[Any, Any]:
        nonlocal now
        now += cost_s
        return RUNNER.handle(state, event)

    driver = TopologyDriver(dataclasses.replace(RUNNER, handle=slow))
    task = elastic_task(driver.topology, SimulatedSession(driver.log, RUNNER, 0), driver.codec, clock=lambda: now)
    task.open()
    for number in range(25_000):
        driver.send("runner.updates", update(1 + number))
    assert [task.turn(), task.turn()] == [FIRST_RECORDS, 3_584], "5,000 took 9.8 seconds, 3,584 take 7"
    cost_s /= 16
    assert [task.turn(), task.turn()] == [4_480, 8_960]


def test_tasks_of_one_process_come_to_share_its_time() -> None:
    """Four that together need longer than a turn may take; one of them began small."""
    sizes = [80_000, 80_000, 80_000, 5_000]
    for _ in range(100):
        took_s = sum(sizes) * 0.000_04
        sizes = [min(BATCH[0], records_next(size, took_s)) for size in sizes]
        assert took_s < STOP_TIMEOUT_S
    assert min(sizes) > 0.8 * max(sizes)
