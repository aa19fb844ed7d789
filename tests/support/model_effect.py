"""An effect for tests of order: writes chunks named by content, each of which depends on the last.

Objects are named by the job and the content, as in a snapshot. Repeated or concurrent work gives the same objects; work in
the wrong order gives different ones.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from onefold.jobs.protocols import Done, Effect, Job, JobRows, Place, Queue
from onefold.jobs.worker import Limits, Worker

QUEUE = "model.jobs"
CHUNKS = 3


def job_of(log_id: str, entry: int) -> Job:
    return Job(QUEUE, log_id, Place(entry // 4, entry), {"log_id": log_id, "entry": entry})


def jobs_of(logs: int, each: int) -> list[Job]:
    """`each` jobs of each log, in order."""
    return [job_of(f"log-{log}", entry) for log in range(logs) for entry in range(1, each + 1)]


class Model:
    """An effect that records its work.

    Attributes:
        ordered: as in `Effect`.
        looks_back: whether the effect can read its log.
        objects: content by name.
        made_known: results of `finish`, by log and place.
        begun: number of starts of each job's steps.
    """

    def __init__(
        self, known: Sequence[Job], *, looks_back: bool = True, step: Callable[[str], None] = lambda name: None
    ) -> None:
        self.ordered = True
        self.looks_back = looks_back
        self.objects: dict[str, str] = {}
        self.made_known: dict[tuple[str, Place], str] = {}
        self.begun: dict[tuple[str, Place], int] = {}
        self._known = known
        self._step = step

    def before(self, job: Job, newest: Done | None) -> Sequence[Job] | None:
        after = newest.place if newest else Place(-1, -1)
        between = [one for one in self._known if one.log_id == job.log_id and after < one.place < job.place]
        return between if self.looks_back else ()

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        at = job.log_id, job.place
        self.begun[at] = self.begun.get(at, 0) + 1
        digest, written = (state["digest"], state["written"]) if state else (newest.result if newest else "", 0)
        while written < CHUNKS:
            digest = hashlib.sha256(f"{job.log_id} {job.place.entry} {written} {digest}".encode()).hexdigest()
            self.objects[digest] = f"{job.log_id}/{job.place.entry}/{written}"
            self._step("written")
            written += 1
            yield {"digest": digest, "written": written}

    def finish(self, job: Job, state: Any) -> Any:
        told = self.made_known.setdefault((job.log_id, job.place), state["digest"])
        assert told == state["digest"], "two workers came to different ends"
        return state["digest"]

    def stands(self, job: Job, result: Any) -> bool:
        return result in self.objects


def expected(jobs: Sequence[Job]) -> Mapping[str, str]:
    """Objects of these jobs, each done once and in order."""
    model, newest = Model(jobs), dict[str, Done]()
    for job in jobs:
        *_, last = model.steps(job, None, newest.get(job.log_id))
        newest[job.log_id] = Done(job.place, last["digest"])
    return model.objects


def worker_of(queue: Queue, pending: JobRows, effect: Effect, **more: Any) -> Worker:
    """A worker with short waits and constant jitter."""
    settings = {"clock": lambda: 0.0, "dice": lambda: 0.5, **more}
    limits = settings.pop("limits", Limits(timeout_s=10.0, first_s=0.5, longest_s=4.0))
    return Worker(queue, pending, effect, limits, **settings)
