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
        written: where results are: in a decision log when tables are filled from it.
        published: of these topics what is written is not read, for it is in the decision log.
        tells: says how far the processor is.
    """

    changelog: str
    order: str | None
    all: list[str]
    written: list[str]
    published: list[str]
    tells: str


def topics_of(workload: Workload, landed_from: str | None) -> Topics:
    """Those of a workload whose tables are filled from that decision log, or from the output topics."""
    changelog = f"{workload.name}.changelog"
    order = f"{workload.name}.order" if len(workload.reads) > 1 else None
    results = [*workload.outputs, *(f"{topic}.dead" for topic in workload.reads), *([order] if order else [])]
    read = [*workload.reads, *results, *workload.queues, changelog]
    if landed_from is None:
        return Topics(changelog, order, read, [*results, *workload.queues], [], changelog)
    # What is published of a decision log says nothing that the log does not.
    return Topics(changelog, order, [*read, landed_from], [landed_from], results, landed_from)
