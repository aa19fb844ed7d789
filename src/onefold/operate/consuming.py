"""Read the records of a topic, decoded with the pipeline's schemas: the newest, the records since a time, or new records."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from onefold.config.errors import SEE_STATUS, UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE, USAGE
from onefold.operate import pipelines
from onefold.operate.record_reader import LogReader, PartitionBounds, Silent, Stored
from onefold.operate.shown_values import Values, readable
from onefold.pipelines import InvalidDeclaration, Pipeline
from onefold.processor import loading
from onefold.processor.core.topology import Topology

# From one record to the next; a key may be rare.
PATIENCE_S = 60.0
# Immediate for a person, and little work for a broker.
_LOOK_AGAIN_S = 0.3

Wanted = Callable[[Stored], bool]


def consume(
    settings: Settings,
    topic: str,
    *,
    key: str | None = None,
    since_ms: int = 0,
    limit: int = 0,
    follow: bool = False,
    patience_s: float = PATIENCE_S,
) -> Iterator[dict[str, Any]]:
    """Read the committed records of a topic, as JSON values.

    Args:
        key: only records with this Kafka key, or with a value of this state key.
        since_ms: only records with this timestamp or a later one.
        limit: at most this number of records, the newest, ordered by timestamp; 0: all records, partition by partition.
        follow: continue with new records.
        patience_s: time limit from one record to the next.

    Raises:
        UserError: no pipeline has the topic, or Kafka does not have the topic or does not answer.
    """
    pipeline, topology = _owner(topic)
    decoded = Values(pipeline, topology, settings.schema_registry_url)

    def wanted(stored: Stored) -> bool:
        return stored.at_ms >= since_ms and (key is None or key in (_text(stored.key), decoded.key_of(stored)))

    with closing(LogReader(settings.usable_client(), patience_s)) as reader:
        try:
            if not (partitions := reader.partitions(topic)):
                raise UserError(Code.TOPIC_MISSING, f"Kafka has no topic {topic}", "`onefold migrate` makes it.")
            held = {number: _since(reader, topic, number, since_ms) for number in range(partitions)}
            if limit:
                newest = [_newest(reader, topic, number, bounds, wanted, limit) for number, bounds in held.items()]
                # Within a partition the order stays: its timestamps come from the producers.
                found: Iterator[Stored] = iter([*heapq.merge(*newest, key=lambda one: one.at_ms)][-limit:])
            else:
                found = (one for number, bounds in held.items() for one in _read(reader, topic, number, bounds, wanted))
            yield from (_shown(decoded, stored) for stored in found)
            while follow:
                for number, before in held.items():
                    held[number] = reader.bounds(topic, number, again=True)
                    come = PartitionBounds(max(before.end, held[number].start), held[number].end)
                    yield from (_shown(decoded, stored) for stored in _read(reader, topic, number, come, wanted))
                time.sleep(_LOOK_AGAIN_S)
        except Silent as silent:
            if silent.trouble is not None:
                raise UserError.of(silent.trouble) from None
            raise UserError(Code.KAFKA_SILENT, str(silent), SEE_STATUS, UNAVAILABLE) from None


def _owner(topic: str) -> tuple[Pipeline, Topology]:
    """The pipeline that writes or reads the topic, or owns it as an internal topic."""
    loaded: list[tuple[Pipeline, Topology]] = []
    for pipeline in pipelines.found().pipelines.values():
        try:
            loaded.append((pipeline, loading.load_topology(pipeline)))
        except InvalidDeclaration:  # `check` reports the fault; the topic may belong to another pipeline
            continue
    for named in (lambda of: of[1].outputs, lambda of: of[1].reads, lambda of: loading.own_topics(*of)):
        for found in loaded:
            if topic in named(found):
                return found
    raise UserError(
        Code.PIPELINE_UNKNOWN, f"{topic} is no topic of a pipeline", "`onefold ls` lists the topics.", USAGE
    )


def _since(reader: LogReader, topic: str, partition: int, since_ms: int) -> PartitionBounds:
    """The offsets in the partition from this time on."""
    bounds = reader.bounds(topic, partition)
    if not since_ms:
        return bounds
    start = reader.offset_at(topic, partition, since_ms)
    return PartitionBounds(bounds.end if start is None else min(max(start, bounds.start), bounds.end), bounds.end)


def _newest(
    reader: LogReader, topic: str, partition: int, bounds: PartitionBounds, wanted: Wanted, limit: int
) -> list[Stored]:
    found: list[Stored] = []

    def take(records: list[Stored]) -> bool:
        reader.begin_again()
        found[:0] = filter(wanted, records)
        return len(found) >= limit

    while len(found) < limit and bounds.end > bounds.start:
        bounds = PartitionBounds(bounds.start, reader.backwards(topic, partition, bounds, take).start)
    return found[-limit:]


def _read(reader: LogReader, topic: str, partition: int, bounds: PartitionBounds, wanted: Wanted) -> Iterator[Stored]:
    reader.begin_again()
    for stored in reader.read(topic, partition, bounds.start, bounds.end):
        reader.begin_again()
        if wanted(stored):
            yield stored


def _shown(decoded: Values, stored: Stored) -> dict[str, Any]:
    """The record as a JSON value. For an undecodable record: the bytes as text, and the problem."""
    fields, problem = decoded.fields(stored)
    shown = {**stored.place._asdict(), "at_ms": stored.at_ms, "key": _text(stored.key), "value": fields}
    if stored.headers:
        shown["headers"] = {name: _text(value) for name, value in stored.headers}
    return shown if problem is None else {**shown, "raw": readable(stored.value), "problem": problem}


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")
