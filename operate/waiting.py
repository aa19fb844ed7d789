"""What has been written for a row and has not landed: it is on the way, or it was set aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onefold.operate import lag, positions
from onefold.operate.identity import Identity
from onefold.operate.reading import LogReader, Place, Stored
from onefold.operate.rows import REJECTED_MAX, Rejected
from onefold.operate.settings import Settings
from onefold.operate.values import Values, header, printable
from onefold.processor.core.topology import Topology
from onefold.processor.runtime.dead_letters import REASON_HEADER

# What is behind is looked through so far, for all partitions together: a row that is on the way is usually among the next.
_RECORDS_MAX = 5_000
# Of each partition of a topic of dead letters, the newest.
_DEAD_MAX = 200


def set_aside(rejected: Sequence[Rejected], topics: Sequence[str], identity: Identity, values: Values) -> list[str]:
    """Of the records that the sink could not land, those of the row; and how many there are that nobody can read."""
    found, unreadable = [], 0
    for one in rejected:
        if one.place.topic not in topics:
            continue
        stored = Stored(one.place, 0, identity.key, one.value, ())
        fields, problem = values.fields(stored)
        if fields is None or problem is not None:
            unreadable += 1
        elif identity.has(stored, values):
            found.append(
                f"the sink rejected a record of this row, in onefold.rejected: {one.place}: {printable(one.reason)}"
            )
    if unreadable:
        most = " of the newest" if len(rejected) == REJECTED_MAX else ""
        found.append(
            f"{unreadable:,}{most} records in onefold.rejected of the sink {values.topology.name} cannot be read, and may be "
            f"of this row"
        )
    return found


def on_the_way(
    reader: LogReader,
    batches: Mapping[positions.Place, positions.LastBatch],
    topics: Sequence[str],
    identity: Identity,
    values: Values,
    origin: Place | None,
) -> list[str]:
    """What has not landed yet of the topics that make the table, as far as it is looked through. Raises `Silent`.

    Args:
        origin: of the row, if there is one: only its own partition is looked at then.
    """
    found: list[str] = []
    behind = looked = 0
    for topic in dict.fromkeys(topics):
        for partition in range(reader.partitions(topic)):
            if origin is not None and identity.key is not None and (topic, partition) != origin[:2]:
                continue
            batch = batches.get((topic, partition))
            if batch is None and origin is not None:
                continue  # nobody knows how far it has landed: somebody else made the row
            bounds = reader.bounds(topic, partition)
            start = max(bounds.start, batch.next_offset if batch is not None else 0)
            behind += max(0, bounds.end - start)
            end = min(bounds.end, start + _RECORDS_MAX - looked)
            if end <= start:
                continue
            looked += end - start
            of_row = [
                stored.place for stored in reader.read(topic, partition, start, end) if identity.has(stored, values)
            ]
            found += [f"a record of this row is in Kafka, and not in PostgreSQL yet: {place}" for place in of_row[-3:]]
    if behind and (not found or origin is None):
        beyond = f"; the first {looked:,} were looked through" if looked < behind else ""
        found.append(f"{behind:,} offsets of the topics that make this table are not written to PostgreSQL yet{beyond}")
    return found


def dead(reader: LogReader, topology: Topology, key: Mapping[str, str | None]) -> list[str]:
    """Of the newest dead letters those whose record had one of these texts as its Kafka key. Raises `Silent`."""
    keys = {value.encode() for value in key.values() if value is not None}
    found: list[str] = []
    for topic in topology.dead.values():
        for partition in range(reader.partitions(topic)):
            bounds = reader.bounds(topic, partition)
            start = max(bounds.start, bounds.end - _DEAD_MAX)
            for stored in reader.read(topic, partition, start, bounds.end) if start < bounds.end else ():
                if stored.key in keys:
                    reason = printable(header(stored, REASON_HEADER) or "no reason is given")
                    found.append(f"an input record with this key is a dead letter: {stored.place}: {reason}")
    return found[-3:]


def to_fold(domain: str, settings: Settings) -> list[str]:
    """Whether there are input records that the processor has not folded yet."""
    found = lag.of(domain, settings)
    if not found.input_events:
        return []
    most = "" if found.exact else "up to "
    what = "input record is" if found.input_events == 1 else "input records are"
    return [f"{most}{found.input_events:,} {what} not processed yet"]
