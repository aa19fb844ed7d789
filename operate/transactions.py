"""The processor's transaction behind an output record, as far as the changelog still tells.

The changelog is compacted: of progress records only the last one is kept for ever. So what was folded long ago may be known
only as "by this transaction, or by one before it".
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from onefold.operate.reading import LogReader, Place, Stored
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.runtime.changelog import STATE, Progress

# A transaction's states come before its progress; there are at most as many as it folded records.
RECORDS_MAX = 100_000
_BYTES_PER_RECORD = 160
# The progress of the transaction before lies two offsets before this one's first record: itself, and a marker.
_BACK = 20


@dataclass(frozen=True)
class Folded:
    """By what an input record was folded.

    Attributes:
        task: the partition number of the inputs.
        number: of the transaction, or with replicas of the version.
        at: the progress record in the changelog.
        at_ms: when, in milliseconds since 1970.
        exact: whether it was this one; False: this one or one before it, of which the changelog keeps nothing any more.
        inputs: per input topic the offset to read next, after it.
        state: the record of the key's state in it; None where it cannot be told.
        state_command: what shows that state, or "".
    """

    task: int
    number: int
    at: Place
    at_ms: int
    exact: bool
    inputs: dict[str, int]
    state: Place | None = None
    state_command: str = ""


def of_changelog(
    reader: LogReader,
    topology: Topology,
    source: Place,
    written_ms: int,
    key: str | None,
    records_max: int = RECORDS_MAX,
) -> Folded | str:
    """The transaction that folded the record at `source`, or why it is not known.

    Args:
        written_ms: when it wrote its output, in milliseconds since 1970: from there the changelog is read, and not from its
            beginning.
        key: of the state, where it is known.
        records_max: how many records are looked through, of the usual size.

    Raises:
        Silent: Kafka does not answer.
    """
    changelog, task = topology.changelog, source.partition
    if reader.partitions(changelog) <= task:
        return f"Kafka has no {changelog}/{task}, where the transactions are written down"
    bounds = reader.bounds(changelog, task)
    since = reader.offset_at(changelog, task, written_ms)
    start = max(bounds.start, (bounds.end if since is None else since) - _BACK)
    before: Progress | None = None
    state: Stored | None = None
    size = 0
    for record in reader.read(changelog, task, start, min(bounds.end, start + records_max)):
        size += record.size
        if record.key != PROGRESS_KEY:
            if key is not None and record.key == STATE + key.encode():
                state = record
        elif (progress := _progress(record)) is None:
            return f"the progress record at {record.place} cannot be read"
        elif progress.offsets_next.get(source.topic, 0) > source.offset:
            exact = progress.transactions == 1 or (
                before is not None and before.transactions == progress.transactions - 1
            )
            command = "" if state is None else _command(topology.name, key or "", state.place)
            return _folded(task, record, progress, exact, state if exact else None, command)
        else:
            before, state = progress, None
        if size > records_max * _BYTES_PER_RECORD:
            break
    return (
        f"{changelog}/{task} says nothing of it where it should: compaction has removed it, or it was read only in part"
    )


def _progress(record: Stored) -> Progress | None:
    try:
        return Progress.decode(record.value or b"")
    except ProcessorError:
        return None


def _command(domain: str, key: str, at: Place) -> str:
    return f"onefold state get {domain} {shlex.quote(key)} --at {at.partition}:{at.offset}"


def _folded(task: int, record: Stored, progress: Progress, exact: bool, state: Stored | None, command: str) -> Folded:
    inputs = dict(progress.offsets_next)
    at = state.place if state is not None else None
    return Folded(task, progress.transactions, record.place, record.at_ms, exact, inputs, at, command)
