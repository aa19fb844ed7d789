"""Runner statistics: the distance and time of each run, the runner's tendency, and every message once.

A device sends an update about every 30 seconds: the metres since its last update, its own clock, and a sequence id that counts
the *user's* updates. Devices also send repeated and late updates.

The rule:

- An update is accepted if its sequence id is above the user's last accepted sequence id. A repeated or late update changes
  nothing, regardless of its content, and is counted.
- Distance and time belong to a *run*. A new run id starts at zero metres and at its own first timestamp. A total over all runs
  under the last run's id would add the morning's metres to the evening's run. The state remembers the user's 8 most recently
  updated runs, so that a watch can alternately sync two recorded runs. Any older run starts as a new run.
- The time of a run is its latest timestamp minus its first timestamp. A clock that steps back does not make a run shorter.
- The tendency compares the present pace with the previous pace. The present pace is the update's metres over the time since
  the run's latest update, and the previous pace is the same for the interval before. More than 5 % faster is "well done",
  more than 5 % slower "keep going". Everything else, and a missing previous pace, is "good job". All values are whole numbers,
  so every replay gives the same result.

Outputs of an accepted update: the run's stats, the user's tendency (present and previous; "fine" before the first), and the
message itself. Dead letters: fields outside the schema, distances and timestamps out of range.
"""

from typing import Any

from msgspec import Struct

from onefold import Event, Outputs, Rejected, Topology

# No runner covers ten thousand kilometres in an update. The bound also keeps every sum far inside 64 bits.
DISTANCE_METERS_MAX = 10_000_000
# Every JSON reader has exact whole numbers up to 2^53.
TIMESTAMP_MAX = 2**53
# Enough for two watches and a phone with late syncs. A larger number would make the state larger.
RUNS_REMEMBERED = 8
# A difference of less than 5 % between two intervals of 30 seconds is within the accuracy of GPS.
FASTER_PERCENT, SLOWER_PERCENT = 105, 95


# States contain no reference cycles. Untracked by the garbage collector (gc=False), each state needs less memory.
class Run(Struct, gc=False):
    """The state of a run, with its last interval of nonzero length. `interval_ms` is 0 before the first interval."""

    run_id: int
    total_meters: int
    timestamp_first: int
    timestamp_latest: int
    interval_meters: int = 0
    interval_ms: int = 0


class Runner(Struct, gc=False):
    """The state of a user. `runs` ends with the most recently updated run."""

    sequence_id_last: int
    tendency: str
    runs: list[Run]


def handle(runner: Runner | None, event: Event) -> tuple[Runner | None, Outputs]:
    """Accept only updates with a higher sequence id. A repeat changes nothing."""
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
    """The run, and the remaining remembered runs."""
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
    """The tendency from metres over milliseconds, compared by cross-multiplication.

    The update has an interval exactly if the latest timestamp moved.
    """
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
