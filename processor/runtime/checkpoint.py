"""The checkpoint of states on disk: to which place of the changelog they belong.

It is written together with the states, at once or not at all. Who opens them reads the changelog from that place on. So it must
never be ahead of the states; states that are ahead of it do no harm, since what the changelog says of a key from there on is
written over them, in order, before anybody asks.

It is believed only when it belongs to this very changelog, and when nothing can be missing behind it: Kafka removes what
deleted a key some time after it was written, and states from before that would come to life again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from onefold.processor.core.abc import ChangelogIs, Identity
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.topology import PROGRESS_KEY
from onefold.processor.runtime.changelog import QUARANTINE_KEY, Progress

#: Of what is on disk: the checkpoint, and the states as the changelog has them. Another number is not read.
VERSION = 1
#: As `next`: the states are ahead of the changelog, where the decision log was when its progress was this one.
IN_THE_LOG = -1
# Of the time for which Kafka keeps what deletes a key: the clocks of two machines may be far apart, and a restore takes a while.
_AGE_SHARE = 0.5


class Checkpoint(NamedTuple):
    """What holds at an offset of the changelog, or of the decision log.

    Attributes:
        topic_id, partition: of the changelog.
        next: the offset of the changelog to read next, or `IN_THE_LOG`.
        at_s: when it was true, in unix seconds: nothing before `next` was written later.
        progress, quarantine: the values of those records, as of that offset.
        decided: `digest` of the decision before that place of the decision log; "" where no decision of it is known.
    """

    topic_id: str
    partition: int
    next: int
    at_s: float
    progress: bytes
    quarantine: bytes
    decided: str = ""

    def encode(self) -> bytes:
        """Its bytes."""
        told = {name: value.decode() if isinstance(value, bytes) else value for name, value in self._asdict().items()}
        return json.dumps({"version": VERSION, **told}).encode()

    @property
    def others(self) -> dict[bytes, bytes | None]:
        """The records of the changelog before it that are no states."""
        return {PROGRESS_KEY: self.progress, QUARANTINE_KEY: self.quarantine}


def digest(value: bytes) -> str:
    """Of a record of the decision log. A log that has lost its end, and goes on, has another one at the same offset."""
    return hashlib.blake2b(value, digest_size=16).hexdigest()


def decode(data: bytes) -> Checkpoint | str:
    """The checkpoint, or in a few words why it is none that can be used here."""
    try:
        body: Mapping[str, Any] = json.loads(data)
        if body.get("version") != VERSION:
            return f"they are of another version of Onefold, in format {body.get('version')!r}"
        return Checkpoint(
            str(body["topic_id"]),
            int(body["partition"]),
            int(body["next"]),
            float(body["at_s"]),
            str(body["progress"]).encode(),
            str(body["quarantine"]).encode(),
            str(body.get("decided", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return "their checkpoint cannot be read"


def unfit(
    found: Checkpoint, changelog: ChangelogIs, partition: int, progress: Progress, now_s: float, log: Identity | None
) -> str:
    """In a few words why states of this checkpoint cannot be gone on from; empty when they can.

    Args:
        progress: the last one of the changelog.
        now_s: unix seconds.
        log: the decision log, of a task that has replicas.
    """
    if (found.topic_id, found.partition) != (changelog.topic_id, partition):
        return "they are of another changelog"
    try:
        known = Progress.decode(found.progress)
    except ProcessorError:
        return "their checkpoint cannot be read"
    if found.next == IN_THE_LOG:
        return _unfit_for_the_log(known, progress, log)
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


def _unfit_for_the_log(known: Progress, progress: Progress, log: Identity | None) -> str:
    """Nothing is forgotten in a decision log: it has all that comes next, or is refused. So these may be of any age.

    What is deleted from it is in the changelog: so whoever is where the log begins knows no more than that.
    """
    if log is None or progress.decided_in is None:
        return "the task had replicas"
    if known.decided_in is None or not known.log_id == progress.log_id == log.topic_id:
        return "they are of another decision log"
    at = known.decided_in.offset
    if known.transactions == progress.transactions and _all_but_place(known) != _all_but_place(progress):
        return "the changelog has lost transactions that they know of"
    if not log.start <= at <= log.end:
        return f"the decision log holds offsets {log.start} to {log.end}, and they need {at}"
    if at == log.start and known.transactions > progress.transactions:
        return "the decision log and the changelog have lost decisions that they know of"
    return ""


def _all_but_place(progress: Progress) -> Progress:
    return replace(progress, decided_in=None)
