"""Find the processor's transaction that processed an input record, as long as the changelog holds it.

Compaction keeps only the last progress record of the changelog. So for an old record the answer may be inexact: this
transaction, or an earlier one.
"""

from __future__ import annotations

import shlex

from onefold.operate.explain.explanation import Folded
from onefold.operate.record_reader import LogReader, RecordPlace
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.runtime.changelog import STATE, TaskProgress

# The states of a transaction precede its progress record. A transaction has at most as many states as input records.
_RECORDS_MAX = 100_000
_BYTES_MAX = 16_000_000
# The previous progress record is two offsets before the first record of this transaction: the record and a commit marker.
_BACK = 20


def of_changelog(
    reader: LogReader, topology: Topology, source: RecordPlace, written_ms: int, key: str | None
) -> Folded | str:
    """Find the transaction that processed the record at `source`, or say why the transaction is unknown.

    Args:
        written_ms: the time of the output record, in milliseconds since 1970. The search in the changelog starts there.
        key: of the state, if known.

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
