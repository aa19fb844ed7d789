"""The cycle of one task: what it writes, in which order and where, and what it leaves behind."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.abc import Write
from onefold.processor.core.errors import Corrupted, Refused, Retriable
from onefold.processor.core.topology import PROGRESS_KEY
from onefold.processor.loading import topology_of
from onefold.processor.runtime.loop import TaskLoop
from onefold.processor.runtime.task import Task
from onefold.processor.testing import SimulatedSession, TopologyDriver
from tests.support.clock import Clock
from tests.support.coded import raises
from tests.support.tasks import elastic_task
from tests.support.waiting import eventually

RUNNER = topology_of("runner")
INPUT = RUNNER.inputs[0]


def update(number: int) -> dict[str, int]:
    return {"user_id": 1, "distance_meters": 10, "timestamp_utc": number, "sequence_id": number, "run_id": 1}


def task_over(
    driver: TopologyDriver, step: Callable[[str], None] = lambda name: None, check_every_s: float = 0
) -> Task:
    session = SimulatedSession(driver.log, RUNNER, 0)
    task = elastic_task(RUNNER, session, driver.codec, step, check_every_s=check_every_s, clock=Clock())
    task.open()
    return task


def test_the_progress_is_the_last_record_of_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has read it has read everything that it stands for."""
    transactions: list[list[bytes | None]] = []
    begin, produce = SimulatedSession.begin, SimulatedSession.produce

    def recorded(self: SimulatedSession, writes: Iterable[Write]) -> None:
        kept = list(writes)
        transactions[-1] += [key for _, _, key, _, _ in kept]
        produce(self, kept)

    def begun(self: SimulatedSession) -> None:
        transactions.append([])
        begin(self)

    monkeypatch.setattr(SimulatedSession, "begin", begun)
    monkeypatch.setattr(SimulatedSession, "produce", recorded)
    driver = TopologyDriver(RUNNER)
    driver.send(INPUT, update(1))
    driver.run()

    assert max(map(len, transactions)) > 3
    for keys in transactions:
        assert keys.index(PROGRESS_KEY) == len(keys) - 1


def test_a_log_that_lost_records_while_it_is_read_is_refused() -> None:
    """The topic is the same one, and ends before what was reached: nothing else would say so."""
    driver = TopologyDriver(RUNNER)
    for number in range(1, 4):
        driver.send(INPUT, update(number))
    task = task_over(driver)
    task.turn()
    driver.log._topics[INPUT].partitions[0].clear()

    with raises(Refused, Code.RECORDS_LOST):
        task.turn()


@pytest.mark.promise("recreated-topics")
@pytest.mark.parametrize("records", [5, 0], ids=["records", "markers"])
def test_what_was_read_from_another_topic_of_that_name_is_never_committed(records: int) -> None:
    """Made anew and filled in the moment between two looks: the transaction itself looks, after it has read."""
    driver = TopologyDriver(RUNNER)
    driver.send(INPUT, update(1))
    task = task_over(driver, check_every_s=3600)
    task.turn()
    before = driver.records(RUNNER.changelog)
    driver.log.create(INPUT, 1)
    driver.send(INPUT, update(1))
    if not records:
        epoch = driver.log.init("somebody")
        driver.log.write("somebody", epoch, INPUT, 0, b"k", b"v", ())
        driver.log.end("somebody", epoch, commit=False)
    for number in range(2, 2 + records):
        driver.send(INPUT, update(number))

    with raises(Refused, Code.TOPIC_RECREATED):
        task.turn()
    task.abandon()
    assert driver.records(RUNNER.changelog) == before


def test_the_topics_are_asked_for_after_the_records_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer from before says nothing about where they came from."""
    order: list[str] = []
    poll, ask = SimulatedSession.poll, SimulatedSession.ask_topic_ids

    def noted(what: str, done: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*given: Any) -> Any:
            order.append(what)
            return done(*given)

        return noting

    monkeypatch.setattr(SimulatedSession, "poll", noted("read", poll))
    monkeypatch.setattr(SimulatedSession, "ask_topic_ids", noted("asked", ask))
    driver = TopologyDriver(RUNNER)
    driver.send(INPUT, update(1))
    task_over(driver).turn()

    assert order == ["read", "asked"]


def test_a_drained_input_is_drained_for_the_next_owner_too() -> None:
    """Markers and aborted records at its end were read; who looks from outside should see no lag."""
    driver = TopologyDriver(RUNNER)
    epoch = driver.log.init("somebody")
    driver.log.write("somebody", epoch, INPUT, 0, b"k", b"v", ())
    driver.log.end("somebody", epoch, commit=False)
    task = task_over(driver)
    task.turn()
    task.abandon()

    assert task_over(driver).progress.offsets_next == {INPUT: 2}


def test_a_dead_letter_lies_in_the_partition_of_its_record() -> None:
    """So the tasks of a pipeline never write to one another's dead letters, and order stays what it was."""
    driver = TopologyDriver(RUNNER, partitions=3)
    driver.send(INPUT, b"junk", partition=2)
    driver.run()

    assert [len(driver.log.read(f"{INPUT}.dead", partition, 0)[0]) for partition in range(3)] == [0, 0, 1]


def raising_in_the_second_transaction(trouble: Exception) -> Callable[[str], None]:
    """A step function. The first transaction is the opening one."""
    transactions: list[str] = []

    def step(name: str) -> None:
        if name == "after_produce":
            transactions.append(name)
            if len(transactions) == 2:
                raise trouble

    return step


def test_a_retreat_takes_back_what_is_open() -> None:
    """The trouble came in the middle of a transaction, and was no record's fault."""
    driver = TopologyDriver(RUNNER)
    driver.send(INPUT, update(1))
    task = task_over(
        driver, raising_in_the_second_transaction(Retriable(Code.KAFKA_SILENT, "the registry does not answer"))
    )
    with pytest.raises(Retriable):
        task.turn()
    task.close()

    assert driver.read("runner.messages") == []
    assert task_over(driver).quarantine.level == 0


@pytest.mark.parametrize(
    ("trouble", "level"),
    [
        (Retriable(Code.KAFKA_SILENT, "away"), 0),
        (Corrupted(Code.CHANGELOG_WRONG, "who knows"), 0),
        (Refused(Code.TOPIC_RECREATED, "not the log it was"), 0),
        (ValueError("a bug"), 1),
    ],
    ids=["Retriable", "Corrupted", "Refused", "a bug"],
)
def test_only_an_unknown_error_makes_the_next_owner_careful(trouble: Exception, level: int) -> None:
    """A known trouble is no record's fault; a bug may be."""
    driver = TopologyDriver(RUNNER)
    driver.send(INPUT, update(1))
    step = raising_in_the_second_transaction(trouble)
    running = TaskLoop(
        0,
        lambda beat: elastic_task(
            RUNNER, SimulatedSession(driver.log, RUNNER, 0), driver.codec, step, beat, clock=Clock()
        ),
        clock=Clock(),
    )
    with pytest.raises(type(trouble)):
        deque(running._live(), maxlen=0)

    assert task_over(driver).quarantine.level == level


@pytest.mark.parametrize(
    ("trouble", "handed_over"),
    [
        (Retriable(Code.KAFKA_SILENT, "away"), False),
        (Corrupted(Code.CHANGELOG_WRONG, "who knows"), False),
        (Refused(Code.TOPIC_RECREATED, "not the log it was"), True),
    ],
    ids=["Retriable", "Corrupted", "Refused"],
)
def test_a_person_is_asked_only_when_the_log_is_another(trouble: Exception, handed_over: bool) -> None:
    """What can be restored is restored by the task itself; a refusal ends it."""
    driver = TopologyDriver(RUNNER)
    driver.send(INPUT, update(1))
    step = raising_in_the_second_transaction(trouble)
    running = TaskLoop(
        0,
        lambda beat: elastic_task(
            RUNNER, SimulatedSession(driver.log, RUNNER, 0), driver.codec, step, beat, clock=Clock()
        ),
        clock=Clock(),
    )
    running.thread.start()
    eventually(lambda: running.failure or running.offsets_next == {INPUT: 1}, 10, "an end, or the record is folded")
    running.stop()
    running.thread.join(5)

    assert (running.failure is trouble) == handed_over
