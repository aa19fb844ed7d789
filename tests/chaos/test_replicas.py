"""The bank with replicas on the whole stack: money moves while one of them is killed, or hangs, and somebody looks."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from onefold.chaos.nemeses.table import BOUNDS_OF_REPLICAS, PAUSE_S
from onefold.chaos.readers import LOOK_S
from onefold.pipelines import PROJECT_VARIABLE
from onefold.processor.io.static_member import ONE_BROKER_MS
from tests.support.command_line import Onefold
from tests.support.rebuilt import declare

pytestmark = [pytest.mark.broker, pytest.mark.postgres, pytest.mark.spark]

SECONDS = 5.0
NEMESES = ("kill-processor", "pause-processor")


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Onefold]:
    """A stack of the bank alone, two replicas."""
    onefold = Onefold(tmp_path_factory.mktemp("bank"))
    declare(onefold.home, "bank")
    onefold.environment[PROJECT_VARIABLE] = str(onefold.home)
    try:
        onefold("up")
        yield onefold
    finally:
        onefold("down", "--wipe", "--yes")


def suffer(bank: Onefold, nemesis: str) -> dict[str, Any]:
    """One run of it."""
    ran = bank.run("chaos", "--pipeline", "bank", "--nemesis", nemesis, "--seconds", str(SECONDS), "--json")
    outcome: dict[str, Any] = json.loads(ran.stdout)
    return outcome


@pytest.mark.alone
@pytest.mark.matrix  # from day to day tests/integration/test_bank.py
@pytest.mark.promise("replicas-in-time")
@pytest.mark.parametrize("nemesis", NEMESES)
def test_the_others_go_on_in_time(bank: Onefold, nemesis: str) -> None:
    """No money is missing in any snapshot. Nobody waits until the group has missed the one, and whoever is frozen is never waited
    for: both take longer than what is in time.
    """
    outcome = suffer(bank, nemesis)
    assert outcome["verdict"] == "valid", outcome
    assert outcome["broken"] == []
    assert outcome["events"] > 0
    assert tuple(outcome["bounds"].values()) == BOUNDS_OF_REPLICAS
    assert BOUNDS_OF_REPLICAS[0] < min(ONE_BROKER_MS / 1000, PAUSE_S)
    assert outcome["in_time"], outcome
    assert outcome["looks"] > SECONDS / LOOK_S / 10
