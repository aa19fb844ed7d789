"""The topics of a pipeline: how many partitions each has, and how Kafka keeps it. No Kafka client is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from onefold import names
from onefold.pipelines import again_of, dead_of
from onefold.processor.core.topology import Topology
from onefold.processor.io.schemas import INPUT_BYTES_MAX
from onefold.processor.io.serde import OUTPUT_BYTES_MAX

# Keys and headers count too, and a repartitioned or dead record may have a key as large as an input.
RECORD_BYTES_MAX = OUTPUT_BYTES_MAX + 2 * INPUT_BYTES_MAX
# A proposal may hold a few outputs of the largest size, and what else one of their records changes.
DECISION_BYTES_MAX = 2 * RECORD_BYTES_MAX
_LARGE = {"max.message.bytes": str(RECORD_BYTES_MAX)}
# The log is the truth that `verify` recomputes from, so time deletes nothing from it unless somebody says so.
_KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}
# Small segments, so that compaction really happens; tombstones stay a day, longer than any restore takes.
_SMALL_SEGMENTS = {"segment.bytes": str(64 * 1024 * 1024)}
# A job that is put back is acknowledged or forgotten by then: each has a message of its own that waits for it, or a person.
_AGAIN_KEPT = {"retention.ms": str(7 * 24 * 3600 * 1000)}
_COMPACT = {"cleanup.policy": "compact", **_SMALL_SEGMENTS, "min.cleanable.dirty.ratio": "0.3"}


class Described(NamedTuple):
    """A topic that may be missing.

    Attributes:
        config: by Kafka's names; what is not in it is as the brokers are set.
    """

    partitions: int
    config: Mapping[str, str]


def of_pipeline(topology: Topology, partitions: int, *, inputs: bool, decisions: bool) -> dict[str, Described]:
    """The topics that are there before a record is processed.

    Args:
        inputs: also the input topics that others write.
        decisions: also the decision log, which a pipeline with replicas has.
    """
    wanted = {topology.changelog: {**_COMPACT, **_LARGE}}
    wanted |= {topic: {**_KEEP, **_LARGE} for topic in topology.outputs}
    wanted |= {topic: {**_KEEP, **_LARGE} for topic in topology.dead.values()}
    if topology.order is not None:
        wanted[topology.order] = {**_KEEP, **_LARGE}
    if topology.ticks is not None:
        # An input, but nobody else's: the processors write it.
        wanted[topology.ticks] = {**_KEEP, **_LARGE}
    if inputs:
        # Larger than admission allows, so that what is too large becomes a dead letter and not a producer's riddle.
        wanted |= {topic: {**_KEEP, **_LARGE} for topic in topology.inputs}
    if decisions:
        # What is deleted from it frees whole segments.
        wanted[topology.decisions] = {**_KEEP, **_SMALL_SEGMENTS, "max.message.bytes": str(DECISION_BYTES_MAX)}
    return {topic: Described(partitions, config) for topic, config in wanted.items()}


def of_pauses(pipeline: str) -> dict[str, Described]:
    """The topic of a pipeline's pauses."""
    return {names.pauses_topic(pipeline): Described(1, _COMPACT)}


def of_replays(topology: Topology) -> dict[str, Described]:
    """The topic of the receipts of replays. One partition: it is read as a whole, and seldom written."""
    return {topology.replays: Described(1, _KEEP)}


def of_queue(queue: str, partitions: int) -> dict[str, Described]:
    """The topics beside a queue's own: of jobs that are put back, and of records that are no jobs."""
    kept = {again_of(queue): _AGAIN_KEPT, dead_of(queue): _KEEP}
    return {topic: Described(partitions, {**how, **_LARGE}) for topic, how in kept.items()}
