"""The topics of a pipeline, with partitions and settings. This module imports no Kafka client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onefold import names
from onefold.pipelines import again_of, dead_of
from onefold.processor.core.topology import Topology
from onefold.processor.io.schemas import INPUT_BYTES_MAX
from onefold.processor.io.serde import OUTPUT_BYTES_MAX

# Keys and headers count too, and the key of a repartitioned record or dead letter may be as large as an input.
RECORD_BYTES_MAX = OUTPUT_BYTES_MAX + 2 * INPUT_BYTES_MAX
# A proposal may hold several outputs of the largest size and the state changes of their record.
DECISION_BYTES_MAX = 2 * RECORD_BYTES_MAX
_LARGE = {"max.message.bytes": str(RECORD_BYTES_MAX)}
# `verify` recomputes from these topics, so time deletes no record unless a user sets a retention.
_KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}
# Small segments, so that compaction really runs. Tombstones stay a day by default, longer than any restore.
_SMALL_SEGMENTS = {"segment.bytes": str(64 * 1024 * 1024)}
# A requeued job is acknowledged or given up within this time. The job's own message, or a person, also waits for the job.
_AGAIN_KEPT = {"retention.ms": str(7 * 24 * 3600 * 1000)}
_COMPACT = {"cleanup.policy": "compact", **_SMALL_SEGMENTS, "min.cleanable.dirty.ratio": "0.3"}


class Described(NamedTuple):
    """A topic that may be missing.

    Attributes:
        config: settings by Kafka's names. The brokers' defaults apply to all other settings.
    """

    partitions: int
    config: Mapping[str, str]


def of_pipeline(topology: Topology, partitions: int, *, inputs: bool, decisions: bool) -> dict[str, Described]:
    """Return the topics that must exist before processing.

    Args:
        inputs: include the input topics of other producers.
        decisions: include the decision log of a pipeline with replicas.
    """
    wanted = {topology.changelog: {**_COMPACT, **_LARGE}}
    wanted |= {topic: {**_KEEP, **_LARGE} for topic in topology.outputs}
    wanted |= {topic: {**_KEEP, **_LARGE} for topic in topology.dead.values()}
    if topology.order is not None:
        wanted[topology.order] = {**_KEEP, **_LARGE}
    if topology.ticks is not None:
        # An input that only the processors write.
        wanted[topology.ticks] = {**_KEEP, **_LARGE}
    if inputs:
        # Larger than the admission limit, so that a record over the limit becomes a dead letter and not a producer's error.
        wanted |= {topic: {**_KEEP, **_LARGE} for topic in topology.inputs}
    if decisions:
        # Small segments, since deletion frees whole segments only.
        wanted[topology.decisions] = {**_KEEP, **_SMALL_SEGMENTS, "max.message.bytes": str(DECISION_BYTES_MAX)}
    return {topic: Described(partitions, config) for topic, config in wanted.items()}


def of_pauses(pipeline: str) -> dict[str, Described]:
    """Return the topic of a pipeline's pauses."""
    return {names.pauses_topic(pipeline): Described(1, _COMPACT)}


def of_replays(topology: Topology) -> dict[str, Described]:
    """Return the topic of replay receipts, with one partition: all readers need the whole topic, and writes are rare."""
    return {topology.replays: Described(1, _KEEP)}


def of_queue(queue: str, partitions: int) -> dict[str, Described]:
    """Return the further topics of a queue: for retried jobs, and for records that are no jobs."""
    kept = {again_of(queue): _AGAIN_KEPT, dead_of(queue): _KEEP}
    return {topic: Described(partitions, {**how, **_LARGE}) for topic, how in kept.items()}
