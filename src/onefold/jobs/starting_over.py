"""What of a pipeline's jobs a reset removes: what its workers wrote to Kafka, their rows, and what their effects have made.

Effects are asked: nobody else knows what they have done. One that does not say how it is started over keeps its pipeline from
being started over, and so does a pipeline that does not say which of its inputs its workers write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from onefold.config.errors import UserError, first_line
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED
from onefold.jobs import topics
from onefold.jobs.context import Context
from onefold.jobs.loading import effect_of
from onefold.jobs.protocols import StartsOver
from onefold.operate.dead_letters.letters import said
from onefold.pipelines import Pipeline


class StartingOver:
    """`onefold.operate.reset.plan.Jobs` of one pipeline.

    Attributes: see there.

    Raises:
        UserError: it cannot be started over (exit code 3), its declaration is wrong, or a server of an effect is away.
    """

    def __init__(self, pipeline: Pipeline, context: Context) -> None:
        if pipeline.reports is None:
            raise UserError(
                Code.JOBS_WRONG,
                f"{pipeline.name} has jobs, and does not say which of its inputs its workers write: their reports of before would"
                " be taken for those of the new jobs",
                f"Add reports = [] to it in {pipeline.declared_in}, with these inputs in the list, and ask again.",
                REFUSED,
            )
        self.queues: Sequence[str] = [*pipeline.jobs]
        self.reports: Sequence[str] = pipeline.reports
        self.topics: Sequence[str] = [*pipeline.topics_of_workers, *self.reports]
        self.groups: Sequence[str] = [topics.group_of(queue) for queue in self.queues]
        self._pipeline, self._context = pipeline, context
        self._effects = {queue: self._effect(queue, context) for queue in self.queues}

    def leftovers(self, *, inputs: bool) -> Sequence[str]:
        """What `start_over` would do, a sentence each."""
        found: list[str] = []
        for queue, effect in self._effects.items():
            with self._told(queue):
                found += effect.leftovers(inputs=inputs)
        return found

    def start_over(self, *, inputs: bool, still: Callable[[], None]) -> None:
        """Remove what the jobs have made. What effects are made with asks `still` before each write."""
        for queue in self.queues:
            effect = self._effect(queue, self._context.held_by(still))
            still()
            with self._told(queue):
                effect.start_over(inputs=inputs)

    def _effect(self, queue: str, context: Context) -> StartsOver:
        named = self._pipeline.jobs[queue]
        with said({}):
            effect = effect_of(self._pipeline, queue, context)
        if not isinstance(effect, StartsOver):
            raise UserError(
                Code.JOBS_WRONG,
                f"the jobs of {queue} would be done again, and {named} does not say what becomes of what they did",
                "Give it the methods leftovers and start_over: `onefold docs jobs`, start over.",
                REFUSED,
            )
        return effect

    @contextmanager
    def _told(self, queue: str) -> Iterator[None]:
        """Effects are anybody's, and so is what they raise: a sentence that says whose it is."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                Code.JOBS_WRONG,
                f"{self._pipeline.jobs[queue]}, which does the jobs of {queue}, fails:"
                f" {type(error).__name__}: {first_line(error)}",
                "Run it again when that is mended: it goes on.",
            ) from error
