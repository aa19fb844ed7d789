"""Runner: updates of runners' devices, and the numbers that they must give.

Rules, in the judge's words. Per user, an update counts when its sequence id is above that of the last that counted.
Metres add up within a run; the time of a run is from the timestamp of its first update to the greatest timestamp so
far. Of each user the 8 runs that were updated last are known; a run that dropped out starts over. An update spans an
interval when its timestamp is beyond all earlier ones of its run: its metres, over the time since. More than 5 %
faster than the interval before is "well done", more than 5 % slower "keep going", and everything else "good job".

The generated input: users who run about every 30 seconds of their own time, some of them two runs at once that sync
alternately; updates sent twice (some with another timestamp the second time, as in the seed's test), updates that
arrive after later ones, runs that end and new ones that begin.
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
    """The rows that a log of updates must give."""

    def __init__(self) -> None:
        self._users: dict[int, _User] = {}
        self._stats = TrackedRows()
        self._tendency = TrackedRows()
        self._messages = TrackedRows()
        self.rows = {STATS.name: self._stats, TENDENCY.name: self._tendency, MESSAGES.name: self._messages}

    def key(self, value: dict[str, Any], source: Source) -> str:
        """Updates of one user belong together."""
        return str(value["user_id"])

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Count the update, unless it is a repeat or late."""
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
        """Rows are kept up to date all the time."""


class _Run:
    def __init__(self, first: int) -> None:
        self.metres, self.first, self.latest = 0, first, first
        self.interval: tuple[int, int] | None = None

    def add(self, metres: int, at: int) -> str:
        """Add an update; returns how it went."""
        self.metres += metres
        spent = at - self.latest
        if spent <= 0:
            return "good job"
        before, self.interval, self.latest = self.interval, (metres, spent), at
        if before is None:
            return "good job"
        # metres/spent against before, crosswise and times twenty: 21/20 is 5 % more, 19/20 is 5 % less.
        now, then = metres * before[1] * 20, before[0] * spent
        return "well done" if now > 21 * then else "keep going" if now < 19 * then else "good job"


class _User:
    def __init__(self) -> None:
        self.sequence = -1
        self.tendency = "fine"
        self._runs: dict[int, _Run] = {}

    def run(self, run_id: int, at: int) -> _Run:
        """The run, now the most recently updated one; the ninth drops out."""
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
# 2021-12-10, the day of the second seed; any would do.
_EPOCH_MS = 1_639_094_400_000
_NEW_RUN_SHARE = 0.01
# Every tenth user wears two watches, which sync one after the other.
_TWO_WATCHES = 10


# Updates of one user: an evening's run of 25 minutes. So 500,000 updates come from 10,000 users.
_UPDATES_A_USER = 50


def generate(seed: int, count: int, *, shape: Shape | None = None, users: int | None = None) -> Iterator[Input]:
    """`count` inputs; the same seed gives the same ones."""
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    updates = _updates(rng, users or max(1, count // _UPDATES_A_USER))
    return shaped(rng, count, updates, shape or Shape(), second_time=_another_timestamp)


def _updates(rng: random.Random, users: int) -> Iterator[Input]:
    """Without end; users take turns at random."""
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
    """The same update, but the device gives another time: a repeat is known by its sequence id and by nothing else."""
    head, _, tail = (update.value or b"").partition(b'"timestamp_utc": ')
    return update._replace(value=head + b'"timestamp_utc": -1' + tail[tail.index(b",") :])
