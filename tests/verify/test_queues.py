"""Queues of jobs, which no table has: the judge works them out, and misses nothing that is lost, doubled or made up.

The real loop runs on the simulated log, with the sheets' rule or with a bug planted in it; the judge reads the log as it is.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from onefold import pipelines
from onefold.operate.check import check
from onefold.processor.apps import sheets as app
from onefold.processor.core.values import Event, Output
from onefold.testing import STEPS, TopologyDriver
from onefold.workloads import sheets
from onefold.workloads.shaping import Shape
from tests.support.judged import judged, records

pytestmark = pytest.mark.promise("jobs-are-found")

PARTITIONS = 3
Outcome = tuple[Any, list[Any]]


def play(handle: Callable[..., Any] = app.handle, crash: tuple[str, int] | None = None) -> TopologyDriver:
    """Three waves of generated input, some of it without keys and some of it broken."""
    driver = TopologyDriver(replace(app.TOPOLOGY, handle=handle), partitions=PARTITIONS)
    if crash:
        driver.crash_at(*crash)
    shape = Shape(keyless=0.1, hostile=0.05)
    for number, made in enumerate(sheets.generate(3, 900, shape=shape, sheets=2, alone=True)):
        driver.log.append(made.topic, made.key, made.value, partition=None if made.key else number % PARTITIONS)
        if number % 300 == 299:
            driver.run()
    return driver


def kinds(driver: TopologyDriver) -> set[tuple[str, str]]:
    return {(finding.kind, finding.where) for finding in judged(sheets.WORKLOAD, driver)[0]}


def test_sheets_are_judged_valid_and_every_job_is_accounted_for() -> None:
    findings, expected = judged(sheets.WORKLOAD, play())
    assert findings == []
    checks = {check.what: check for check in expected.fed.checks()}
    assert checks.keys() == {sheets.IMPORTS, sheets.JOBS, sheets.OBJECTS}
    assert all(check.expected == check.found > 3 for check in checks.values())
    assert all(expected.model.rows[table.name] for table in sheets.WORKLOAD.tables)
    assert expected.counts.repartitioned > 30
    assert expected.counts.dead > 30


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("hit", [1, 4, 9])
def test_after_a_crash_at_any_step_they_are_as_valid(step: str, hit: int) -> None:
    assert judged(sheets.WORKLOAD, play(crash=(step, hit)))[0] == []


def spoiled(topic: str, change: Callable[[Any], list[Any]]) -> Callable[..., Any]:
    """The sheets' rule, but for the third record that it writes to a topic."""
    count = 0

    def handle(state: Any, event: Event) -> Outcome:
        nonlocal count
        after, outputs = app.handle(state, event)
        spoilt: list[Any] = []
        for output in outputs:
            count += output[0] == topic
            spoilt += change(output) if output[0] == topic and count == 3 else [output]
        return after, spoilt

    return handle


def other(output: Any) -> list[Any]:
    """The same for another place in the log."""
    return [(output[0], {**output[1], "entry": output[1]["entry"] + 1})]


@pytest.mark.parametrize("topic", [sheets.JOBS, sheets.OBJECTS])
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda output: [], "missing output"),
        (lambda output: [output] * 2, "doubled output"),
        (other, "phantom output"),
    ],
    ids=["lost", "doubled", "changed"],
)
def test_a_job_that_is_not_what_it_should_be_is_found(
    topic: str, change: Callable[[Any], list[Any]], kind: str
) -> None:
    """And nothing else."""
    findings, _ = judged(sheets.WORKLOAD, play(spoiled(topic, change)))
    assert [(finding.kind, finding.where) for finding in findings] == [(kind, topic)]
    assert findings[0].source is not None


def test_a_row_that_is_not_what_it_should_be_is_found() -> None:
    for topic in ("sheets.entries", "sheets.snapshots"):
        assert ("different row", topic) in kinds(play(spoiled(topic, other)))


def careless(**fields: Any) -> Callable[..., Any]:
    """The sheets' rule with a state that forgets something, each time."""

    def handle(state: Any, event: Event) -> Outcome:
        after, outputs = app.handle(state, event)
        return after and msgspec.structs.replace(after, **fields), list(outputs)

    return handle


@pytest.mark.parametrize(
    ("forgets", "found"),
    [
        ({"asked": 0}, ("phantom output", sheets.JOBS)),
        ({"decided": ""}, ("phantom output", sheets.OBJECTS)),
        ({"decisions": 0}, ("phantom output", sheets.OBJECTS)),
        ({"waiting": ()}, ("extra dead letter", "sheets.finished.dead")),
        ({"edits": 0}, ("different row", "sheets.sheets")),
        ({"finished": 0}, ("different row", "sheets.sheets")),
    ],
    ids=str,
)
def test_a_rule_that_forgets_is_found(forgets: dict[str, Any], found: tuple[str, str]) -> None:
    assert found in kinds(play(careless(**forgets)))


def test_a_job_that_a_worker_puts_back_is_no_second_one() -> None:
    """It says the same as one that the pipeline wrote, and names no input record."""
    driver = play()
    for topic in (sheets.JOBS, sheets.OBJECTS):
        for key, value, _ in driver.records(topic)[:2]:
            driver.log.append(topic, key, value)
            driver.log.append(topic, key, value)
    findings, expected = judged(sheets.WORKLOAD, driver)
    assert findings == []
    assert all(check.expected == check.found for check in expected.fed.checks())


@pytest.mark.parametrize("raw", [None, b"no job"], ids=["a job", "no job"])
@pytest.mark.parametrize("header", ["onefold-source", "onefold-replays"])
def test_what_a_pipeline_that_reads_the_queue_puts_there_is_no_job(header: str, raw: bytes | None) -> None:
    """Workers take neither its copies nor its replays."""
    driver = play()
    for topic in (sheets.JOBS, sheets.OBJECTS):
        for key, value, _ in driver.records(topic)[:2]:
            place = f"{topic}/0/0".encode()
            signed = [(header, place), ("onefold-timestamp", b"1"), ("onefold-pipeline", b"cluster/next/life")]
            driver.log.append(topic, key, raw or value, headers=signed)
    findings, expected = judged(sheets.WORKLOAD, driver)
    assert findings == []
    assert all(check.expected == check.found for check in expected.fed.checks())


def test_a_job_that_somebody_makes_up_is_found() -> None:
    driver = play()
    (key, value, _), *_ = driver.records(sheets.JOBS)
    assert value is not None
    driver.log.append(sheets.JOBS, key, value[:-1] + b"\x02")
    driver.log.append(sheets.OBJECTS, key, b"{}")
    findings, _ = judged(sheets.WORKLOAD, driver)
    assert [(finding.kind, finding.where) for finding in findings] == [
        ("unreadable output", sheets.OBJECTS),
        ("phantom output", sheets.JOBS),
    ]
    assert "requeued" in findings[1].text


def test_a_queue_that_the_pipeline_does_not_write_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor can an input that it feeds be one: the judge reads that as an input."""
    pipeline = pipelines.find()["sheets"]
    assert check(pipeline) == []
    for topic in ("sheets.mails", sheets.IMPORTS):
        monkeypatch.setattr(sheets, "WORKLOAD", replace(sheets.WORKLOAD, queues=(topic,)))
        assert any(f"has the queue {topic}, which is no output" in finding for finding in check(pipeline))


@pytest.mark.parametrize("topic", [sheets.JOBS, sheets.OBJECTS])
def test_a_job_under_another_key_is_found(topic: str) -> None:
    """It lies in another partition: two workers have jobs of one log, in any order."""

    def moved(output: Any) -> list[Any]:
        return [Output(output[0], output[1], key="elsewhere")]

    (found,) = judged(sheets.WORKLOAD, play(spoiled(topic, moved)))[0]
    assert (found.kind, found.where) == ("phantom output", topic)
    assert found.columns["Kafka key"][1] == "elsewhere"


def test_a_job_in_another_partition_is_found() -> None:
    driver = play()
    right = records(driver, sheets.JOBS)[-1]
    wrong = (right.partition + 1) % PARTITIONS
    findings = judged(sheets.WORKLOAD, driver, moved={right[:3]: wrong})[0]
    assert [(found.kind, found.where) for found in findings] == [("wrong output", sheets.JOBS)]
    assert findings[0].columns == {"Kafka partition": (right.partition, wrong)}
