"""Side effects of a pipeline outside of Kafka and PostgreSQL, such as a mail for each order.

A handler has no side effects. A handler writes a *job* into an output topic, with the job's subject (`log_id`) and the job's
place in the order of the subject (`segment`, `entry`). The pipeline declares the effect of the topic:

    [tool.onefold.pipelines.orders]
    jobs = {"orders.mails" = "shop.mails:MAILS"}

`MAILS` is an `Effect`, or a function of a `Context` that returns an `Effect`. `onefold work` executes each job at least once,
and the jobs of the same `log_id` in order. After a worker's crash, a job continues from its last checkpoint. docs/jobs.md
describes the guarantees.

`OnceEach` is the base class of effects with a single call and no checkpoints. An effect with checkpoints has all methods of
`Effect`. The methods get `Job`, `Place` and `Done`, may write to the store `Objects`, and raise `Refuse` for an impossible job.
If `onefold reset` may reset the effect's pipeline, the effect also has the methods of `StartsOver`.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from onefold.jobs.context import Context
from onefold.jobs.protocols import Done, Effect, Job, Missing, Objects, Place, Refuse, StartsOver

__all__ = ["Context", "Done", "Effect", "Job", "Missing", "Objects", "OnceEach", "Place", "Refuse", "StartsOver"]


class OnceEach:
    """The base class of an effect with a single call. A subclass only defines `do(self, job)`.

    `do` returns the result to store, as plain JSON data. If a worker dies before the result is written, `do` is called again.
    `do` should therefore pass an idempotency key, such as `key(job)`, to the called service.

    Attributes:
        ordered: Whether the jobs of the same `log_id` are executed in order.
    """

    ordered = True

    def do(self, job: Job) -> Any:
        """Execute the job. After an exception, the job is retried with backoff, and `onefold status` shows the error."""
        raise NotImplementedError

    @staticmethod
    def key(job: Job) -> str:
        """An idempotency key: equal for all attempts of a job, and different for different jobs."""
        return f"{job.queue}/{job.log_id}/{job.place.segment}/{job.place.entry}"

    def before(self, job: Job, newest: Done | None) -> Sequence[Job] | None:
        """Return (), so that only the jobs received so far are ordered."""
        return ()

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        """Call `do`, and yield its result as the only checkpoint. A worker that continues from the checkpoint does not call
        `do`.

        A result that is no JSON data becomes a text, because an error would repeat the executed job.
        """
        if state is None:
            yield {"result": _plain(self.do(job))}

    def finish(self, job: Job, state: Any) -> Any:
        """Return the result of `do`."""
        return state["result"]

    def stands(self, job: Job, result: Any) -> bool:
        """Return True: a job recorded as done counts as done."""
        return True


def _plain(result: Any) -> Any:
    """The result as data for JSON and PostgreSQL."""
    try:
        text = json.dumps(result, allow_nan=False, default=repr)
    except ValueError:
        text = json.dumps(repr(result))
    return json.loads(text.replace(r"\u0000", r"\ufffd"))
