"""What a pipeline that goes on owes its own inputs and its queues: what it writes into them is judged while it does.

A record in there that names an input is judged when the model has taken that input. That one is missing shows later: when all
that lay in the inputs at some moment has been taken, everything that was asked for before that moment must have come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from onefold.proof.decided import Decided
from onefold.proof.expect import Workload
from onefold.proof.fed import Fed, Open
from onefold.proof.verdict import Finding

#: By topic and partition.
Offsets = Mapping[tuple[str, int], int]


class _Due(NamedTuple):
    """What was open must be there when the inputs up to `ends` are taken; None: not all of it that was decided is published.

    Attributes:
        wrote: per task the last version that had written into inputs.
    """

    open: Open
    wrote: Mapping[int, int]
    ends: Offsets | None = None


class Owed:
    """Judges what is owed.

    Args:
        decided: the decision log, when tables are filled from it.
    """

    def __init__(self, workload: Workload, fed: Fed, decided: Decided | None) -> None:
        self._reads = workload.reads
        self._fed = fed
        self._decided = decided
        self._owes = bool(workload.fed or workload.queues)
        self._due: _Due | None = None

    def open(self) -> None:
        """Ask where the topics end after this, and tell it."""
        if self._due is None and self._owes:
            self._due = _Due(self._fed.open(), self._wrote_into_inputs())

    def ends_at(self, ends: Offsets, published: Mapping[int, int]) -> None:
        """The topics end there; per task so many decisions are published."""
        due = self._due
        # What was decided and is not published may have to wait for another publisher.
        if due and due.ends is None and all(published.get(task, 0) >= version for task, version in due.wrote.items()):
            self._due = due._replace(ends={place: end for place, end in ends.items() if place[0] in self._reads})

    def judge(self, applied: Offsets) -> Iterator[Finding]:
        """Everything wrong that is known now that the model has taken the inputs up to there."""
        yield from self._fed.known(lambda source: source[2] < applied.get(source[:2], 0))
        due = self._due
        if due and due.ends is not None and all(applied.get(place, 0) >= end for place, end in due.ends.items()):
            self._due = None
            yield from self._fed.overdue(due.open)

    def _wrote_into_inputs(self) -> Mapping[int, int]:
        found: dict[int, int] = {}
        for (task, topic), version in self._decided.wrote.items() if self._decided else ():
            if topic in self._reads:
                found[task] = max(version, found.get(task, 0))
        return found
