"""Topics of a pipeline, and the newest records of a topic. Calls block while Kafka answers: use a thread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from onefold.config.errors import SEE_STATUS, UserError
from onefold.config.guarantee import TopicSettings
from onefold.config.settings import Settings
from onefold.dashboard import pipeline_shape
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE
from onefold.operate import consuming, offsets, ping, pipelines, server_settings
from onefold.pipelines import FOREVER, Pipeline
from onefold.processor import loading
from onefold.processor.core.topology import Topology

#: Limits of a page and of a value's text, because a record may have a megabyte.
RECORDS_MAX, TEXT_MAX = 50, 2_000
# Kafka's share of the time that a person waits for a page.
PATIENCE_S = 5.0


class Span(NamedTuple):
    """Readable range of a partition: the first offset, and the offset after the last readable record."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Shown:
    """A topic of a pipeline.

    Attributes:
        role: the topic's role in the pipeline.
        topic: Kafka's description; None if Kafka has none.
        spans: ranges of the partitions; () if unknown.
    """

    name: str
    role: str
    topic: TopicSettings | None = None
    spans: Sequence[Span] = ()

    @property
    def offsets(self) -> int:
        """Upper bound of the records: markers, aborted and compacted records count too."""
        return sum(span.end - span.start for span in self.spans)

    @property
    def retention(self) -> str:
        """Retention as text."""
        config = self.topic.config if self.topic else {}
        if "compact" in config.get("cleanup.policy", ""):
            return "compacted"
        kept_ms = int(config.get("retention.ms", 0))
        size = int(config.get("retention.bytes", FOREVER))
        kept = "for ever" if kept_ms == FOREVER else f"{kept_ms / 3_600_000:,.4g} h" if kept_ms else ""
        return kept if size == FOREVER else f"{kept}, at most {size:,} bytes a partition"


@dataclass(frozen=True)
class Newest:
    """Newest records of a topic. `records`: the newest first."""

    shown: Shown
    records: Sequence[Record]


class Record(NamedTuple):
    """A record as texts.

    Attributes:
        value: JSON, or the bytes if the value cannot be decoded; long values are cut.
        problem: reason why the value cannot be decoded, or "".
        row: key of the record's row, for the page about the row; None without a row.
    """

    partition: int
    offset: int
    at_ms: int
    key: str | None
    value: str
    headers: Sequence[tuple[str, str | None]]
    problem: str = ""
    row: dict[str, str] | None = None


def of_pipeline(name: str, settings: Settings) -> list[Shown]:
    """List all topics of a pipeline: inputs, outputs and internal topics.

    Raises:
        InvalidDeclaration: the pipeline does not load.
        UserError: no Kafka is configured, or Kafka does not answer.
    """
    pipeline, topology = _loaded(name)
    roles = server_settings.roles_of(topology, replicated=settings.replicas_of(pipeline) > 1)
    spans = offsets.readable([topic for topic, _ in roles], settings)
    if spans is None:
        raise UserError(Code.KAFKA_SILENT, ping.why_silent(settings), SEE_STATUS, UNAVAILABLE)
    told = {one.name: one for one in server_settings.of_topics(roles, settings.client()).topics}
    return [
        Shown(
            topic,
            str(role),
            told.get(topic),
            [Span(number, *spans[place, number]) for place, number in sorted(spans) if place == topic],
        )
        for topic, role in dict(roles).items()
    ]


def newest(name: str, topic: str, settings: Settings) -> Newest | None:
    """Read the newest records of a pipeline's topic, decoded by schema; None: the pipeline has no such topic.

    Raises:
        InvalidDeclaration, UserError: as `of_pipeline`; UserError also if Kafka does not have the topic.
    """
    pipeline, topology = _loaded(name)
    shown = next((one for one in of_pipeline(name, settings) if one.name == topic), None)
    if shown is None:
        return None
    row = topology.outputs.get(topic) if topic in _tables(pipeline) else None
    found = consuming.consume(settings, topic, limit=RECORDS_MAX, patience_s=PATIENCE_S)
    return Newest(shown, [_record(one, row) for one in found][::-1])


def _loaded(name: str) -> tuple[Pipeline, Topology]:
    pipeline = pipelines.found()[name]
    return pipeline, loading.load_topology(pipeline)


def _tables(pipeline: Pipeline) -> set[str]:
    shape = pipeline_shape.of(pipeline.name)
    return {f"{schema}.{table}" for schema, table in shape.tables} if shape else set()


def _record(found: dict[str, Any], row: tuple[str, ...] | None) -> Record:
    fields = found["value"]
    value = json.dumps(fields, ensure_ascii=False) if "problem" not in found else str(found.get("raw"))
    key = {column: fields.get(column) for column in row} if row and isinstance(fields, dict) else None
    return Record(
        found["partition"],
        found["offset"],
        found["at_ms"],
        found["key"],
        value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}\N{HORIZONTAL ELLIPSIS}",
        [*found.get("headers", {}).items()],
        found.get("problem", ""),
        {column: str(part) for column, part in key.items() if part is not None} if key else None,
    )
