"""What a handler raises that it should not: one dead letter that names it, and the other records as if nothing were."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from onefold import Event, Output, Outputs, Topology
from onefold.error_codes import Code
from onefold.processor.core.errors import Refused, Retriable
from onefold.processor.loading import topology_of
from onefold.processor.runtime.batch_limit import TRIES_MAX
from onefold.testing import STEPS, TopologyDriver
from tests.support import coded

RUNNER = topology_of("runner")
POISON = 666
Handled = tuple[Any, Outputs]


def driver_with(topology: Topology, *distances: int) -> TopologyDriver:
    driver = TopologyDriver(topology)
    for number, distance in enumerate(distances, 1):
        value = {"user_id": 1, "distance_meters": distance, "timestamp_utc": number, "sequence_id": number, "run_id": 1}
        driver.send("runner.updates", value)
    return driver


def outcome(driver: TopologyDriver) -> tuple[Any, ...]:
    return driver.table("runner.stats"), len(driver.read("runner.messages")), driver.states()


def letters(driver: TopologyDriver) -> list[tuple[bytes | None, str]]:
    """Source and reason."""
    found = driver.records("runner.updates.dead")
    return [(headers["onefold-source"], (headers["onefold-reason"] or b"").decode()) for _, _, headers in found]


def bug(raised: Exception) -> None:
    raise raised


def line_of(function: Callable[..., Any], text: str) -> str:
    lines, start = inspect.getsourcelines(function)
    (at,) = [number for number, line in enumerate(lines, start) if text in line]
    return f"test_bugs.py:{at}"


def raises(state: Any, event: Event) -> Handled:
    if event.value.distance_meters == POISON:
        bug(ValueError("not that far"))
    return RUNNER.handle(state, event)


def fails_in_a_library(state: Any, event: Event) -> Handled:
    if event.value.distance_meters == POISON:
        dataclasses.replace(state, surely="not a field")  # here
    return RUNNER.handle(state, event)


def too_deep(state: Any, event: Event) -> Handled:
    if event.value.distance_meters == POISON:
        return too_deep(state, event)
    return RUNNER.handle(state, event)


def giving(outputs: Any) -> Callable[[Any, Event], Handled]:
    def handle(state: Any, event: Event) -> Handled:
        after, right = RUNNER.handle(state, event)
        return after, (*right, *outputs) if event.value.distance_meters == POISON else right

    return handle


def not_a_pair(state: Any, event: Event) -> Any:
    return None if event.value.distance_meters == POISON else RUNNER.handle(state, event)


MESSAGE = {"user_id": 1, "sequence_id": 1, "timestamp_utc": 1, "run_id": 1, "distance_meters": 1}
BUGS = {
    "raises": (raises, f"the handler raised ValueError: not that far ({line_of(bug, 'raise raised')})"),
    "in a library": (fails_in_a_library, f"({line_of(fails_in_a_library, '# here')})"),
    "too deep": (too_deep, "the handler raised RecursionError: "),
    "no such topic": (giving([("runner.nothing", {})]), "processing the record raised KeyError: 'runner.nothing'"),
    "no row": (giving([("runner.stats", {})]), "processing the record raised KeyError: 'run_id'"),
    "no key": (
        giving([Output("runner.messages", MESSAGE, key=b"1")]),  # type: ignore[arg-type]  # the bug
        "processing the record raised TypeError: the key of an",
    ),
    "no text": (
        giving([Output("runner.messages", MESSAGE, key="\ud800")]),
        "processing the record raised UnicodeEncodeError: ",
    ),
    "our header": (giving([Output("runner.messages", MESSAGE, headers=[("onefold-source", b"")])]), "the processor's"),
    "no pair": (not_a_pair, "processing the record raised TypeError: cannot unpack"),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_costs_one_dead_letter_that_names_it(name: str) -> None:
    """Type, message and line; the records around it are folded as if it had never been there, and nothing crashed."""
    handle, reason = BUGS[name]
    driver = driver_with(dataclasses.replace(RUNNER, handle=handle), 10, POISON, 20, POISON, 30)
    driver.run()

    assert [source for source, _ in letters(driver)] == [b"runner.updates/0/1", b"runner.updates/0/3"]
    assert all(reason in given for _, given in letters(driver)), letters(driver)
    assert driver.restarts == 0
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 60


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_the_same_dead_letters(step: str) -> None:
    """The handler raises the same again, whatever else is in the batch."""
    topology = dataclasses.replace(RUNNER, handle=raises)
    expected = driver_with(topology, 10, POISON, 20)
    expected.run()
    for hit in (1, 2):
        driver = driver_with(topology, 10, POISON, 20)
        driver.crash_at(step, hit)
        driver.run()
        assert letters(driver) == letters(expected)
        assert outcome(driver) == outcome(expected)


def test_many_such_records_are_found_in_one_look() -> None:
    """Not with a fold of the whole batch for each: half of five thousand would take minutes."""
    calls = [0]

    def counting(state: Any, event: Event) -> Handled:
        calls[0] += 1
        return raises(state, event)

    driver = driver_with(dataclasses.replace(RUNNER, handle=counting), *[10, POISON] * 1_000)
    driver.run()

    assert len(letters(driver)) == 1_000
    assert calls[0] <= 3 * 2_000


def test_a_bug_is_logged_once_with_its_traceback() -> None:
    """However many records come upon it."""
    driver = driver_with(dataclasses.replace(RUNNER, handle=raises), POISON, 10, POISON)
    with structlog.testing.capture_logs() as logged:
        driver.run()
        driver.send("runner.updates", {**MESSAGE, "distance_meters": POISON})
        driver.run()

    (line,) = [line for line in logged if line["log_level"] == "error"]
    assert line["record"] == "runner.updates/0/0"
    first, second, *_, last = line["stack"].splitlines()
    assert first.startswith("Traceback")
    assert second.endswith("in raises"), "it begins in the handler"
    assert last == "ValueError: not that far"


@pytest.mark.parametrize("where", ["key", "decode"])
def test_so_does_a_bug_before_the_handler(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(value: Any) -> int:
        return 1 if value.distance_meters != POISON else 1 // 0

    driver = driver_with(RUNNER, 10, POISON, 20)
    if where == "key":
        driver.topology = dataclasses.replace(RUNNER, key=key)
    else:
        decode = driver.codec.decode
        monkeypatch.setattr(driver.codec, "decode", lambda record: (value := decode(record), key(value))[0])
    driver.run()

    ((source, reason),) = letters(driver)
    assert source == b"runner.updates/0/1"
    assert "raised ZeroDivisionError: integer" in reason
    assert f"({line_of(key, 'return 1 if')})" in reason
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 30


@pytest.mark.parametrize(
    ("trouble", "times"),
    [
        (Retriable(Code.KAFKA_SILENT, "the registry is away"), 9),
        (MemoryError(), 9),
        (ConnectionError("refused"), 9),
        (ValueError(), 1),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_is_no_records_fault_is_not_blamed_on_one(trouble: Exception, times: int) -> None:
    """It ends the task, and the same record is folded well later. So does what is not raised a second time."""
    left = [trouble] * times

    def handle(state: Any, event: Event) -> Handled:
        if event.value.distance_meters == POISON and left:
            raise left.pop()
        return RUNNER.handle(state, event)

    driver = driver_with(dataclasses.replace(RUNNER, handle=handle), 10, POISON, 20)
    with pytest.raises(type(trouble)):
        driver.run()
    left.clear()
    driver.kill()
    driver.run()

    assert letters(driver) == []
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 30 + POISON


def test_memory_that_is_never_enough_for_a_record_sets_it_aside_in_the_end() -> None:
    """As every crash at one record alone."""

    def handle(state: Any, event: Event) -> Handled:
        if event.value.distance_meters == POISON:
            raise MemoryError
        return RUNNER.handle(state, event)

    driver = driver_with(dataclasses.replace(RUNNER, handle=handle), 10, POISON, 20)
    crashes = 0
    while True:
        try:
            driver.run()
            break
        except MemoryError:
            driver.kill()
            crashes += 1

    assert crashes == 2 + TRIES_MAX
    ((_, reason),) = letters(driver)
    assert "crashed 3 times" in reason
    assert driver.table("runner.stats")[1, 1]["total_meters"] == 30


def settling(before_poison: int) -> Topology:
    """Fails to emit a key's change from below so many metres to above."""

    def emit_change(key: str, before: Any, after: Any) -> Outputs:
        metres = [0 if state is None else state.runs[-1].total_meters for state in (before, after)]
        if metres[0] < before_poison <= metres[1]:
            raise LookupError(f"from {metres[0]} to {metres[1]}")
        return [("runner.messages", {**MESSAGE, "distance_meters": metres[1] - metres[0]})]

    def handle(state: Any, event: Event) -> Handled:
        return RUNNER.handle(state, event)[0], ()

    return dataclasses.replace(RUNNER, handle=handle, emit_change=emit_change)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_change_that_cannot_be_emitted_is_the_fault_of_its_last_record(at_once: bool) -> None:
    """Of the one after which it fails, be the others in the same transaction or in one before."""
    driver = driver_with(settling(50), 10, 20)
    if not at_once:
        driver.run()
    for number, metres in ((3, 30), (4, 10), (5, 40)):
        driver.send("runner.updates", {**MESSAGE, "sequence_id": number, "distance_meters": metres})
    driver.run()

    assert [source for source, _ in letters(driver)] == [b"runner.updates/0/2", b"runner.updates/0/4"]
    assert letters(driver)[0][1].startswith(f"the handler raised LookupError: from {0 if at_once else 30} to 60 (test_")
    assert sum(row["distance_meters"] for row in driver.read("runner.messages")) == 40


@pytest.mark.parametrize(
    "distances",
    [[POISON] * 100, [10] * 50 + [POISON] * 1_000 + [10]],
    ids=["every record of a batch", "very many in a row"],
)
def test_a_pipeline_that_fails_at_everything_sets_nothing_aside(distances: list[int]) -> None:
    """A new version with a bug would empty the topic into its dead letters: a person is asked, and nothing is lost."""
    driver = driver_with(dataclasses.replace(RUNNER, handle=raises), *distances)
    with coded.raises(Refused, Code.HANDLER_FAILS):
        driver.run()
    driver.kill()
    assert letters(driver) == []

    mended = TopologyDriver(RUNNER, log=driver.log)
    mended.run()
    assert len(mended.read("runner.messages")) == len(distances)


@pytest.mark.parametrize(
    "distances",
    [[POISON] * 99, [POISON] * 100 + [10], ([POISON] * 999 + [10]) * 2],
    ids=["a few", "not every one", "not in a row"],
)
def test_records_that_are_at_fault_do_not_stop_the_others(distances: list[int]) -> None:
    driver = driver_with(dataclasses.replace(RUNNER, handle=raises), *distances)
    driver.run()
    assert len(letters(driver)) == distances.count(POISON)
    assert len(driver.read("runner.messages")) == distances.count(10)
