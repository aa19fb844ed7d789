"""The continuous verifier of a pipeline with several inputs whose recorded order does not have all records."""

from collections.abc import Sequence

import pytest

from onefold.processor.core.values import Record
from onefold.processor.testing import SimulatedSession, driver
from onefold.proof.placement import partition_of
from onefold.proof.workloads import averages
from onefold.proof.workloads.shaping import Input
from tests.proof.test_agreement_bounds import APPS
from tests.support.followed import PARTITIONS, Followed

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

    lost = -1

    def poll(self, count_max: int, timeout_s: float) -> Sequence[Record]:
        return [one for one in super().poll(count_max, timeout_s) if one[:3] != (TOPIC, 0, self.lost)]


@pytest.mark.parametrize("began", ["before", "behind"])
def test_the_first_record_of_an_input_that_was_read_past_is_named(began: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies before every run of its topic, as what was processed without an order does; the counts tell the two apart."""
    monkeypatch.setattr(driver, "SimulatedSession", Losing)
    monkeypatch.setattr(Losing, "lost", 0)
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
    monkeypatch.setattr(Losing, "lost", followed.ends(TOPIC)[TOPIC, 0])
    followed.send([next(one for one in made[400:] if one.topic == TOPIC and one.key and is_in_0(one.key))])
    followed.send(made[400:800])
    if began == "behind":
        followed.begin()
    followed.send(made[800:])
    if began == "at last":
        followed.begin()
    assert [(one.kind, one.source) for one in followed.found()] == [("skipped input", f"{TOPIC}/0/{Losing.lost}")]
    assert followed.following.unordered == ""
    assert followed.following.judged == sum(len(followed.driver.read(topic)) for topic in averages.WORKLOAD.outputs)
    assert followed.found() == [], "once"
