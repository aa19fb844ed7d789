"""One pipeline of a running stack is paused, started over and resumed, and no process ends."""

import json

import pytest

from onefold.exit_codes import REFUSED
from tests.support.command_line import Onefold
from tests.support.waiting import eventually

PROCESSOR, SINK = "processor-runner-1", "sink-1"


def paused(onefold: Onefold, service: str) -> bool:
    return "runner is paused since " in str(onefold.services()[service]["detail"])


def rows(onefold: Onefold) -> int:
    ((found,),) = onefold.rows("SELECT count(*) FROM runner.messages")
    return int(found)


@pytest.mark.promise("one-pipeline-pauses")
def test_a_pipeline_is_paused_started_over_and_resumed_while_the_others_go_on(onefold: Onefold) -> None:
    """Also with a kill of its processor meanwhile: a pause outlives restarts."""
    onefold("produce", "runner.updates", "--count", "500", "--seed", "23")
    onefold.drained()
    sink = onefold.pid(SINK)
    onefold("reset", "runner", "--yes", code=REFUSED)  # while it runs

    assert " by " in onefold("pause", "runner", "--reason", "another rule")
    eventually(lambda: paused(onefold, PROCESSOR) and paused(onefold, SINK), 60, "both say so")
    found = onefold.status()
    assert (found["paused"].keys(), found["paused"]["runner"]["reason"]) == ({"runner"}, "another rule")
    before = rows(onefold)
    onefold("produce", "runner.updates", "--count", "500", "--seed", "24")
    onefold.kill(PROCESSOR)
    eventually(lambda: paused(onefold, PROCESSOR), 60, "the one that comes back says so")

    onefold("produce", "campaigns.sends", "--count", "300", "--seed", "25")
    eventually(lambda: onefold.status()["lag"]["campaigns"]["events"] == 0, 60, "another pipeline goes on")
    assert onefold.status()["lag"]["runner"]["events"] > 0
    assert rows(onefold) == before > 0

    onefold("reset", "runner", "--yes")
    assert rows(onefold) == 0
    assert "runner goes on" in onefold("resume", "runner")
    onefold.drained()
    assert onefold.status()["paused"] == {}
    assert rows(onefold) > before
    assert json.loads(onefold("verify", "runner", "--json"))["outcome"] == "valid"
    assert onefold.pid(SINK) == sink
