"""Read the state of a key from the changelog: now, or at an offset.

A key's state is the last committed record of the key in the changelog partition of its task, so the search runs backwards.
Compaction removes records that a later record of the same key has replaced. So a found record is right, because any removal
also removed all earlier records of the key. But an empty result may mean that compaction has removed the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from onefold.config.errors import SEE_STATUS, UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import pipelines
from onefold.operate.record_reader import LogReader, PartitionBounds, Silent, Stored
from onefold.operate.shown_values import readable
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.parking import Parked, inner
from onefold.processor.core.topology import Topology
from onefold.processor.runtime.changelog import STATE

# A changelog has one record for each key, plus records that are not yet compacted. A search through millions takes tens of
# seconds.
PATIENCE_S = 300.0

#: A callback for the topic partition being read, and the number of records so far.
Told = Callable[[str, int], None]


def _ignore(what: str, records: int) -> None:
    pass


@dataclass(frozen=True)
class KeyState:
    """The state of a key.

    Attributes:
        as_of: the last changelog offset that was searched; None: now.
        at: the state's record, as topic/partition/offset; None: not found.
        at_ms: when the record was written, in milliseconds since 1970.
        value: for JSON; None: forgotten, not found, or undecodable.
        raw: the bytes of an undecodable state, as text.
        note: a remark, or "".
        records_read: of the changelog.
    """

    domain: str
    key: str
    partition: int
    as_of: int | None
    at: str | None
    at_ms: int | None
    value: Any
    raw: str | None
    note: str
    records_read: int


def position(text: str) -> tuple[int | None, int]:
    """Parse `PARTITION:OFFSET` or `OFFSET` to (partition or None, offset). Raises UserError (exit code 2) for any other
    text.
    """
    partition, colon, offset = text.rpartition(":")
    numbers = [partition, offset] if colon else [offset]
    if not all(number.isascii() and number.isdigit() and len(number) <= 18 for number in numbers):
        raise UserError(
            Code.ARGUMENT_WRONG, f"{text!r} is no place in a changelog", "Write PARTITION:OFFSET, as in 0:1200.", USAGE
        )
    return (int(partition) if colon else None), int(offset)


def get(settings: Settings, domain: str, key: str, at: str | None = None, progress: Told = _ignore) -> KeyState:
    """The state of a key.

    Args:
        at: a text for `position`; None: now.
        progress: called while records are read.

    Raises:
        UserError: the pipeline or place does not exist, or Kafka does not answer.
    """
    (name,) = pipelines.checked([domain])
    try:
        topology = loading.load_topology(pipelines.found()[name])
        codec = loading.codec_of(topology, settings.schema_registry_url)
    except (InvalidDeclaration, ProcessorError) as fault:
        raise UserError(getattr(fault, "code", Code.PIPELINE_WRONG), str(fault), exit_code=USAGE) from None
    with closing(LogReader(settings.client(), PATIENCE_S)) as reader:
        try:
            partition, found, note = _last(reader, topology, key, at, progress)
        except Silent as silent:
            if silent.trouble is not None:
                raise UserError.of(silent.trouble) from None
            raise UserError(Code.KAFKA_SILENT, str(silent), SEE_STATUS) from None
    value, raw = None, None
    if found is not None and found.value is not None:
        try:
            state = codec.decode_state(topology, found.value)
            if isinstance(state, Parked):
                note = f"parked behind {state.at}: {state.waiting:,} of its events wait"
            value = None if inner(state) is None else json.loads(codec.encode_state(inner(state)))
        except (ProcessorError, ValueError) as error:
            raw, note = readable(found.value), str(error)
    where, at_ms = (None, None) if found is None else (str(found.place), found.at_ms)
    as_of = None if at is None else position(at)[1]
    return KeyState(topology.name, key, partition, as_of, where, at_ms, value, raw, note, reader.records)


def _last(
    reader: LogReader, topology: Topology, key: str, at: str | None, progress: Told
) -> tuple[int, Stored | None, str]:
    """(partition of the key, the last record of its state up to the offset, a remark)."""
    from onefold.processor.io.partitioner import partition_of

    changelog = topology.changelog
    partitions = reader.partitions(changelog)
    if not partitions:
        raise UserError(Code.TOPIC_MISSING, f"Kafka has no topic {changelog}", "`onefold migrate` makes the topics.")
    partition = partition_of(key, partitions)
    wanted, as_of = (None, None) if at is None else position(at)
    if wanted is not None and wanted != partition:
        raise UserError(
            Code.ARGUMENT_WRONG,
            f"the key {key} lives in partition {partition} of {changelog}, and not in {wanted}",
            exit_code=USAGE,
        )
    bounds = reader.bounds(changelog, partition)
    end = bounds.end if as_of is None else min(bounds.end, as_of + 1)
    found = reader.last(
        changelog,
        partition,
        PartitionBounds(bounds.start, max(bounds.start, end)),
        STATE + key.encode(),
        lambda: progress(f"{changelog}/{partition}, backwards", reader.records),
    )
    return partition, found, _note(found, bounds, as_of)


def _note(found: Stored | None, bounds: PartitionBounds, as_of: int | None) -> str:
    if as_of is not None and as_of >= bounds.end:
        return f"the changelog ends at offset {bounds.end}: this is the state of now"
    if found is None and as_of is not None:
        return (
            f"the changelog holds nothing of this key up to offset {as_of}: it had no state then, or compaction has removed "
            f"what a later record replaced"
        )
    if found is None:
        return "the changelog holds nothing of this key: it has no state, or was forgotten long ago"
    return "the key was forgotten there" if found.value is None else ""
