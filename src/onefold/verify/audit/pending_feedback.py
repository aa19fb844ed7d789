"""What a pipeline that goes on owes its own inputs and its queues: what it writes into them is judged while it does.

A record in there that names an input is judged when the model has taken that input. That one is missing shows later: when all
that lay in the inputs at some moment has been taken, everything that was asked for before that moment must have come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from onefold.verify.expect import Workload
from onefold.verify.feedback import Fed, OpenFeedback
from onefold.verify.verdict import Finding

#: By topic and partition.
Offsets = Mapping[tuple[str, int], int]


class _Due(NamedTuple):
    """What was open must be there when the inputs up to `ends` are taken."""

    open: OpenFeedback
    ends: Offsets


class Owed:
    """Judges what is owed."""

    def __init__(self, workload: Workload, fed: Fed) -> None:
        self._reads = workload.reads
        self._fed = fed
        self._owes = bool(workload.fed or workload.queues)
        self._due: _Due | None = None

    def open(self, ends: Callable[[], Offsets]) -> Offsets:
        """Note what is owed. Returns where the topics end after that, by `ends`."""
        due = self._fed.open() if self._due is None and self._owes else None
        found = ends()
        if due is not None:
            self._due = _Due(due, {place: end for place, end in found.items() if place[0] in self._reads})
        return found

    def judge(self, applied: Offsets) -> Iterator[Finding]:
        """Everything wrong that is known now that the model has taken the inputs up to there."""
        yield from self._fed.known(lambda source: source[2] < applied.get(source[:2], 0))
        due = self._due
        if due and all(applied.get(place, 0) >= end for place, end in due.ends.items()):
            self._due = None
            yield from self._fed.overdue(due.open)
