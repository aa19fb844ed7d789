"""The plan of a reset, shown before the reset; and the protocol for a pipeline's jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


class ResetJobs(Protocol):
    """The jobs of a pipeline, for a reset. Methods raise UserError.

    Attributes:
        queues: the topics of the jobs.
        topics: the topics of the workers: the topics beside the queues, and inputs that only the workers write.
        reports: the inputs in `topics`.
        groups: the consumer groups of the workers.
    """

    queues: Sequence[str]
    topics: Sequence[str]
    reports: Sequence[str]
    groups: Sequence[str]

    def leftovers(self, *, inputs: bool) -> Sequence[str]:
        """The actions of `start_over` outside of Kafka and PostgreSQL, a sentence each."""

    def start_over(self, *, inputs: bool, still: Callable[[], None]) -> None:
        """Remove the side effects of the jobs. Repeatable after any interruption.

        Args:
            inputs: whether the reset also deletes the inputs.
            still: raises UserError if the reset's session has ended; called immediately before each removal.
        """


@dataclass(frozen=True)
class ResetPlan:
    """The objects that a reset deletes or keeps.

    Attributes:
        topics: deleted topics, the changelog last, with their numbers of offsets; with inputs on request.
        group: the consumer group.
        tables: emptied tables, with the numbers of rows.
        kept: other tables of the pipeline's schema: no merge writes to them.
        positions: the number of ledger rows.
        inputs: the topics to process again from the beginning, with their numbers of offsets.
        replayed: input records that exist twice after the replay of dead letters.
        dropped: input records that were dead letters and were dropped.
        rebuilt: tables to fill by a rebuild, with the old rows until then.
        jobs: the numbers of pending and of finished jobs to forget, by queue.
        effects: the removals of side effects, a sentence each.
    """

    domain: str
    topics: Mapping[str, int]
    group: str
    tables: Mapping[str, int]
    kept: Sequence[str]
    positions: int
    inputs: Mapping[str, int]
    replayed: int
    rebuilt: Sequence[str] = ()
    jobs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    effects: Sequence[str] = ()
    dropped: int = 0

    def as_data(self) -> dict[str, Any]:
        """The plan as JSON data."""
        return asdict(self)
