"""What a pipeline writes into inputs of its own: the judge works it out, and misses nothing that is lost, doubled or made up.

The real loop runs on the simulated log, with the bank's rule or with a bug planted in it; the judge reads the log as it is.
"""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from onefold.processor.apps import bank as app
from onefold.processor.core.values import Event, Output
from onefold.testing import STEPS, TopologyDriver
from onefold.verify.audit.owed import Owed
from onefold.verify.fed import Fed
from onefold.verify.record import Source
from onefold.workloads import bank
from onefold.workloads.shaping import Shape
from tests.support.judged import judged

PARTITIONS = 3
Outcome = tuple[Any, list[Any]]


def play(handle: Callable[..., Any] = app.handle, crash: tuple[str, int] | None = None) -> TopologyDriver:
    """Three waves of generated input, some of it without keys and some of it broken."""
    driver = TopologyDriver(replace(app.TOPOLOGY, handle=handle), partitions=PARTITIONS)
    if crash:
        driver.crash_at(*crash)
    shape = Shape(keyless=0.1, hostile=0.05)
    for number, made in enumerate(bank.generate(3, 600, shape=shape, accounts=12)):
        driver.log.append(made.topic, made.key, made.value, partition=None if made.key else number % PARTITIONS)
        if number % 200 == 199:
            driver.run()
    return driver


def test_the_bank_is_judged_valid_and_every_deposit_is_accounted_for() -> None:
    findings, expected = judged(bank.WORKLOAD, play())
    assert findings == []
    (queue,) = expected.fed.checks()
    assert (queue.what, queue.expected) == ("bank.deposits", queue.found)
    assert queue.found > 100
    assert expected.counts.repartitioned > 10
    assert expected.counts.dead > 10
    assert any(row[5] is not None for row, _ in expected.model.rows["bank.transfers"].values()), "money was sent back"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("hit", [1, 4, 9])
def test_after_a_crash_at_any_step_it_is_as_valid(step: str, hit: int) -> None:
    assert judged(bank.WORKLOAD, play(crash=(step, hit)))[0] == []


def spoiled(change: Callable[[list[Any]], list[Any]], at: int = 5) -> Callable[..., Any]:
    """The bank's rule, but for what one of its withdrawals puts into the queue."""
    count = 0

    def handle(account: Any, event: Event) -> Outcome:
        nonlocal count
        after, outputs = app.handle(account, event)
        queued = [output for output in outputs if output[0] == "bank.deposits"]
        others = [output for output in outputs if output[0] != "bank.deposits"]
        count += len(queued)
        return after, [*others, *(change(queued) if queued and count == at else queued)]

    return handle


def more(queued: list[Any]) -> list[Any]:
    fields = {**queued[0].fields, "amount": queued[0].fields["amount"] + Decimal(1)}
    return [queued[0]._replace(fields=fields)]


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda queued: [], {"missing output"}),
        (lambda queued: queued * 2, {"doubled output"}),
        (more, {"phantom output"}),
    ],
    ids=["lost", "doubled", "changed"],
)
def test_a_deposit_that_is_not_what_it_should_be_is_found(
    change: Callable[[list[Any]], list[Any]], kinds: set[str]
) -> None:
    """And nothing else: the ledgers are right, as far as the queue goes."""
    findings, _ = judged(bank.WORKLOAD, play(spoiled(change)))
    assert {finding.kind for finding in findings} == kinds
    assert [finding.where for finding in findings] == ["bank.deposits"]
    assert findings[0].source is not None
    if kinds == {"phantom output"}:
        ((right, wrong),) = findings[0].columns.values()
        assert wrong == right + 1


def test_a_refused_transfer_that_is_executed_is_found() -> None:
    """An account that may have less than nothing."""

    def generous(account: Any, event: Event) -> Outcome:
        after, outputs = app.handle(account, event)
        if not any(output[0] == "bank.refusals" and output[1]["reason"] == "insufficient_funds" for output in outputs):
            return after, list(outputs)
        rich = replace(account, balance=account.balance + 10**9)
        after, outputs = app.handle(rich, event)
        assert after is not None
        return replace(after, balance=after.balance - 10**9), list(outputs)

    findings, _ = judged(bank.WORKLOAD, play(generous))
    kinds = {"phantom output", "different row", "missing output"}  # the refusal is missing
    assert {finding.kind for finding in findings} == kinds
    assert any("insufficient_funds" in finding.text for finding in findings)


def test_a_deposit_that_somebody_else_has_written_is_found() -> None:
    """The engine cannot tell it from the pipeline's own; the judge can."""
    driver = play()
    (key, value, _), *_ = driver.records("bank.deposits")
    driver.log.append("bank.deposits", key, value)
    driver.run()
    findings, _ = judged(bank.WORKLOAD, driver)
    assert [(finding.kind, finding.where) for finding in findings] == [("phantom output", "bank.deposits")]
    assert "another program" in findings[0].text


def test_what_was_caused_is_matched_whichever_is_read_first() -> None:
    cause, fields = Source("bank.transfers", 0, 7), {"account": 1}
    for first, second in ((True, False), (False, True)):
        fed = Fed()
        for asked in (first, second):
            if asked:
                fed.ask("bank.deposits", fields, cause)
            else:
                fed.take("bank.deposits", "bank.deposits/1/2", fields, cause)
        assert list(fed.findings()) == []


def test_a_record_forwarded_within_the_queue_is_a_copy_and_no_second_deposit() -> None:
    """Its key is another than the account: it is copied home, and counted once."""

    def astray(account: Any, event: Event) -> Outcome:
        after, outputs = app.handle(account, event)
        return after, [Output(*output[:2], key="x") if output[0] == "bank.deposits" else output for output in outputs]

    findings, expected = judged(bank.WORKLOAD, play(astray))
    assert findings == []
    assert expected.counts.repartitioned > 80


DEPOSIT = {"account": 2, "amount": Decimal(1)}
WITHDRAWAL = Source("bank.transfers", 0, 7)
PLACES = [(topic, partition) for topic in bank.WORKLOAD.reads for partition in range(2)]
ENDS = dict.fromkeys(PLACES, 9)


def kinds(findings: Any) -> list[tuple[str, str]]:
    return [(one.kind, one.source or "") for one in findings]


def test_what_never_came_is_named_when_it_must_have_come_and_once() -> None:
    """It was asked for, and the inputs have been taken up to where they ended afterwards."""
    fed = Fed()
    owed = Owed(bank.WORKLOAD, fed)
    fed.ask("bank.deposits", DEPOSIT, WITHDRAWAL)
    assert owed.open(lambda: ENDS) == ENDS
    fed.ask("bank.deposits", DEPOSIT, WITHDRAWAL._replace(offset=8))
    assert kinds(owed.judge(dict.fromkeys(PLACES, 9) | {PLACES[0]: 8})) == []
    assert kinds(owed.judge(dict.fromkeys(PLACES, 9))) == [("missing output", "bank.transfers/0/7")]
    assert kinds(owed.judge(dict.fromkeys(PLACES, 99))) == [], "the later one was asked for after that"
    fed.take("bank.deposits", "bank.deposits/1/3", DEPOSIT, WITHDRAWAL._replace(offset=8))
    assert owed.open(lambda: ENDS) == ENDS
    assert kinds(owed.judge(dict.fromkeys(PLACES, 99))) == []


def test_a_record_is_judged_when_the_input_that_it_names_was_taken_and_once() -> None:
    fed = Fed({"jobs": 1})
    owed = Owed(replace(bank.WORKLOAD, queues=("jobs",)), fed)
    fed.ask("bank.deposits", DEPOSIT, WITHDRAWAL)
    for offset in (7, 8):
        other = {**DEPOSIT, "amount": Decimal(offset)}
        fed.take("bank.deposits", f"bank.deposits/1/{offset}", other, WITHDRAWAL._replace(offset=offset))
    fed.take("jobs", "jobs/0/0", DEPOSIT, None)
    assert kinds(owed.judge({PLACES[0]: 8, ("bank.transfers", 0): 8})) == [("phantom output", "bank.transfers/0/7")]
    assert owed.open(lambda: ENDS) == ENDS
    found = list(owed.judge(dict.fromkeys(PLACES, 9)))
    assert kinds(found) == [("phantom output", "bank.transfers/0/8"), ("phantom output", "")], "the job was never one"
    assert kinds(owed.judge(dict.fromkeys(PLACES, 99))) == []
