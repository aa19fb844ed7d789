"""The effect of the queue sheets.jobs: make a snapshot of a sheet from the previous snapshot and the entries since.

The effect is idempotent: entries never change, each snapshot depends only on the previous snapshot and the entries, and names
depend on content. A job that is repeated, interrupted, or executed by two workers at once leaves the same objects.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onefold.jobs.apps.sheets.changes import Changes
from onefold.jobs.apps.sheets.chunks import SNAPSHOTS, Chunks, Root, everything, object_id
from onefold.jobs.apps.sheets.entries import Entries
from onefold.jobs.apps.sheets.merge import Merge, MergeBounds, position_of
from onefold.jobs.protocols import Done, Job, Missing, Objects, Refuse


@dataclass(frozen=True)
class FinishedSnapshot:
    """The report of a finished snapshot: the fields of a record of sheets.finished."""

    sheet_id: str
    segment: int
    entry: int
    root: str
    cells: int
    size: int
    chunks: int
    shared: int


class Snapshots:
    """The effect: make snapshots."""

    ordered = True

    def __init__(
        self,
        entries: Entries,
        objects: Objects,
        publish: Callable[[FinishedSnapshot], None],
        bounds: MergeBounds | None = None,
    ) -> None:
        """`publish` returns after Kafka has acknowledged the report. All snapshots of a sheet need the same `bounds`."""
        self._entries, self._objects, self._publish, self._bounds = entries, objects, publish, bounds or MergeBounds()

    def before(self, job: Job, newest: Done | None) -> Sequence[Job] | None:
        """The jobs of the snapshots between `newest` and this job. Raises `Refuse` if the job's entry is no snapshot entry."""
        sheet, entry = job.log_id, job.place.entry
        after = newest.place.entry if newest else 0
        if self._entries.landed(sheet, after, entry) < entry:
            return None
        if self._entries.segment_of_snapshot(sheet, entry) != job.place.segment:
            raise Refuse(f"entry {entry} of sheet {sheet} is no snapshot entry of segment {job.place.segment}")
        return [
            Job(job.queue, sheet, place, {"log_id": sheet, **place._asdict()})
            for place in self._entries.snapshots_between(sheet, after, entry)
        ]

    def steps(self, job: Job, state: Any, newest: Done | None) -> Iterator[Any]:
        """Merge, with a checkpoint after each written chunk.

        Raises `Refuse` for an invalid payload, and `Missing` for a missing object.
        """
        position = position_of(state)
        if any(self._objects.size(name) is None for name in [*position.pages, *(chunk.id for chunk in position.page)]):
            # An object of the checkpoint is deleted, so the merge starts again from the entries.
            position = position_of(None)
        if position.ended:
            yield position.as_state()
            return
        after, root = (newest.place.entry, newest.result["root"]) if newest else (0, None)
        changes = Changes(
            self._entries,
            self._objects,
            job.log_id,
            after,
            job.place.entry,
            position.cell,
            position.offsets,
            self._bounds.range_bytes,
        )
        old = Chunks(self._objects, root, self._bounds.page_chunks)
        merge = Merge(self._objects, old, changes, job.log_id, job.place, position, self._bounds)
        for _ in merge.run():
            yield position.as_state()

    def finish(self, job: Job, state: Any) -> dict[str, Any]:
        """Write the root, and publish its name to the log."""
        at = position_of(state)
        if not at.ended:
            raise ValueError(f"the snapshot of {job.log_id} at entry {job.place.entry} has not come to its end")
        content = Root(job.log_id, job.place.segment, job.place.entry, at.cells, at.size, at.pages).content()
        root = object_id(job.log_id, job.place, content)
        self._objects.put(root, content)
        counted: dict[str, Any] = {
            "root": root,
            "cells": at.cells,
            "size": at.size,
            "chunks": at.chunks,
            "shared": at.shared,
        }
        self._publish(FinishedSnapshot(job.log_id, *job.place, **counted))
        return counted

    def stands(self, job: Job, result: Any) -> bool:
        """Whether the root, its pages and its chunks exist, each chunk with its size."""
        try:
            return all(
                (found := self._objects.size(name)) is not None and size in (None, found)
                for name, size in everything(self._objects, result["root"])
            )
        except Missing:
            return False

    def leftovers(self, *, inputs: bool) -> Sequence[str]:
        """The number of deleted objects, in a sentence."""
        number = sum(1 for _ in self._objects.ids(SNAPSHOTS))
        return [f"all {number:,} objects below {SNAPSHOTS} in the store: the worker makes the snapshots again"]

    def start_over(self, *, inputs: bool) -> None:
        """Delete all snapshots: the log after the reset may have different entries, whose snapshots have different names."""
        for name in self._objects.ids(SNAPSHOTS):
            self._objects.delete(name)
