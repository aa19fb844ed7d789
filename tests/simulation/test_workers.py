"""Workers at random: killed, slow, late, two at one job, with every job delivered three times and in any order."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from onefold.jobs.protocols import Job, Message, PendingRow
from onefold.jobs.worker import Limits, MessageOutcome, Worker
from tests.support.model_effect import Model, expected, jobs_of
from tests.support.scheduler import Scheduler
from tests.support.simulated_jobs import SimulatedPending, SimulatedQueue

pytestmark = pytest.mark.promise("jobs-in-order")

WORKERS, LOGS, EACH = 3, 3, 4
TIMEOUT_S, LEASE_S = 10.0, 15.0
LIMITS = Limits(timeout_s=TIMEOUT_S, budget_s=20.0, first_s=0.5, longest_s=8.0)
# Of each step: that its worker is killed there, or sleeps for longer than anybody waits for it.
KILL_CHANCE, SLEEP_CHANCE = 0.05, 0.01
# Virtual time in which all is done: many take-overs one after the other.
PATIENCE_S = 2_000.0


class Killed(BaseException):
    """What a worker meets that is killed."""


class Rows(SimulatedPending):
    """Remembers how far each job's checkpoints were."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.went_back: list[str] = []

    def _put(self, row: PendingRow) -> int:
        before = self.find(row.job)
        if before is not None and before.state is not None and row.state["written"] < before.state["written"]:
            self.went_back.append(f"{row.job} from {before.state} to {row.state}")
        return super()._put(row)


@dataclass
class World:
    """A run of some workers by one seed."""

    seed: int
    rows: type[Rows] = Rows
    worker: type[Worker] = Worker
    limits: Limits = LIMITS
    looks_back: bool = True
    lost: bool = False  # of each log all messages but one of the last job
    jobs: list[Job] = field(default_factory=lambda: jobs_of(LOGS, EACH))
    kills: int = 0
    sleeps: int = 0

    def run(self) -> None:
        with Scheduler(self.seed) as scheduler:
            self.pending = self.rows(scheduler.monotonic)
            dice = random.Random(self.seed)
            self.queue = SimulatedQueue(scheduler.monotonic, dice, scheduler.pause, LEASE_S)
            self.model = Model(self.jobs, looks_back=self.looks_back, step=lambda name: self._step(scheduler, name))
            sent = [job for job in self.jobs if job.place.entry == EACH] if self.lost else self.jobs * 3
            for job in dice.sample(sent, len(sent)):
                self.queue.put(job)
            for number in range(WORKERS):
                scheduler.start(f"worker-{number}", lambda: self._live(scheduler))
            scheduler.run()

    def _live(self, scheduler: Scheduler) -> None:
        """One worker after the other, as a supervisor starts them."""
        while self.queue.left and scheduler.monotonic() < PATIENCE_S:
            worker = self.worker(
                self.queue,
                self.pending,
                self.model,
                self.limits,
                clock=scheduler.monotonic,
                dice=scheduler.dice.random,
                step=lambda name: self._step(scheduler, name),
            )
            try:
                while self.queue.left and scheduler.monotonic() < PATIENCE_S:
                    worker.work(1.0)
            except Killed:
                scheduler.pause(0.5)

    def _step(self, scheduler: Scheduler, name: str) -> None:
        scheduler.switch(name)
        thrown = scheduler.dice.random()
        if thrown < KILL_CHANCE:
            self.kills += 1
            raise Killed(name)
        if thrown < KILL_CHANCE + SLEEP_CHANCE:
            self.sleeps += 1
            scheduler.pause(2 * TIMEOUT_S)

    def wrong(self) -> list[str]:
        """Everything that is not as it should be in the end."""
        found = [f"{job} is not done" for job in self.jobs if self.pending.done(job) is None]
        found += [f"{job} is still pending" for job in self.jobs if self.pending.find(job) is not None]
        found += [f"{self.queue.left} messages are left"] * bool(self.queue.left)
        entered = {log: [job.place for job in self.pending.entered if job.log_id == log] for log in self._logs()}
        wanted = {log: [job.place for job in self.jobs if job.log_id == log] for log in self._logs()}
        found += [f"{log} was done in the order {entered[log]}" for log in wanted if entered[log] != wanted[log]]
        objects = expected(self.jobs)
        found += [f"{name} is an orphan" for name in self.model.objects.keys() - objects.keys()]
        found += [f"{name} is missing" for name in objects.keys() - self.model.objects.keys()]
        return [*found, *self.pending.went_back]

    def _logs(self) -> list[str]:
        return list(dict.fromkeys(job.log_id for job in self.jobs))


def ran(seed: int, **more: Any) -> World:
    world = World(seed, **more)
    world.run()
    return world


@pytest.mark.slow  # two thousand kills
def test_two_thousand_kills() -> None:
    """Every job is done, those of a log in order and without a gap, with one set of objects; no checkpoint goes back."""
    kills, sleeps, seed = 0, 0, 0
    while kills < 2000:
        world = ran(seed)
        assert world.wrong() == [], f"seed {seed}"
        kills, sleeps, seed = kills + world.kills, sleeps + world.sleeps, seed + 1
    assert sleeps > 200


def test_some_kills() -> None:
    """A few of the same, for every day; by a seed they come again."""
    worlds = [ran(seed) for seed in range(4)]
    assert [world.wrong() for world in worlds] == [[]] * 4
    assert sum(world.kills for world in worlds) > 50
    again = ran(3)
    assert (again.kills, again.pending.entered) == (worlds[3].kills, worlds[3].pending.entered)


@pytest.mark.promise("lost-messages-of-jobs")
def test_jobs_whose_messages_were_lost_are_done_all_the_same() -> None:
    """They are known from the log alone, and whoever puts them back may die between any two steps of it."""
    worlds = [ran(seed, lost=True) for seed in range(20)]
    assert [world.wrong() for world in worlds] == [[]] * len(worlds)
    assert sum(world.kills for world in worlds) > 250


class AnyIncrement(Rows):
    """Checkpoints of whoever comes, without the condition."""

    def checkpoint(self, job: Job, increment: int, state: object) -> int | None:
        now = self.find(job)
        return super().checkpoint(job, now.increment, state) if now is not None and now.active else None


class NeverTimesOut(Rows):
    """Who is active stays so."""

    def claim(self, row: PendingRow, timeout_s: float) -> int | None:
        return super().claim(row, float("inf"))


class Hasty(Worker):
    """Acknowledges what it has lost to somebody else."""

    def _busy(self, message: Message, outcome: MessageOutcome = MessageOutcome.BUSY) -> MessageOutcome:
        self._queue.acknowledge(message)
        return outcome


class Trusting(Worker):
    """Takes it that whatever is pending is in the queue."""

    def _put_again(self, earlier: PendingRow) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("off", "sign"),
    [
        ({"rows": AnyIncrement}, "to {"),
        ({"rows": NeverTimesOut}, "is not done"),
        ({"looks_back": False}, "was done in the order"),
        ({"worker": Hasty}, "is not done"),
        ({"worker": Trusting, "lost": True}, "is not done"),
    ],
    ids=["increment", "time-out", "log", "acknowledged", "unmet"],
)
def test_without_a_defence_it_goes_wrong(off: dict[str, Any], sign: str) -> None:
    """Which shows that these runs come to where each is needed."""
    assert any(sign in one for seed in range(20) for one in ran(seed, **off).wrong())
