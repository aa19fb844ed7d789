"""What a pipeline reads and writes, for the way of its records."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from onefold.operate import merges, pipelines
from onefold.pipelines import Faulty
from onefold.processor import loading


@dataclass(frozen=True)
class Shape:
    """Topics and tables of a pipeline.

    Attributes:
        landed: of the outputs, those that the sink lands.
        tables: (schema, name) of those that it writes to.
        problem: why the rest is not known, in one sentence, or "".
    """

    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    landed: Sequence[str] = ()
    tables: Sequence[tuple[str, str]] = ()
    problem: str = ""


@functools.cache
def of(name: str) -> Shape | None:
    """The shape of a pipeline; None when there is none of that name. The first time it imports the handler's module: blocks."""
    pipeline = pipelines.found().pipelines.get(name)
    if pipeline is None:
        return None
    try:
        topology = loading.load_topology(pipeline)
    except Faulty as fault:
        return Shape(problem=str(fault))
    outputs = tuple(topology.outputs)
    landed = tuple(topic for topic in outputs if topic not in pipeline.kafka_only)
    tables = [(name, *merges.parts(table))[-2:] for table in merges.written(pipeline)]
    return Shape(tuple(topology.reads), outputs, landed, [(schema, table) for schema, table in tables])
