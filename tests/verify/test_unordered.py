"""The continuous verifier of a pipeline with several inputs whose recorded order does not have all records."""

import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from onefold.processor.core.values import Record
from onefold.processor.testing import SimulatedSession, driver
from onefold.verify.placement import partition_of
from onefold.verify.verdict import Finding
from onefold.workloads import averages, bank, runner, sheets
from onefold.workloads.shaping import Input, Shape
from tests.support.followed import PARTITIONS, Followed
from tests.verify.test_agreement_bounds import APPS

TOPIC = averages.WORKLOAD.inputs[0]
ORDER = f"{averages.WORKLOAD.name}.order"


def inputs() -> list[Input]:
    return [*averages.generate(1, 1600)]


def sent(made: list[Input]) -> Followed:
    followed = Followed(APPS[averages].TOPOLOGY, averages.WORKLOAD)
    followed.send(made)
    return followed


@pytest.mark.parametrize("began", ["before the order", "within the order"])
def test_what_was_processed_while_the_pipeline_had_one_input_is_not_called_wrong(began: str) -> None:
    """There is no order of it, so the model cannot take it. That is said for as long as it is so."""
    made = inputs()
    followed = sent(made[:800])
    followed.driver.send(TOPIC, b"junk", partition=0)
    followed.driver.run()
    followed.hidden |= {(ORDER, p, offset) for (_, p), end in followed.ends(ORDER).items() for offset in range(end)}
    if began == "within the order":
        followed.send(made[800:1200])
    followed.begin()
    assert followed.following.findings == []
    assert followed.following.unordered == f"the recorded merge order of {TOPIC}/0 is missing from offset 0 on"
    followed.send(made[1200:])
    assert followed.found() == []
    assert followed.following.unordered == f"the recorded merge order of {TOPIC}/0 is missing from offset 0 on"


def is_in_0(key: bytes) -> bool:
    return partition_of(key.decode(), PARTITIONS) == 0


class Losing(SimulatedSession):
    """Of a processor that reads past a record."""

    lost = (TOPIC, 0, -1)

    def poll(self, count_max: int, timeout_s: float) -> Sequence[Record]:
        return [one for one in super().poll(count_max, timeout_s) if one[:3] != self.lost]


@pytest.mark.parametrize("began", ["before", "behind"])
def test_the_first_record_of_an_input_that_was_read_past_is_named(began: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies before every run of its topic, as what was processed without an order does; the counts tell the two apart."""
    monkeypatch.setattr(driver, "SimulatedSession", Losing)
    monkeypatch.setattr(Losing, "lost", (TOPIC, 0, 0))
    made = inputs()
    followed = sent(made[:1] if began == "before" else made[:800])
    followed.begin()
    followed.send(made[1:] if began == "before" else made[800:])
    assert [(one.kind, one.source) for one in followed.found()] == [("skipped input", f"{TOPIC}/0/0")]
    assert followed.following.unordered == ""


@pytest.mark.promise("audit-names-wrong")
@pytest.mark.parametrize("began", ["before", "behind", "at last"])
def test_a_record_that_the_processor_has_read_past_is_named_and_no_other(
    began: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the verifier finds it when it begins, or later. What comes behind it is compared."""
    monkeypatch.setattr(driver, "SimulatedSession", Losing)
    made = inputs()
    followed = sent(made[:400])
    if began == "before":
        followed.begin()
    lost = (TOPIC, 0, followed.ends(TOPIC)[TOPIC, 0])
    monkeypatch.setattr(Losing, "lost", lost)
    followed.send([next(one for one in made[400:] if one.topic == TOPIC and one.key and is_in_0(one.key))])
    followed.send(made[400:800])
    if began == "behind":
        followed.begin()
    followed.send(made[800:])
    if began == "at last":
        followed.begin()
    assert [(one.kind, one.source) for one in followed.found()] == [("skipped input", f"{TOPIC}/0/{lost[2]}")]
    assert followed.following.unordered == ""
    assert followed.following.judged == sum(len(followed.driver.read(topic)) for topic in averages.WORKLOAD.outputs)
    assert followed.found() == [], "once"


@pytest.mark.promise("audit-names-wrong")
@pytest.mark.parametrize("began", ["before", "behind"])
@pytest.mark.parametrize("domain", APPS, ids=lambda domain: domain.WORKLOAD.name)
def test_each_record_that_was_lost_within_a_run_of_the_order_is_named(
    domain: ModuleType, began: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that changes no row, or whose changes a later record covers: the processor has counted one less."""
    monkeypatch.setattr(driver, "SimulatedSession", Losing)
    few = {bank: {"accounts": 20}, sheets: {"sheets": 2, "alone": True}}.get(domain, {})
    made = [*domain.generate(1, 100, shape=Shape(hostile=0.1, keyless=0.05), **few)]
    topic = domain.WORKLOAD.inputs[0]
    for lost in range(3, 100, 16):
        monkeypatch.setattr(Losing, "lost", (topic, 0, lost))
        followed = Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
        followed.send(made[:40])
        if began == "before":
            followed.begin()
        followed.send(made[40:80])
        if began == "behind":
            followed.begin()
        followed.send(made[80:])
        is_there = lost < followed.ends(topic)[topic, 0]
        kinds = {one.kind for one in followed.found()}
        assert kinds & {"wrong count", "skipped input"} if is_there else not kinds
        assert followed.found() == [], "once"


def test_counts_of_a_compacted_input_or_of_a_former_one_are_not_compared() -> None:
    """Records that the processor has counted may be gone from the one, and the model does not read the other."""
    followed = Followed(APPS[runner].TOPOLOGY, runner.WORKLOAD)
    followed.send(runner.generate(1, 100))
    followed.begin()
    changelog = followed.driver.topology.changelog
    told = json.loads(followed.last(changelog).value or b"{}")
    more = {**told, "counts": {**told["counts"], "ignored": told["counts"]["ignored"] + 1}}
    partition = followed.last(changelog).partition

    def found(progress: dict[str, Any], compacted: set[str]) -> list[Finding]:
        followed.driver.log.compacted = compacted
        followed.driver.log.append(changelog, b"p", json.dumps(progress).encode(), partition=partition)
        return followed.found()

    assert found(more | {"former_inputs": {"others": {"topic_id": "x", "next_offset": 1}}}, set()) == []
    assert found(more, {*runner.WORKLOAD.inputs}) == []
    assert found(told, set()) == []
    assert [(one.kind, one.where) for one in found(more, set())] == [("wrong count", changelog)]
    assert followed.found() == [], "once"
