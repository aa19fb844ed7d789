"""The checkpoint of states on disk: to which place of the changelog they belong.

It is written together with the states, at once or not at all. Who opens them reads the changelog from that place on. So it must
never be ahead of the states; states that are ahead of it do no harm, since what the changelog says of a key from there on is
written over them, in order, before anybody asks.

It is believed only when it belongs to this very changelog, and when nothing can be missing behind it: Kafka removes what
deleted a key some time after it was written, and states from before that would come to life again.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from onefold.processor.core.abc import ChangelogIs
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.topology import PROGRESS_KEY
from onefold.processor.runtime.changelog import QUARANTINE_KEY, TaskProgress

#: Of what is on disk: the checkpoint, and the states as the changelog has them. Another number is not read.
VERSION = 1
# Of the time for which Kafka keeps what deletes a key: the clocks of two machines may be far apart, and a restore takes a while.
_AGE_SHARE = 0.5


class StateCheckpoint(NamedTuple):
    """What holds at an offset of the changelog.

    Attributes:
        topic_id, partition: of the changelog.
        next: the offset of the changelog to read next.
        at_s: when it was true, in unix seconds: nothing before `next` was written later.
        progress, quarantine: the values of those records, as of that offset.
    """

    topic_id: str
    partition: int
    next: int
    at_s: float
    progress: bytes
    quarantine: bytes

    def encode(self) -> bytes:
        """Its bytes."""
        told = {name: value.decode() if isinstance(value, bytes) else value for name, value in self._asdict().items()}
        return json.dumps({"version": VERSION, **told}).encode()

    @property
    def others(self) -> dict[bytes, bytes | None]:
        """The records of the changelog before it that are no states."""
        return {PROGRESS_KEY: self.progress, QUARANTINE_KEY: self.quarantine}


def decode(data: bytes) -> StateCheckpoint | str:
    """The checkpoint, or in a few words why it is none that can be used here."""
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
    """In a few words why states of this checkpoint cannot be gone on from; empty when they can.

    Args:
        progress: the last one of the changelog.
        now_s: unix seconds.
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
