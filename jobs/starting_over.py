"""What of a pipeline's jobs a reset removes: what its workers wrote to Kafka, their rows, and what their effects have made.

Effects are asked: nobody else knows what they have done. One that does not say how it is started over keeps its pipeline from
being started over, and so does a pipeline that does not say which of its inputs its workers write.
"""

from __future__ import annotations

from collections.abc import Sequence

from onefold.exit_codes import REFUSED
from onefold.jobs import topics
from onefold.jobs.context import Context
from onefold.jobs.loading import effect_of
from onefold.jobs.protocols import StartsOver
from onefold.operate.dead_letters import said
from onefold.operate.errors import UserError
from onefold.pipelines import Pipeline


class StartingOver:
    """`onefold.operate.reset.Jobs` of one pipeline.

    Attributes: see there.

    Raises:
        UserError: it cannot be started over (exit code 3), its declaration is wrong, or a server of an effect is away.
    """

    def __init__(self, pipeline: Pipeline, context: Context) -> None:
        if pipeline.reports is None:
            raise UserError(
                f"{pipeline.name} has jobs, and does not say which of its inputs its workers write: their reports of before would"
                " be taken for those of the new jobs",
                f"Add reports = [] to it in {pipeline.declared_in}, with these inputs in the list, and ask again.",
                REFUSED,
            )
        self.queues: Sequence[str] = [*pipeline.jobs]
        self.reports: Sequence[str] = pipeline.reports
        beside = [named(queue) for queue in self.queues for named in (topics.again_of, topics.dead_of)]
        self.topics: Sequence[str] = [*beside, *self.reports]
        self.groups: Sequence[str] = [topics.group_of(queue) for queue in self.queues]
        self._effects = [_of(pipeline, queue, context) for queue in self.queues]

    def leftovers(self, *, inputs: bool) -> Sequence[str]:
        """What `start_over` would do, a sentence each."""
        return [sentence for effect in self._effects for sentence in effect.leftovers(inputs=inputs)]

    def start_over(self, *, inputs: bool) -> None:
        """Remove what the jobs have made."""
        for effect in self._effects:
            effect.start_over(inputs=inputs)


def _of(pipeline: Pipeline, queue: str, context: Context) -> StartsOver:
    with said():
        effect = effect_of(pipeline, queue, context)
    if not isinstance(effect, StartsOver):
        raise UserError(
            f"the jobs of {queue} would be done again, and {pipeline.jobs[queue]} does not say what becomes of what they did",
            "Give it the methods leftovers and start_over: docs/jobs.md, starting over.",
            REFUSED,
        )
    return effect
