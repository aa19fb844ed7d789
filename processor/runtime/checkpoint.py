"""The checkpoint of states on disk: the changelog offset of the states.

The checkpoint and the states are written atomically. A restore reads the changelog from the checkpoint on, so the checkpoint
must never be ahead of the states. States ahead of the checkpoint do no harm: the restore overwrites them, in order, before the
first use.

A checkpoint is valid only for the same changelog, and only for a limited time. Kafka removes a tombstone some time after the
write. An older checkpoint would bring deleted states back.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from onefold.processor.core.abc import ChangelogIs
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.topology import PROGRESS_KEY
from onefold.processor.runtime.changelog import QUARANTINE_KEY, TaskProgress

#: The format version of the files: the checkpoint, and the states as in the changelog. Files of another version are not read.
VERSION = 1
# Maximum age of a checkpoint, as a share of the tombstones' retention. The rest covers clock skew and the time of a restore.
_AGE_SHARE = 0.5


class StateCheckpoint(NamedTuple):
    """The content of a checkpoint.

    Attributes:
        topic_id, partition: the changelog's topic id and partition.
        next: the changelog offset to read next.
        at_s: the time of the checkpoint, in unix seconds; all records before `next` are older.
        progress, quarantine: the values of the progress and quarantine records as of `next`.
    """

    topic_id: str
    partition: int
    next: int
    at_s: float
    progress: bytes
    quarantine: bytes

    def encode(self) -> bytes:
        """Encode the checkpoint."""
        told = {name: value.decode() if isinstance(value, bytes) else value for name, value in self._asdict().items()}
        return json.dumps({"version": VERSION, **told}).encode()

    @property
    def others(self) -> dict[bytes, bytes | None]:
        """The last changelog records before the checkpoint that are no states."""
        return {PROGRESS_KEY: self.progress, QUARANTINE_KEY: self.quarantine}


def decode(data: bytes) -> StateCheckpoint | str:
    """Decode a checkpoint. Returns the reason instead if the checkpoint is unusable."""
    try:
        body: Mapping[str, Any] = json.loads(data)
        if body.get("version") != VERSION:
            return f"they are of another version of Onefold, in format {body.get('version')!r}"
        return StateCheckpoint(
            str(body["topic_id"]),
            int(body["partition"]),
            int(body["next"]),
            float(body["at_s"]),
            str(body["progress"]).encode(),
            str(body["quarantine"]).encode(),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return "their checkpoint cannot be read"


def unfit(found: StateCheckpoint, changelog: ChangelogIs, partition: int, progress: TaskProgress, now_s: float) -> str:
    """The reason why the states of a checkpoint are unusable; empty if they are usable.

    Args:
        progress: the last progress in the changelog.
        now_s: the present time, in unix seconds.
    """
    if (found.topic_id, found.partition) != (changelog.topic_id, partition):
        return "they are of another changelog"
    try:
        known = TaskProgress.decode(found.progress)
    except ProcessorError:
        return "their checkpoint cannot be read"
    if not changelog.start <= found.next <= changelog.end:
        return f"the changelog holds offsets {changelog.start} to {changelog.end}, and they need {found.next}"
    if known.transactions > progress.transactions or (
        known.transactions == progress.transactions and known.counts != progress.counts
    ):
        return "the changelog has lost transactions that they know of"
    if changelog.tombstones_kept_s is None:
        return "Kafka does not say how long the changelog keeps what deletes a key (delete.retention.ms)"
    age_s = now_s - found.at_s
    if not 0 <= age_s <= changelog.tombstones_kept_s * _AGE_SHARE:
        return f"they are {age_s:,.0f} s old, and the changelog may have forgotten by now what was deleted since"
    return ""
