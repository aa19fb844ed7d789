"""How long jobs of one log take when they arrive in the wrong order: woken by their predecessors, and by their backoff alone.

All of them are pending, and their messages come the last one first. So each but the first is deferred, and waits. By turns:
as it is, where whoever ends a job puts the next one into the queue; and without that, where each is tried when its own wait is
over. The effect does nothing, so what is measured is the waiting, and the worker itself.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

from onefold.bench.environment import BenchmarkEnvironment
from onefold.jobs import topics
from onefold.jobs.loading import contract_of
from onefold.jobs.pending import PostgresPending
from onefold.jobs.protocols import Done, Job, Place
from onefold.jobs.queue import KafkaQueue
from onefold.jobs.worker import Limits, Outcome, Worker
from onefold.operate.pipelines import found
from onefold.processor.io.admin import connect

#: Whose queue is borrowed: its jobs need nothing but their log and their place.
PIPELINE, QUEUE = "sheets", "sheets.jobs"
# So many rounds of each, by turns.
ROUNDS = 3
_RECEIVE_S = 0.5
# With a backoff of up to a minute the last jobs may wait for a few of those.
_ROUND_S = 900.0


class _Nothing:
    """An effect that is done at once."""

    ordered = True

    def before(self, job: Job, newest: Done | None) -> Sequence[Job] | None:
        return ()

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        yield {}

    def finish(self, job: Job, state: Any) -> Any:
        return {}

    def stands(self, job: Job, result: Any) -> bool:
        return True


class _Unwoken(PostgresPending):
    """The same rows, of which nobody can see which one comes next."""

    def following(self, job: Job) -> Job | None:
        return None


def measure(environment: BenchmarkEnvironment, jobs: int, seed: int) -> dict[str, Any]:
    """Seconds of each round, and how often a job was looked at.

    Raises:
        RuntimeError: not all jobs were done in time.
    """
    topics.create(connect(environment.client), QUEUE)
    contract = contract_of(found()[PIPELINE], QUEUE)
    seconds: dict[str, list[float]] = {"woken": [], "by backoff": []}
    looks: dict[str, list[int]] = {"woken": [], "by backoff": []}
    dice = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    with closing(KafkaQueue(QUEUE, contract, environment.client, "bench")) as queue:
        for turn in range(ROUNDS):
            for name, rows in (("woken", PostgresPending), ("by backoff", _Unwoken)):
                environment.say(f"{name}: {jobs} jobs, the last one first")
                with closing(rows(environment.dsn, "bench", PIPELINE)) as pending:
                    took, outcomes = _round(queue, pending, f"{name}-{turn}", jobs, dice.random)
                seconds[name].append(round(took, 2))
                looks[name].append(sum(outcomes.values()))
    return {
        "jobs_of_one_log": jobs,
        "woken_s": seconds["woken"],
        "by_backoff_s": seconds["by backoff"],
        "messages_woken": looks["woken"],
        "messages_by_backoff": looks["by backoff"],
    }


def _round(
    queue: KafkaQueue, pending: PostgresPending, log_id: str, count: int, dice: Callable[[], float]
) -> tuple[float, Counter[Outcome]]:
    """From the first message on until all jobs are done."""
    for entry in range(count, 0, -1):
        job = Job(QUEUE, log_id, Place(0, entry))
        pending.add(job)
        queue.put(job)
    worker = Worker(queue, pending, _Nothing(), Limits(), clock=time.monotonic, dice=dice)
    outcomes: Counter[Outcome] = Counter()
    began = time.monotonic()
    while outcomes[Outcome.DONE] < count:
        outcome = worker.work(_RECEIVE_S)
        if outcome is not None:
            outcomes[outcome] += 1
        if time.monotonic() - began > _ROUND_S:
            raise RuntimeError(f"{outcomes[Outcome.DONE]} of {count} jobs were done within {_ROUND_S:.0f} s")
    return time.monotonic() - began, outcomes
