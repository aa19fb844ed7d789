"""Verification model of `runner`: updates from runners' devices, and the expected statistics.

The rules of the model: an update counts if its sequence id is above the user's last counting sequence id. Metres add up within
a run. The time of a run is from the timestamp of its first update to its greatest timestamp. The 8 last updated runs of each
user are known, and any older run starts again. An update has an interval if its timestamp is after all earlier timestamps of
its run: its metres, over the time since. More than 5 % faster than the previous interval is "well done", more than 5 % slower
"keep going", and everything else "good job".

The generated input has users with an update about every 30 seconds of their own time. Some users have two runs with alternating
syncs. Some updates are late or repeated, also with a different timestamp as in the seed's test. Runs end and new runs begin.
"""

import random
from collections.abc import Iterator
from typing import Any

from onefold.verify.decode import Inadmissible
from onefold.verify.expect import Table, Workload
from onefold.verify.models import TrackedRows
from onefold.verify.record import Source
from onefold.workloads.shaping import Input, Shape, shaped

TOPIC = "runner.updates"
RUNS_KNOWN = 8


STATS = Table("runner.stats", "runner.stats", ("run_id", "user_id"))
TENDENCY = Table("runner.tendency", "runner.tendency", ("user_id",))
MESSAGES = Table("runner.messages", "runner.messages", ("user_id", "sequence_id"))


class Model:
    """The expected rows for a log of updates."""

    def __init__(self) -> None:
        self._users: dict[int, _User] = {}
        self._stats = TrackedRows()
        self._tendency = TrackedRows()
        self._messages = TrackedRows()
        self.rows = {STATS.name: self._stats, TENDENCY.name: self._tendency, MESSAGES.name: self._messages}

    def key(self, value: dict[str, Any], source: Source) -> str:
        """The user, who identifies the state of an update."""
        return str(value["user_id"])

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Count the update, unless the update is repeated or late."""
        _admit(value)
        who, sequence, run_id = value["user_id"], value["sequence_id"], value["run_id"]
        user = self._users.get(who)
        if user is None:
            user = self._users[who] = _User()
        elif sequence <= user.sequence:
            return False
        at, metres = value["timestamp_utc"], value["distance_meters"]
        run = user.run(run_id, at)
        previous, user.tendency = user.tendency, run.add(metres, at)
        user.sequence = sequence
        self._stats[run_id, who] = (run_id, who, sequence, run.metres, run.latest - run.first), source
        self._tendency[who,] = (who, sequence, at, user.tendency, previous), source
        self._messages[who, sequence] = (who, sequence, at, run_id, metres), source
        return True

    def settle(self) -> None:
        """Do nothing, because `apply` keeps the rows up to date."""


class _Run:
    def __init__(self, first: int) -> None:
        self.metres, self.first, self.latest = 0, first, first
        self.interval: tuple[int, int] | None = None

    def add(self, metres: int, at: int) -> str:
        """Add an update, and return the tendency."""
        self.metres += metres
        spent = at - self.latest
        if spent <= 0:
            return "good job"
        before, self.interval, self.latest = self.interval, (metres, spent), at
        if before is None:
            return "good job"
        # Compares metres/spent with the previous interval by cross-multiplication: 21/20 is 5 % more, and 19/20 is 5 % less.
        now, then = metres * before[1] * 20, before[0] * spent
        return "well done" if now > 21 * then else "keep going" if now < 19 * then else "good job"


class _User:
    def __init__(self) -> None:
        self.sequence = -1
        self.tendency = "fine"
        self._runs: dict[int, _Run] = {}

    def run(self, run_id: int, at: int) -> _Run:
        """The run, moved to the end as the most recently updated run. The oldest of more than 8 runs is removed."""
        run = self._runs.pop(run_id, None) or _Run(at)
        self._runs[run_id] = run
        if len(self._runs) > RUNS_KNOWN:
            del self._runs[next(iter(self._runs))]
        return run


def _admit(value: dict[str, Any]) -> None:
    if value["sequence_id"] < 0:
        raise Inadmissible("sequence_id is negative")
    if value["distance_meters"] not in range(10_000_001):
        raise Inadmissible("distance_meters is not within 0 and 10,000,000")
    if abs(value["timestamp_utc"]) > 2**53:
        raise Inadmissible("timestamp_utc is beyond 2^53 milliseconds")


WORKLOAD = Workload("runner", (TOPIC,), (STATS, TENDENCY, MESSAGES), Model)

# --- input

_TEXT = b'{"user_id": %d, "distance_meters": %d, "timestamp_utc": %d, "sequence_id": %d, "run_id": %d}'
# 2021-12-10, the day of the second seed document. Any day is possible.
_EPOCH_MS = 1_639_094_400_000
_NEW_RUN_SHARE = 0.01
# Every tenth user has two watches with alternating syncs.
_TWO_WATCHES = 10


# The updates of a user, as in a run of 25 minutes.
_UPDATES_A_USER = 50


def generate(seed: int, count: int, *, shape: Shape | None = None, users: int | None = None) -> Iterator[Input]:
    """Generate `count` inputs. Equal seeds give equal inputs."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    updates = _updates(rng, users or max(1, count // _UPDATES_A_USER))
    return shaped(rng, count, updates, shape or Shape(), second_time=_another_timestamp)


def _updates(rng: random.Random, users: int) -> Iterator[Input]:
    """Yield updates without end, each of a random user."""
    draw, first_user = rng.random, 3000
    sequences, clocks = [0] * users, [_EPOCH_MS] * users
    runs = [1_000_000 + 2 * user for user in range(users)]
    runs_begun = runs[-1] + 2
    while True:
        user = int(draw() * users)
        chance = draw()
        if chance < _NEW_RUN_SHARE:
            runs[user] = runs_begun
            runs_begun += 2
        sequences[user] += 1
        clocks[user] += 29_000 + int(chance * 2_000)
        run = runs[user] + (sequences[user] & 1 if user % _TWO_WATCHES == 0 else 0)
        metres = 60 + int(draw() * 80)
        who = first_user + user
        yield Input(TOPIC, b"%d" % who, _TEXT % (who, metres, clocks[user], sequences[user], run))


def _another_timestamp(update: Input) -> Input:
    """The same update with a different time, because only the sequence id identifies a repeat."""
    head, _, tail = (update.value or b"").partition(b'"timestamp_utc": ')
    return update._replace(value=head + b'"timestamp_utc": -1' + tail[tail.index(b",") :])
