"""The declaration of a pipeline, and the settings that differ from the defaults. Secrets are left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from onefold.config.setting_sources import DEFAULT, origins
from onefold.config.settings import PREFIX, Settings, files
from onefold.operate import merge_sql, pipelines
from onefold.pipelines import FOREVER, InvalidDeclaration
from onefold.processor import loading


class Line(NamedTuple):
    """A name, a value, and the source of the value or ""."""

    name: str
    value: str
    origin: str = ""


def declared(name: str, settings: Settings) -> Sequence[Line]:
    """List the declaration and topology of a pipeline, without empty entries. An invalid declaration gives none."""
    pipeline = pipelines.found()[name]
    try:
        topology = loading.load_topology(pipeline)
    except InvalidDeclaration:
        return ()
    replicas = settings.replicas_of(pipeline)
    kept_s = pipeline.decisions_kept_s
    tick = topology.tick
    lines = [
        Line("declared in", str(pipeline.declared_in)),
        Line("topology", pipeline.topology),
        Line("model", pipeline.workload or ""),
        Line("view", pipeline.view or ""),
        *(Line(f"key of {topic}", _named(key)) for topic, key in topology.keys.items()),
        Line("null values of inputs", topology.tombstones),
        Line("state", _named(topology.state)),
        Line("tick", f"every {tick.every_s:g} s" if tick else ""),
        *(
            Line(f"row of {topic}", ", ".join(row) if row else "every record")
            for topic, row in topology.outputs.items()
        ),
        Line("outputs that stay in Kafka", ", ".join(pipeline.kafka_only)),
        *(Line(f"jobs of {queue}", done_by) for queue, done_by in pipeline.jobs.items()),
        Line("tables", ", ".join(merge_sql.written(pipeline))),
        Line("after a dead letter", f"{topology.on_dead_letter} the later events of its key"),
        Line("replicas of each task", str(replicas)),
        Line(
            "decision log is kept", "" if replicas < 2 else "for ever" if kept_s in (None, FOREVER) else f"{kept_s} s"
        ),
    ]
    return [line for line in lines if line.value]


def changed(settings: Settings) -> Sequence[Line]:
    """List the settings that differ from the defaults, with secrets masked."""
    found = origins(settings, settings.running, files())
    return [
        Line(PREFIX + name.upper(), _text(one.value), one.where) for name, one in found.items() if one.where != DEFAULT
    ]


def _named(what: Any) -> str:
    return f"{what.__module__}.{getattr(what, '__qualname__', type(what).__qualname__)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return json.dumps(value) if isinstance(value, dict) else str(value)
