"""All that entries changed since a snapshot, cell by cell in order: edits and payloads merged, the newest entry first."""

import heapq
from collections.abc import Iterator, Sequence
from typing import TypeVar

from onefold.jobs.apps.sheets.cells import BEGIN, Cell, line_of
from onefold.jobs.apps.sheets.entries import Edit, Entries
from onefold.jobs.apps.sheets.payloads import RANGE_BYTES, PayloadLines
from onefold.jobs.protocols import Objects

T = TypeVar("T")
# A cell, the entry with a minus so that the newest comes first, and its line; None: the cell is cleared.
_Change = tuple[Cell, int, bytes | None]


class Changes:
    """The changes of a sheet after one entry and up to another, from a cell on.

    What it holds is bounded: a few rows of the database, and a range of each payload.
    """

    def __init__(
        self,
        entries: Entries,
        objects: Objects,
        sheet: str,
        after: int,
        upto: int,
        from_cell: Cell,
        offsets: Sequence[int],
        range_bytes: int = RANGE_BYTES,
    ) -> None:
        """`offsets`: where to go on in each payload, as `offsets_before` said; none: at the beginning."""
        imports = entries.imports(sheet, after, upto)
        self._payloads = [
            PayloadLines(objects, found.object_id, offset, range_bytes)
            for found, offset in zip(imports, offsets or [0] * len(imports), strict=True)
        ]
        sources = [_payload(lines, found.entry) for lines, found in zip(self._payloads, imports, strict=True)]
        merged = heapq.merge(_edits(entries.edits(sheet, after, upto, from_cell)), *sources)
        self._rest = newest(merged, from_cell)
        self._next = next(self._rest, None)

    def before(self, end: Cell) -> bool:
        """Whether there is one more for a cell before `end`."""
        return self._next is not None and self._next[0] < end

    def take(self, end: Cell) -> Iterator[tuple[Cell, bytes | None]]:
        """Those for cells before `end`. What is not taken stays."""
        while self._next is not None and self._next[0] < end:
            taken, self._next = self._next, next(self._rest, None)
            yield taken

    def offsets_before(self, cell: Cell) -> list[int]:
        """For each payload, from where on it has to be read for this cell and later ones."""
        return [lines.offset_before(cell) for lines in self._payloads]


def _edits(edits: Iterator[Edit]) -> Iterator[_Change]:
    for cell, entry, value in edits:
        yield cell, -entry, None if value is None else line_of(cell, value)


def _payload(lines: PayloadLines, entry: int) -> Iterator[_Change]:
    for cell, value, line in lines:
        yield cell, -entry, None if value is None else line


def newest(changes: Iterator[tuple[Cell, int, T]], from_cell: Cell = BEGIN) -> Iterator[tuple[Cell, T]]:
    """Of each cell the first one; they come in order, the newest of a cell first."""
    seen = None
    for cell, _, value in changes:
        if cell != seen and cell >= from_cell:
            seen = cell
            yield cell, value


def overlaid(
    held: Iterator[tuple[Cell, T]], changes: Iterator[tuple[Cell, T | None]]
) -> Iterator[tuple[Cell, T | None]]:
    """What cells held, with the changes laid over it, in order; None for a cell that was cleared."""
    change = next(changes, None)
    for cell, value in held:
        while change is not None and change[0] < cell:
            yield change
            change = next(changes, None)
        if change is not None and change[0] == cell:
            yield change
            change = next(changes, None)
        else:
            yield cell, value
    if change is not None:
        yield change
        yield from changes
