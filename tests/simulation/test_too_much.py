"""What is too much for one transaction comes in smaller ones, and a record that can never be written is set aside."""

from collections.abc import Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from onefold.error_codes import Code
from onefold.processor.core.abc import Write
from onefold.processor.core.errors import Abortable, Retriable, TooMuch
from onefold.processor.core.values import Record
from onefold.processor.loading import topology_of
from onefold.processor.runtime.batch_limit import BATCH, TRIES_MAX, BatchLimit
from onefold.processor.runtime.loop import BACKOFF_FIRST_S, BACKOFF_MAX_S, TaskLoop
from onefold.processor.runtime.task import Task
from onefold.processor.testing import SimulatedSession, TopologyDriver
from tests.support.clock import Clock
from tests.support.tasks import elastic_task

pytestmark = pytest.mark.promise("too-large-records")

RUNNER = topology_of("runner")


def driver_with(*distances: int) -> TopologyDriver:
    driver = TopologyDriver(RUNNER)
    for number, distance in enumerate(distances, 1):
        value = {"user_id": 1, "distance_meters": distance, "timestamp_utc": number, "sequence_id": number, "run_id": 1}
        driver.send("runner.updates", value)
    return driver


class Narrow(SimulatedSession):
    """Of a cluster that takes so many messages of the runner in a transaction, and none about a poisonous record."""

    def __init__(self, driver: TopologyDriver, fits: int = 1_000_000) -> None:
        super().__init__(driver.log, RUNNER, 0)
        self.fits = fits
        self.sizes: list[int] = []
        self.away = False
        self.poisons: tuple[int, ...] = ()

    def produce(self, writes: Iterable[Write]) -> None:
        written = list(writes)
        super().produce(written)
        if self.away:
            raise TooMuch(Code.TOO_LARGE, "timed out: nobody is there")
        sources = [headers[0][1] for topic, _, _, _, headers in written if topic == "runner.messages" and headers]
        if sources:
            self.sizes.append(len(sources))
        if len(sources) > self.fits or any(b"runner.updates/0/%d" % at in sources for at in self.poisons):
            raise TooMuch(Code.TOO_LARGE, "the broker says: message size too large")


def record(offset: int) -> Record:
    return Record("t", 0, offset, None, b"")


def turns(task: Task, most: int = 1_000) -> int:
    """Turn it until nothing is left. Returns how many transactions were aborted."""
    aborts = 0
    for _ in range(most):
        try:
            if not task.turn():
                return aborts
        except Abortable:
            aborts += 1
    pytest.fail("no end of it")


def test_a_transaction_that_was_too_much_comes_in_smaller_ones() -> None:
    """Also when what fits is far below: all records get through, none is set aside, and sizes grow again after that."""
    driver = driver_with(*[10] * 3_000)
    session = Narrow(driver, fits=70)
    task = elastic_task(RUNNER, session, driver.codec, clock=Clock())
    task.open()

    aborts = turns(task)
    assert session.sizes[:4] == [3_000, 300, 30, 30]
    assert aborts < len(session.sizes) / 4
    assert driver.records("runner.updates.dead") == []
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 30_000


@pytest.mark.parametrize("at", [0, 1, 1234, 2999])
def test_a_record_that_cannot_be_written_is_set_aside(at: int) -> None:
    """It says why; the records around it are folded as if it had never been there, and it is found in a few tries."""
    driver = driver_with(*[10] * 3_000)
    session = Narrow(driver)
    session.poisons = (at,)
    task = elastic_task(RUNNER, session, driver.codec, clock=Clock())
    task.open()

    assert turns(task) <= 4 + TRIES_MAX
    (letter,) = driver.records("runner.updates.dead")
    assert letter[2]["onefold-source"] == b"runner.updates/0/%d" % at
    assert b"message size too large" in (letter[2]["onefold-reason"] or b"")
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 29_990


def test_two_such_records_are_both_set_aside() -> None:
    """Side by side; the tries of the first are not those of the second."""
    driver = driver_with(*[10] * 50)
    session = Narrow(driver)
    session.poisons = (20, 21)
    task = elastic_task(RUNNER, session, driver.codec, clock=Clock())
    task.open()
    turns(task)

    assert len(driver.records("runner.updates.dead")) == 2
    assert session.sizes.count(1) >= 2 * TRIES_MAX
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 480


def test_a_record_is_not_blamed_for_a_cluster_that_is_away() -> None:
    """Nothing goes through then, not even a transaction with nothing in it. When it is back, everything does."""
    driver = driver_with(*[10] * 20)
    session = Narrow(driver)
    task = elastic_task(RUNNER, session, driver.codec, clock=Clock())
    task.open()
    session.away = True
    for _ in range(50):
        with pytest.raises(Abortable):
            task.turn()
    session.away = False
    turns(task)

    assert driver.records("runner.updates.dead") == []
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 200


def test_a_cluster_that_comes_and_goes_needs_three_records_in_a_row() -> None:
    """Only tries in a row count: a try of another record lies between those of the first."""
    limit = BatchLimit(lambda quarantine: None)
    one, other = [record(0)], [record(1)]
    for _ in range(TRIES_MAX - 1):
        limit.too_large(one, "timed out")
    assert limit.rejected(one) == {}
    limit.too_large(other, "timed out")
    assert limit.rejected(other) == {}
    limit.too_large(one, "timed out")
    assert limit.rejected(one) == {}, "its tries were not in a row"
    for _ in range(TRIES_MAX - 1):
        limit.too_large(one, "timed out")
    assert list(limit.rejected(one)) == one


def test_records_of_another_input_between_the_tries_change_nothing() -> None:
    """The cluster takes those, and still not this one."""
    limit, one = BatchLimit(lambda quarantine: None), [record(5)]
    for number in range(TRIES_MAX):
        assert limit.rejected(one) == {}
        limit.too_large(one, "too large")
        limit.committed(1, 0.1, {"t": 5, "u": number + 1})
    assert list(limit.rejected(one)) == one


def test_the_limit_holds_until_what_was_too_much_is_behind() -> None:
    """Not only for the next transaction: the same record would be met in large ones again and again."""
    limit = BatchLimit(lambda quarantine: None)
    limit.too_large([record(at) for at in range(1000)], "too large")
    limit.committed(100, 0.1, {"t": 100})
    assert limit.records_max == 100
    limit.committed(100, 0.1, {"t": 999})
    assert limit.records_max == 100
    limit.committed(100, 0.1, {"t": 1000})
    assert 100 < limit.records_max <= BATCH[0]


def test_a_smaller_try_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause doubles while the cluster is away, and not while it answers that this is too much."""
    waits: list[float] = []
    driver = driver_with(10)
    troubles: list[Exception] = [
        *[TooMuch(Code.TOO_LARGE, "too large")] * 5,
        *[Abortable(Code.TRANSACTION_LOST, "lost")] * 5,
    ]

    class Troubled(SimulatedSession):
        def poll(self, count_max: int, timeout_s: float) -> Any:
            if troubles:
                raise troubles.pop(0)
            return super().poll(count_max, timeout_s)

    running = TaskLoop(
        0,
        lambda beat: elastic_task(RUNNER, Troubled(driver.log, RUNNER, 0), driver.codec, beat=beat, clock=Clock()),
        clock=Clock(),
    )
    for wait_s in running.life():
        if wait_s:
            waits.append(wait_s)
        elif running.offsets_next == {"runner.updates": 1}:
            running.stop()

    assert waits[:5] == [BACKOFF_FIRST_S] * 5
    assert waits[5:] == sorted(waits[5:])
    assert waits[-1] > BACKOFF_FIRST_S


def test_thousands_of_failures_in_a_row_end_nothing() -> None:
    """Neither of starts nor of transactions; two to the power of a thousand is no number of seconds."""
    driver = driver_with(10)
    starts, transactions = (
        iter([Retriable(Code.KAFKA_SILENT, "not now")] * 1_100),
        iter([Abortable(Code.TRANSACTION_LOST, "lost")] * 1_100),
    )

    class Away(SimulatedSession):
        def open(self) -> None:
            for trouble in starts:
                raise trouble
            super().open()

        def poll(self, count_max: int, timeout_s: float) -> Any:
            for trouble in transactions:
                raise trouble
            return super().poll(count_max, timeout_s)

    running = TaskLoop(
        0,
        lambda beat: elastic_task(RUNNER, Away(driver.log, RUNNER, 0), driver.codec, beat=beat, clock=Clock()),
        clock=Clock(),
    )
    waits: list[float] = []
    with capture_logs():
        for wait_s in running.life():
            if wait_s:
                waits.append(wait_s)
            elif running.offsets_next == {"runner.updates": 1}:
                running.stop()

    assert running.failure is None
    assert running.offsets_next == {"runner.updates": 1}
    assert len(waits) == 2_200
    assert max(waits) == BACKOFF_MAX_S
