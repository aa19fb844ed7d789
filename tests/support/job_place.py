"""A job queue under the test's clock, with rows of jobs."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from onefold.jobs.protocols import Effect
from onefold.jobs.worker import MessageOutcome, Worker
from tests.support.model_effect import worker_of
from tests.support.simulated_jobs import SimulatedQueue


@dataclass
class Place:
    """A queue under the test's clock, and rows; `worker` makes a further worker on both."""

    rows: Any
    now: float = 0.0
    queue: SimulatedQueue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = SimulatedQueue(lambda: self.now, Random(0), self.passes)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.rows.passes(seconds)

    def worker(self, effect: Effect, **more: Any) -> Worker:
        return worker_of(self.queue, self.rows.pending(), effect, **{"clock": lambda: self.now, **more})

    def drain(self, worker: Worker) -> list[MessageOutcome]:
        """Work until the queue is empty; returns the outcome of each message."""
        outcomes = list[MessageOutcome]()
        for _ in range(200):
            if not self.queue.left:
                return outcomes
            if (outcome := worker.work(2.5)) is not None:
                outcomes.append(outcome)
        raise AssertionError(f"{self.queue.left} messages are left: {outcomes}")
