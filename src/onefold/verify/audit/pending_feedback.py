"""The expected records of a running pipeline in its feedback topics and queues.

A record that names an input is compared after the model has taken this input. A missing record shows later. At some moment, the
verifier notes the expected records and the ends of the inputs; after the inputs up to these ends were taken, each noted record
must exist.
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
    """The records of `open` must exist after the inputs up to `ends` were taken."""

    open: OpenFeedback
    ends: Offsets


class Owed:
    """Compares feedback records and jobs with the expected ones."""

    def __init__(self, workload: Workload, fed: Fed) -> None:
        self._reads = workload.reads
        self._fed = fed
        self._owes = bool(workload.fed or workload.queues)
        self._due: _Due | None = None

    def open(self, ends: Callable[[], Offsets]) -> Offsets:
        """Note the records still expected. Return the ends of the topics after this, from `ends`."""
        due = self._fed.open() if self._due is None and self._owes else None
        found = ends()
        if due is not None:
            self._due = _Due(due, {place: end for place, end in found.items() if place[0] in self._reads})
        return found

    def judge(self, applied: Offsets) -> Iterator[Finding]:
        """Yield the mismatches known after the model has taken the inputs up to `applied`."""
        yield from self._fed.known(lambda source: source[2] < applied.get(source[:2], 0))
        due = self._due
        if due and all(applied.get(place, 0) >= end for place, end in due.ends.items()):
            self._due = None
            yield from self._fed.overdue(due.open)
