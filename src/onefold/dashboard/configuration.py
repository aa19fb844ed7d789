"""How a pipeline is declared, and which settings of Onefold are not the defaults: no secret is in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from onefold.config.origins import DEFAULT, origins
from onefold.config.settings import PREFIX, Settings, files
from onefold.operate import merges, pipelines
from onefold.pipelines import FOREVER, Faulty
from onefold.processor import loading


class Line(NamedTuple):
    """A thing, its value, and where the value is from, or ""."""

    name: str
    value: str
    origin: str = ""


def declared(name: str, settings: Settings) -> Sequence[Line]:
    """The declaration of a pipeline, and what its topology says, without what it leaves out; none where it does not load."""
    pipeline = pipelines.found()[name]
    try:
        topology = loading.load_topology(pipeline)
    except Faulty:
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
        Line("tables", ", ".join(merges.written(pipeline))),
        Line("after a dead letter", f"{topology.on_dead_letter} the later events of its key"),
        Line("replicas of each task", str(replicas)),
        Line(
            "decision log is kept", "" if replicas < 2 else "for ever" if kept_s in (None, FOREVER) else f"{kept_s} s"
        ),
    ]
    return [line for line in lines if line.value]


def changed(settings: Settings) -> Sequence[Line]:
    """The settings that somebody made, without their secrets."""
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
