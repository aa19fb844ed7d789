"""The runner's rule, as a table: (state, event) -> (state, outputs)."""

from types import SimpleNamespace
from typing import Any

import pytest

from onefold.processor.apps.runner import DISTANCE_METERS_MAX, RUNS_REMEMBERED, Run, Runner, handle
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Event

MINUTE = 60_000
SEED_TIME = 1_509_559_388_000


def update(sequence: int, meters: int, timestamp: int, run: int = 1000, user: int = 1) -> Event:
    value = SimpleNamespace(
        user_id=user, distance_meters=meters, timestamp_utc=timestamp, sequence_id=sequence, run_id=run
    )
    return Event("runner.updates", 0, 0, value)


def fold(*events: Event, state: Runner | None = None) -> tuple[Runner | None, dict[str, list[dict[str, Any]]]]:
    produced: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        state, outputs = handle(state, event)
        for output in outputs:
            produced.setdefault(output[0], []).append(dict(output[1]))
    return state, produced


@pytest.mark.parametrize("previous", ["fine", "well done"])
def test_the_seeds_two_tests(previous: str) -> None:
    """150 m ten minutes ago and 120 m now are 270 m in ten minutes, once, whatever timestamp the duplicate has."""
    before = Runner(4, previous, [Run(1000, 150, SEED_TIME - 10 * MINUTE, SEED_TIME - 10 * MINUTE)])

    _, produced = fold(update(5, 120, SEED_TIME), update(5, 120, -1), state=before)

    assert [(s["total_meters"], s["total_time_ms"]) for s in produced["runner.stats"]] == [(270, 10 * MINUTE)]
    assert [(SEED_TIME, "good job", previous)] == [
        (t["timestamp_utc"], t["current"], t["previous"]) for t in produced["runner.tendency"]
    ]
    assert [message["timestamp_utc"] for message in produced["runner.messages"]] == [SEED_TIME]


def test_a_late_update_changes_nothing() -> None:
    """The very same state comes back, and no outputs."""
    state, _ = fold(update(7, 100, 0))

    assert (state, ()) == handle(state, update(6, 50, 1000))
    assert state is handle(state, update(6, 50, 1000))[0]


def test_a_new_run_starts_at_zero() -> None:
    """Metres and time of a run are its own; the sequence goes on."""
    _, produced = fold(update(1, 500, 0, run=1), update(2, 100, 5000, run=2), update(3, 100, 9000, run=2))

    assert [(s["run_id"], s["total_meters"], s["total_time_ms"]) for s in produced["runner.stats"]] == [
        (1, 500, 0),
        (2, 100, 0),
        (2, 200, 4000),
    ]


def test_interleaved_runs_keep_their_own_totals() -> None:
    """As many runs as are remembered may alternate."""
    runs = range(RUNS_REMEMBERED)
    events = [update(1 + turn * len(runs) + run, 10, turn * 1000, run=run) for turn in range(3) for run in runs]

    _, produced = fold(*events)

    assert [30] * len(runs) == [s["total_meters"] for s in produced["runner.stats"][-len(runs) :]]


def test_no_more_runs_are_remembered_than_said() -> None:
    """The state stays small however long a user runs."""
    state, _ = fold(*(update(run, 10, 0, run=run) for run in range(50)))

    assert state is not None
    assert list(range(50 - RUNS_REMEMBERED, 50)) == [run.run_id for run in state.runs]


def test_a_clock_that_steps_back_does_not_shorten_the_run() -> None:
    """Time is the latest timestamp less the first."""
    _, produced = fold(update(1, 10, 10_000), update(2, 10, 40_000), update(3, 10, 20_000))

    assert [s["total_time_ms"] for s in produced["runner.stats"]] == [0, 30_000, 30_000]


@pytest.mark.parametrize(
    ("meters", "tendency"),
    [(100, "good job"), (105, "good job"), (106, "well done"), (95, "good job"), (94, "keep going"), (0, "keep going")],
)
def test_tendency_is_pace_now_against_pace_before(meters: int, tendency: str) -> None:
    """100 m in the minute before; within 5 % is steady."""
    _, produced = fold(update(1, 7, 0), update(2, 100, MINUTE), update(3, meters, 2 * MINUTE))

    assert ["good job", "good job", tendency] == [t["current"] for t in produced["runner.tendency"]]
    assert [t["previous"] for t in produced["runner.tendency"]] == ["fine", "good job", "good job"]


def test_an_update_without_time_since_the_last_compares_nothing() -> None:
    """Two updates of one moment have no pace, and the interval before them stays the one to compare with."""
    state, produced = fold(update(1, 0, 0), update(2, 100, MINUTE), update(3, 900, MINUTE), update(4, 100, 2 * MINUTE))

    assert [t["current"] for t in produced["runner.tendency"]] == ["good job"] * 4
    assert state is not None
    assert state.runs[0].total_meters == 1100


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (update(1, -1, 0), "distance_meters"),
        (update(1, DISTANCE_METERS_MAX + 1, 0), "distance_meters"),
        (update(1, 1, 2**53 + 1), "timestamp_utc"),
        (update(1, 1, -(2**53) - 1), "timestamp_utc"),
        (update(-1, 1, 0), "sequence_id"),
    ],
)
def test_values_out_of_range_are_refused(event: Event, field: str) -> None:
    """The reason names the field."""
    with pytest.raises(Rejected, match=field):
        handle(None, event)
