"""All changes by entries since a snapshot, in the order of cells: edits and payloads merged, the newest entry first."""

import heapq
from collections.abc import Iterator, Sequence
from typing import TypeVar

from onefold.jobs.apps.sheets.cells import BEGIN, Cell, line_of
from onefold.jobs.apps.sheets.entries import Edit, Entries
from onefold.jobs.apps.sheets.payloads import RANGE_BYTES, PayloadLines
from onefold.jobs.protocols import Objects

T = TypeVar("T")
# A cell, the negative entry number (the newest sorts first), and the cell's line; None for a cleared cell.
_Change = tuple[Cell, int, bytes | None]


class Changes:
    """The changes of a sheet after the entry `after` and up to the entry `upto`, from a cell on.

    Its memory is bounded by a few database rows and a range of each payload.
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
        """`offsets`: The offset to continue at in each payload, from `offsets_before`; empty for the beginning."""
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
        """Whether a further change of a cell before `end` exists."""
        return self._next is not None and self._next[0] < end

    def take(self, end: Cell) -> Iterator[tuple[Cell, bytes | None]]:
        """Remove and yield the changes of cells before `end`. Changes not yielded stay for the next call."""
        while self._next is not None and self._next[0] < end:
            taken, self._next = self._next, next(self._rest, None)
            yield taken

    def offsets_before(self, cell: Cell) -> list[int]:
        """For each payload, an offset at or before the lines of this cell and all later cells."""
        return [lines.offset_before(cell) for lines in self._payloads]


def _edits(edits: Iterator[Edit]) -> Iterator[_Change]:
    for cell, entry, value in edits:
        yield cell, -entry, None if value is None else line_of(cell, value)


def _payload(lines: PayloadLines, entry: int) -> Iterator[_Change]:
    for cell, value, line in lines:
        yield cell, -entry, None if value is None else line


def newest(changes: Iterator[tuple[Cell, int, T]], from_cell: Cell = BEGIN) -> Iterator[tuple[Cell, T]]:
    """The first change of each cell. The changes must come in the order of cells, the newest of a cell first."""
    seen = None
    for cell, _, value in changes:
        if cell != seen and cell >= from_cell:
            seen = cell
            yield cell, value


def overlaid(
    held: Iterator[tuple[Cell, T]], changes: Iterator[tuple[Cell, T | None]]
) -> Iterator[tuple[Cell, T | None]]:
    """The cells with the changes applied, in order; None for a cleared cell."""
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
