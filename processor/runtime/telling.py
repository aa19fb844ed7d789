"""What a replica tells the others, and whoever looks: how far it is, by notes in the decision log. They decide nothing."""

from collections.abc import Callable
from typing import Any, Protocol

from onefold.processor.core.decision_log import DecisionLog, Note, Proposals
from onefold.processor.runtime.changelog import Progress

# A person looks at them, and each is a record that all have to read.
TELL_EVERY_S = 1.0


class _Told(Protocol):
    """Of a replica what the others are told."""

    won: int
    decided: int
    published: int
    publishes: bool
    progress: Progress


class Telling:
    """The notes of one replica about one task.

    Args:
        partition: the task.
        name: of the replica.
        clock: seconds, the replica's.
    """

    def __init__(
        self,
        partition: int,
        name: str,
        log: DecisionLog,
        proposals: Proposals,
        clock: Callable[[], float],
    ) -> None:
        self._partition = partition
        self._name = name
        self._log = log
        self._proposals = proposals
        self._clock = clock
        self._told: dict[str, Any] = {}
        self._told_at: float | None = None

    def turn(self, replica: _Told) -> None:
        """Tell how it is, when that has changed and the last time is long enough ago."""
        now = self._clock()
        if self._told_at is not None and now - self._told_at < TELL_EVERY_S:
            return
        standing = {
            "version": replica.progress.transactions,
            "won": replica.won,
            "decided": replica.decided,
            "published": replica.published,
            "publishes": replica.publishes,
        }
        if standing != self._told:
            note = Note(self._partition, self._name, {"replica": standing}, replica.progress.log_id)
            self._log.append(self._proposals.encode_note(note))
            self._told, self._told_at = standing, now
