"""The processor's transaction that processed an input record, as far as the changelog still has it.

The changelog is compacted: of progress records only the last one is kept for ever. So of an old record it may be known only
that this transaction, or one before it, processed it.
"""

from __future__ import annotations

import shlex

from onefold.operate.explain.explanation import Folded
from onefold.operate.record_reader import LogReader, RecordPlace
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.runtime.changelog import STATE, TaskProgress

# A transaction's states come before its progress; there are at most as many as the records that it processed.
_RECORDS_MAX = 100_000
_BYTES_MAX = 16_000_000
# The progress of the transaction before lies two offsets before this one's first record: itself, and a marker.
_BACK = 20


def of_changelog(
    reader: LogReader, topology: Topology, source: RecordPlace, written_ms: int, key: str | None
) -> Folded | str:
    """Find the transaction that processed the record at `source`, or say why it is not known.

    Args:
        written_ms: the time of its output, in milliseconds since 1970. The changelog is read from there.
        key: of the state, where it is known.

    Raises:
        Silent: Kafka does not answer.
    """
    changelog, task = topology.changelog, source.partition
    if reader.partitions(changelog) <= task:
        return f"Kafka has no {changelog}/{task}, where the transactions are written down"
    bounds = reader.bounds(changelog, task)
    since = reader.offset_at(changelog, task, written_ms)
    start = max(bounds.start, (bounds.end if since is None else since) - _BACK)
    before: int | None = None
    state: RecordPlace | None = None
    size = 0
    for record in reader.read(changelog, task, start, min(bounds.end, start + _RECORDS_MAX)):
        size += record.size
        if record.key != PROGRESS_KEY:
            if key is not None and record.key == STATE + key.encode():
                state = record.place
            continue
        try:
            progress = TaskProgress.decode(record.value or b"")
        except ProcessorError:
            return f"the progress record at {record.place} cannot be read"
        number = progress.transactions
        if progress.offsets_next.get(source.topic, 0) > source.offset:
            exact = number == 1 or before == number - 1
            command = (
                _state_command(topology.name, key, state) if exact and key is not None and state is not None else ""
            )
            return Folded(task, number, str(record.place), record.at_ms, exact, command)
        before, state = number, None
        if size > _BYTES_MAX:
            break
    return f"{changelog}/{task} does not have the transaction: compaction has removed it, or only a part was read"


def _state_command(pipeline: str, key: str, at: RecordPlace) -> str:
    return f"onefold state get {pipeline} {shlex.quote(key)} --at {at.partition}:{at.offset}"
