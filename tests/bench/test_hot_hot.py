"""The bench of gaps runs and says what it measured. How long they are depends on the machine."""

import json
from typing import Any

import pytest

from onefold.bench.follower import Follower
from onefold.bench.hot_hot import KillPlan
from onefold.bench.rows import gaps
from onefold.cli.commands.bench.hot_hot import command


def test_a_gap_is_the_longest_time_without_a_moment_of_a_partition() -> None:
    """Up to the end too; and a partition in which nothing happens has the whole time."""
    moments = {0: [1.0, 2.0, 4.0, 20.0], 1: [3.0, 3.5]}
    assert gaps(moments, 1.5, 5.0) == [2.0, 1.5, 1.5, 1.0, 0.5, 0.5]
    assert gaps({0: []}, 1.0, 5.0) == [4.0]


def test_longest_gaps_are_of_times_of_the_same_length() -> None:
    assert KillPlan(rate=100, seconds=5.0, kills=20).untouched_s == 20 * (1 + 5)
    assert KillPlan(rate=100, seconds=5.0, kills=20, stop=True).untouched_s == 20 * (3 + 5)
    assert KillPlan(rate=100, seconds=5.0, kills=20, untouched=7.0).untouched_s == 7


def test_who_follows_looks_at_the_clock_as_soon_as_there_is_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's client waits until it has all that it was asked for, or the time is over: so nobody waits for more than one."""
    follower = Follower({}, "runner.decisions", {}, 2)
    asked: list[tuple[int, float]] = []

    class Nothing:
        def consume(self, count: int, timeout_s: float) -> list[Any]:
            asked.append((count, timeout_s))
            if len(asked) > 10:
                follower._done.set()
            return []

        def close(self) -> None:
            pass

    monkeypatch.setattr(follower, "_consumer", lambda *_: Nothing())
    follower._follow()
    assert len(asked) > 10
    assert {count for count, timeout_s in asked if timeout_s > 0} == {1}


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.matrix
@pytest.mark.parametrize("stop", [False, True])
def test_gaps_are_measured_in_decisions_and_in_rows(stop: bool, capsys: pytest.CaptureFixture[str]) -> None:
    command(
        rate=100, seconds=1.0, kills=1, stop=stop, rows=True, warm_up=1.0, untouched=1.0, pipeline="runner", partitions=2,
        seed=1, as_json=True,
    )  # fmt: skip
    figures = json.loads(capsys.readouterr().out)["figures"]
    what = "stops" if stop else "kills"
    assert figures[what] == 1
    assert figures["elastic_p50_ms"] > 0
    assert 0 < figures[f"hot_hot_longest_gap_in_rows_without_{what}_ms"] <= 1_100, "no longer than somebody looked"
    assert figures[f"hot_hot_longest_gaps_in_rows_with_{what}_ms"][0] > 0
    assert figures[f"elastic_longest_gaps_in_rows_with_{what}_ms"][0] > 0, "by the same sink, from output topics"
    assert (figures["hot_hot_verify"], figures["elastic_verify"]) == ("valid", "valid")
    assert ("hot_hot_longest_start_ms" in figures) is not stop
    if stop:
        assert figures["elastic_longest_gaps_with_stops_ms"][0] > 2_000, (
            "nobody has the task of the one that is stopped"
        )
