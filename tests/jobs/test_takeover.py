"""How soon a dead worker is taken over, by a real clock; and what waking is worth beside polling."""

import time
from random import Random
from typing import Any

import pytest

from onefold.jobs.worker import Limits, MessageOutcome
from tests.support.model_effect import Model, expected, job_of, worker_of
from tests.support.simulated_jobs import SimulatedQueue
from tests.support.waiting import eventually

TIMEOUT_S = 1.5


class Dies(BaseException):
    pass


@pytest.mark.parametrize("late_s", [20.0, pytest.param(1.0, marks=[pytest.mark.alone, pytest.mark.matrix])])
def test_takeover_within_the_time_out_and_a_second(postgres_rows: Any, late_s: float) -> None:
    """From the last thing that the dead one wrote; not before the time-out."""
    queue = SimulatedQueue(time.monotonic, Random(0), lambda seconds: None, lease_s=0.2)
    model, limits = Model([job_of("a", 1)]), Limits(timeout_s=TIMEOUT_S)
    queue.put(job_of("a", 1))

    def step(name: str) -> None:
        if name == "checkpointed":
            raise Dies

    try:
        worker_of(queue, postgres_rows.pending(), model, limits=limits, step=step).work(0.0)
    except Dies:
        died_at = time.monotonic()
    claimed_at = list[float]()

    def claimed(name: str) -> None:
        if name == "claimed":
            claimed_at.append(time.monotonic())

    successor = worker_of(queue, postgres_rows.pending(), model, limits=limits, step=claimed)
    eventually(lambda: successor.work(0.0) is MessageOutcome.DONE, 20, "the job is done")

    assert TIMEOUT_S - 0.1 <= claimed_at[0] - died_at <= TIMEOUT_S + late_s
    assert model.objects == expected([job_of("a", 1)])
