"""The reset of a pipeline's jobs: removes the workers' records in Kafka, the jobs' rows, and the results of the effects.

Only an effect has the information about its results. An effect without the methods of `StartsOver` therefore prevents a reset
of the pipeline. A pipeline without a declaration of the inputs written by its workers also prevents a reset.
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
    """`onefold.operate.reset.plan.ResetJobs` of one pipeline, with the attributes documented there.

    Raises:
        UserError: the pipeline does not support a reset (exit code 3), its declaration is wrong, or a server of an effect does
            not respond.
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
        """Describe the actions of `start_over`, a sentence each."""
        found: list[str] = []
        for queue, effect in self._effects.items():
            with self._told(queue):
                found += effect.leftovers(inputs=inputs)
        return found

    def start_over(self, *, inputs: bool, still: Callable[[], None]) -> None:
        """Remove the results of the jobs. The effects' contexts call `still` before each write."""
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
        """Convert any exception of an effect into a `UserError` with the effect's name."""
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
