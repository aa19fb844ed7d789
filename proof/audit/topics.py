"""Which topics of a pipeline an auditor reads, and what for."""

from __future__ import annotations

from typing import NamedTuple

from onefold.proof.expect import Workload


class Topics(NamedTuple):
    """Names.

    Attributes:
        changelog: has the progress of each task.
        order: says in which order several inputs were folded; None: there is one.
        all: what a checkpoint is of.
        written: where results are.
    """

    changelog: str
    order: str | None
    all: list[str]
    written: list[str]


def topics_of(workload: Workload) -> Topics:
    """Those of a workload."""
    changelog = f"{workload.name}.changelog"
    order = f"{workload.name}.order" if len(workload.reads) > 1 else None
    results = [*workload.outputs, *(f"{topic}.dead" for topic in workload.reads), *([order] if order else [])]
    written = [*results, *workload.queues]
    return Topics(changelog, order, [*workload.reads, *written, changelog], written)
