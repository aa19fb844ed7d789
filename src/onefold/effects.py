"""Effects: what a pipeline has done outside of Kafka and Postgres, such as a mail for each order.

A handler has no effects of its own. It writes a *job* into an output topic, with what it is about (`log_id`) and its turn
among those (`segment`, `entry`), and the pipeline declares who does them:

    [tool.onefold.pipelines.orders]
    jobs = {"orders.mails" = "shop.mails:MAILS"}

`MAILS` is an `Effect`, or a function of a `Context` that returns one. `onefold work` does the jobs: each at least once, those
of one `log_id` in order, and again from the last checkpoint when a worker dies. docs/jobs.md says what is promised.

`OnceEach` is the base of effects that are one call, without checkpoints. Other effects have all methods of `Effect`. `Job`,
`Place` and `Done` are what they are given, `Objects` is a store that they may write to, and `Refuse` is how they say that a job
can never be done. An effect whose pipeline may be started over by `onefold reset` has the methods of `StartsOver` too.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from onefold.jobs.context import Context
from onefold.jobs.protocols import Done, Effect, Job, Missing, Objects, Place, Refuse, StartsOver

__all__ = ["Context", "Done", "Effect", "Job", "Missing", "Objects", "OnceEach", "Place", "Refuse", "StartsOver"]


class OnceEach:
    """The base of an effect that is one call: give it `do(self, job)`, and all else is there.

    `do` returns what is worth keeping of it, as plain JSON data. It is called again when a worker dies before that is written
    down: so it should give whoever it calls a key by which a repeated call is recognised, such as `key(job)`.

    Attributes:
        ordered: whether the jobs of one `log_id` wait for one another.
    """

    ordered = True

    def do(self, job: Job) -> Any:
        """Do it. What it raises costs this job's log a wait, and is shown by `onefold status`."""
        raise NotImplementedError

    @staticmethod
    def key(job: Job) -> str:
        """A text that is the same for each try of a job, and another for each other job."""
        return f"{job.queue}/{job.log_id}/{job.place.segment}/{job.place.entry}"

    def before(self, job: Job, newest: Done | None) -> Sequence[Job] | None:
        """None are known: order is kept among jobs that have arrived."""
        return ()

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        """One, and its checkpoint is what came of it: whoever goes on from there does not do it again. So what cannot be kept of
        it is kept as a text: it is done, and must not be done again for that.
        """
        if state is None:
            yield {"result": _plain(self.do(job))}

    def finish(self, job: Job, state: Any) -> Any:
        """What `do` returned."""
        return state["result"]

    def stands(self, job: Job, result: Any) -> bool:
        """What is entered as done is believed."""
        return True


def _plain(result: Any) -> Any:
    """As JSON and PostgreSQL can keep it."""
    try:
        text = json.dumps(result, allow_nan=False, default=repr)
    except ValueError:
        text = json.dumps(repr(result))
    return json.loads(text.replace(r"\u0000", r"\ufffd"))
