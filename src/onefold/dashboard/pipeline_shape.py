"""Inputs, outputs and tables of a pipeline, for the diagram of the data flow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from onefold.operate import merge_sql, pipelines
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading


@dataclass(frozen=True)
class PipelineShape:
    """Topics and tables of a pipeline.

    Attributes:
        landed: outputs that the sink writes to tables.
        tables: (schema, name) of the sink's tables.
        problem: reason why the other attributes are unknown, in one sentence, or "".
    """

    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    landed: Sequence[str] = ()
    tables: Sequence[tuple[str, str]] = ()
    problem: str = ""


@functools.cache
def of(name: str) -> PipelineShape | None:
    """Shape of a pipeline; None for an unknown name. The first call imports the handler's module, and blocks meanwhile."""
    pipeline = pipelines.found().pipelines.get(name)
    if pipeline is None:
        return None
    try:
        topology = loading.load_topology(pipeline)
    except InvalidDeclaration as fault:
        return PipelineShape(problem=str(fault))
    outputs = tuple(topology.outputs)
    landed = tuple(topic for topic in outputs if topic not in pipeline.kafka_only)
    tables = [(name, *merge_sql.parts(table))[-2:] for table in merge_sql.written(pipeline)]
    return PipelineShape(tuple(topology.reads), outputs, landed, [(schema, table) for schema, table in tables])
