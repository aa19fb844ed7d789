"""What a reset deletes, as it is shown before; and what it has to be told of a pipeline's jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


class ResetJobs(Protocol):
    """What a reset has to know of a pipeline's jobs. Methods raise UserError.

    Attributes:
        queues: the topics of its jobs.
        topics: what its workers write: beside the queues, and the inputs that nobody but they write.
        reports: these inputs.
        groups: the consumer groups of its workers.
    """

    queues: Sequence[str]
    topics: Sequence[str]
    reports: Sequence[str]
    groups: Sequence[str]

    def leftovers(self, *, inputs: bool) -> Sequence[str]:
        """What `start_over` would do outside of Kafka and PostgreSQL, a sentence each."""

    def start_over(self, *, inputs: bool, still: Callable[[], None]) -> None:
        """Remove what the jobs have made there; again after it was cut off anywhere.

        Args:
            inputs: those go too.
            still: raises UserError when the reset's session has ended; asked right before whatever is removed.
        """


@dataclass(frozen=True)
class ResetPlan:
    """What a reset deletes, and what it leaves.

    Attributes:
        topics: that are deleted, the changelog last, each with how many offsets it holds; inputs among them when asked for.
        group: the consumer group.
        tables: that are emptied, each with about how many rows it has.
        kept: other tables of the pipeline's schema: no merge writes to them.
        positions: rows of the ledger.
        inputs: the topics that are read from the beginning afterwards, with how many offsets each holds.
        replayed: records of the inputs that are there twice, because they were dead letters and were replayed.
        dropped: records of the inputs that were dead letters and were dropped.
        rebuilt: tables that keep their rows until they are rebuilt.
        jobs: by queue how many jobs are forgotten that are pending, and that are done.
        effects: what the effects of its jobs remove, a sentence each.
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
        """Ready for JSON."""
        return asdict(self)
