"""What commands say of a topic that a pipeline writes to itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from onefold import exit_codes, pipelines
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.operate import check
from onefold.operate.pipelines import topology_with_input
from onefold.workloads import bank
from tests.support.coded import raises


def test_nobody_produces_to_a_topic_that_a_pipeline_feeds_itself() -> None:
    """It is not among the topics that are offered either."""
    assert topology_with_input("bank.transfers").name == "bank"
    with raises(UserError, Code.ARGUMENT_WRONG, "bank.deposits") as caught:
        topology_with_input("bank.deposits")
    assert caught.value.exit_code == exit_codes.USAGE
    with pytest.raises(UserError) as caught:
        topology_with_input("nothing.here")
    assert "bank.transfers" in (caught.value.hint or "")
    assert "bank.deposits" not in (caught.value.hint or "")


def test_a_workload_that_does_not_know_of_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its verdicts would take deposits for copies of something."""
    monkeypatch.chdir(tmp_path)
    pipeline = pipelines.find()["bank"]
    assert check.check(pipeline) == []
    monkeypatch.setattr(bank, "WORKLOAD", replace(bank.WORKLOAD, fed=()))
    findings = check.check(pipeline)
    assert any("do not agree whether bank.deposits is fed by bank itself" in finding for finding in findings)
