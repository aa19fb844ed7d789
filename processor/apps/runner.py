"""Runner statistics: distance and time of each run, how the runner is doing, and every message once.

A device sends an update about every 30 seconds: metres since its last update, its own clock, and a sequence id that
counts the *user's* updates. Devices send an update twice, and send late ones.

The rule:

- An update is accepted when its sequence id is above the user's last accepted one. A repeat or a late one changes
  nothing (and is counted): whatever else it says, also another timestamp.
- Distance and time are those of one *run*. A new run id starts at zero metres and at its own first timestamp: a total
  over all runs that is filed under the last run's id would credit this morning's metres to this evening's run. The
  state remembers the user's 8 most recently updated runs, so that a watch which syncs two recorded runs alternately gets
  both right. A run that is not among those 8 starts as new.
- The time of a run is its latest timestamp less its first: a clock that steps back does not make a run shorter.
- The tendency compares pace now with pace before. Now is this update's metres over the time since the run's latest
  update; before is the interval before that. More than 5 % faster is "well done", more than 5 % slower "keep going",
  anything else, or nothing to compare, "good job". All in whole numbers, so that every replay says the same.

Outputs of an accepted update: the run's stats, the user's tendency (now and previous; "fine" before the first), and the
message itself. Dead letters: fields that break the contract, distances and timestamps out of range.
"""

from typing import Any

from msgspec import Struct

from onefold import Event, Outputs, Rejected, Topology

# Ten thousand kilometres in one update is no runner; the bound also keeps every sum far inside 64 bits.
DISTANCE_METERS_MAX = 10_000_000
# Whole numbers up to here are exact in every JSON reader; as milliseconds they reach 285,000 years either way.
TIMESTAMP_MAX = 2**53
# Two watches and a phone that sync late interleave a handful of runs; each one remembered costs about 100 bytes a user.
RUNS_REMEMBERED = 8
# Below 5 % a difference between two intervals of 30 seconds is the GPS, not the runner.
FASTER_PERCENT, SLOWER_PERCENT = 105, 95


# A state holds nothing that refers to it, so it can be in no cycle: out of the garbage collector's sight it is smaller.
class Run(Struct, gc=False):
    """One run so far. The interval is the last one that had a length in time; `interval_ms` 0 means none yet."""

    run_id: int
    total_meters: int
    timestamp_first: int
    timestamp_latest: int
    interval_meters: int = 0
    interval_ms: int = 0


class Runner(Struct, gc=False):
    """What is known of a user. `runs` has the most recently updated one last."""

    sequence_id_last: int
    tendency: str
    runs: list[Run]


def handle(runner: Runner | None, event: Event) -> tuple[Runner | None, Outputs]:
    """Take only sequence ids that move forward; a repeat changes nothing."""
    update = event.value
    _admit(update)
    if runner is None:
        runner = Runner(update.sequence_id - 1, "fine", [])
    elif update.sequence_id <= runner.sequence_id_last:
        return runner, ()
    before, others = _find(runner.runs, update.run_id)
    run = _advance(before, update)
    tendency = _tendency(before, run)
    return Runner(update.sequence_id, tendency, [*others, run]), _outputs(update, run, tendency, runner.tendency)


def _find(runs: list[Run], run_id: int) -> tuple[Run | None, list[Run]]:
    """The run, and the others that stay remembered beside it."""
    if runs and runs[-1].run_id == run_id:
        return runs[-1], runs[:-1]
    others = [run for run in runs if run.run_id != run_id]
    found = next((run for run in runs if run.run_id == run_id), None)
    return found, others[-(RUNS_REMEMBERED - 1) :]


def _admit(update: Any) -> None:
    if not 0 <= update.distance_meters <= DISTANCE_METERS_MAX:
        raise Rejected(f"distance_meters is {update.distance_meters}; it must be 0 to {DISTANCE_METERS_MAX}")
    if not -TIMESTAMP_MAX <= update.timestamp_utc <= TIMESTAMP_MAX:
        raise Rejected(f"timestamp_utc is {update.timestamp_utc}; it must be milliseconds within 2^53")
    if update.sequence_id < 0:
        raise Rejected(f"sequence_id is {update.sequence_id}; it must not be negative")


def _advance(run: Run | None, update: Any) -> Run:
    if run is None:
        return Run(update.run_id, update.distance_meters, update.timestamp_utc, update.timestamp_utc)
    total = run.total_meters + update.distance_meters
    elapsed = update.timestamp_utc - run.timestamp_latest
    if elapsed <= 0:
        return Run(run.run_id, total, run.timestamp_first, run.timestamp_latest, run.interval_meters, run.interval_ms)
    return Run(run.run_id, total, run.timestamp_first, update.timestamp_utc, update.distance_meters, elapsed)


def _tendency(before: Run | None, now: Run) -> str:
    """Metres over milliseconds, compared crosswise; the latest timestamp moves exactly when there is an interval now."""
    if before is None or not before.interval_ms or now.timestamp_latest == before.timestamp_latest:
        return "good job"
    pace_now = 100 * now.interval_meters * before.interval_ms
    pace_before = before.interval_meters * now.interval_ms
    if pace_now > FASTER_PERCENT * pace_before:
        return "well done"
    if pace_now < SLOWER_PERCENT * pace_before:
        return "keep going"
    return "good job"


def _outputs(update: Any, run: Run, tendency: str, previous: str) -> Outputs:
    user, sequence, run_id, timestamp = update.user_id, update.sequence_id, run.run_id, update.timestamp_utc
    stats = {
        "run_id": run_id,
        "user_id": user,
        "sequence_id": sequence,
        "total_meters": run.total_meters,
        "total_time_ms": run.timestamp_latest - run.timestamp_first,
    }
    doing = {
        "user_id": user,
        "sequence_id": sequence,
        "timestamp_utc": timestamp,
        "current": tendency,
        "previous": previous,
    }
    message = {
        "user_id": user,
        "sequence_id": sequence,
        "timestamp_utc": timestamp,
        "run_id": run_id,
        "distance_meters": update.distance_meters,
    }
    return ("runner.stats", stats), ("runner.tendency", doing), ("runner.messages", message)


TOPOLOGY = Topology(
    name="runner",
    inputs=("runner.updates",),
    key=lambda update: update.user_id,
    state=Runner,
    handle=handle,
    outputs={"runner.stats": ("run_id", "user_id"), "runner.tendency": ("user_id",), "runner.messages": None},
)
