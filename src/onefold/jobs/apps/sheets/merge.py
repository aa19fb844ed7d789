"""The chunks of the next snapshot, merged from the old snapshot's chunks and the changes since, in bounded memory.

Each chunk of the old snapshot has a *territory*: the cells from its first cell up to the first cell of the next chunk. The
first territory begins at the beginning of the sheet, and the last territory ends at the end of the sheet. For a territory
without a change, the new snapshot lists the old chunk unread. For every changed territory, the merge overlays the changes on
the chunk's lines and cuts the result into chunks.

Equal old snapshots and changes yield equal chunks, even after an interruption: a cut depends only on the lines since the last
cut, never on a checkpoint.

- With more than two full chunks of lines, the merge cuts off a chunk, as full as possible.
- At the end of a territory, the rest becomes a chunk, or two halves. Frequent inserts at the same place then do not make many
  tiny chunks. After the last old chunk, each cut is as full as possible, because a sheet grows at its end.
- A rest of at most half a chunk is carried into the next territory, if the next territory is read anyway or its chunk fits into
  the same half. No tiny chunks then remain after cells are cleared.
- If the result of a territory equals its old chunk, the new snapshot lists the old chunk.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from onefold.jobs.apps.sheets.cells import BEGIN, END, Cell, lines_of, place_of
from onefold.jobs.apps.sheets.changes import Changes, overlaid
from onefold.jobs.apps.sheets.chunks import (
    CHUNK_BYTES,
    PAGE_CHUNKS,
    Chunk,
    Chunks,
    chunk_of,
    object_id,
    page_content,
)
from onefold.jobs.apps.sheets.payloads import RANGE_BYTES
from onefold.jobs.protocols import Objects, Place


@dataclass(frozen=True)
class MergeBounds:
    """The bounds of chunks and pages, and of the work between checkpoints. Only the first two affect the snapshot's content.

    Attributes:
        chunk_bytes: The bytes of a chunk.
        page_chunks: The chunks of a page.
        passed: The number of old chunks between two checkpoints.
        cleared: The number of cleared cells between two checkpoints.
        range_bytes: The bytes of each read of a payload.
    """

    chunk_bytes: int = CHUNK_BYTES
    page_chunks: int = PAGE_CHUNKS
    passed: int = 256
    cleared: int = 65_536
    range_bytes: int = RANGE_BYTES


@dataclass
class MergePosition:
    """The position of a merge, sufficient for a second worker to continue. The position as plain JSON data is a checkpoint.

    Its size is bounded by a page, two chunks, and 75 bytes for each page of the snapshot.

    Attributes:
        old: The number of the present territory's old chunk.
        cell: The first cell whose line is not read yet.
        held: The lines read and not written yet. Mostly empty, because the lines can be read again.
        whole: Whether no line of this territory is written or carried yet, so the old chunk may stay unchanged.
        halved: Whether the merge is cutting the territory's last chunks.
        offsets: The offset in each payload at which to continue.
        pages: The ids of the full pages.
        page: The chunks of the last, not yet full page.
        ended: Whether the merge is complete.
    """

    old: int = 0
    cell: Cell = BEGIN
    held: list[str] = field(default_factory=list)
    whole: bool = True
    halved: bool = False
    offsets: list[int] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    page: list[Chunk] = field(default_factory=list)
    cells: int = 0
    size: int = 0
    chunks: int = 0
    shared: int = 0
    ended: bool = False

    def as_state(self) -> dict[str, Any]:
        """The position as plain JSON data."""
        return asdict(self) | {"cell": list(self.cell), "page": [chunk._asdict() for chunk in self.page]}


def position_of(state: Any) -> MergePosition:
    """The position of a checkpoint; the beginning for None."""
    if state is None:
        return MergePosition()
    page = [chunk_of(data) for data in state["page"]]
    # Copy the lists, so that the merge does not change the checkpoint.
    return MergePosition(**{**state, "cell": tuple(state["cell"]), "pages": list(state["pages"]), "page": page})


class Merge:
    """A merge from a position on. `run` yields at each checkpoint, with the state in `position`."""

    def __init__(
        self,
        objects: Objects,
        old: Chunks,
        changes: Changes,
        sheet: str,
        place: Place,
        position: MergePosition,
        bounds: MergeBounds,
    ) -> None:
        self.position = position
        self._objects, self._old, self._changes = objects, old, changes
        self._sheet, self._place, self._bounds = sheet, place, bounds
        self._lines: deque[bytes] = deque(line.encode() for line in position.held)
        self._size = sum(map(len, self._lines))
        self._passed = self._cleared = 0
        # No payload is read again before this cell.
        self._again_from = position.cell

    def run(self) -> Iterator[None]:
        """Merge all territories and write the last page. At each yield, `position` is a checkpoint."""
        at = self.position
        while at.old == 0 or self._old.at(at.old) is not None:
            chunk, following = self._old.at(at.old), self._old.at(at.old + 1)
            end = following.first if following else END
            if chunk and at.whole and not self._lines and at.cell <= chunk.first and not self._changes.before(end):
                self._list(chunk, shared=True)
            else:
                yield from self._territory(chunk, following, end)
            if not self._lines:
                at.whole = True
            at.old, at.cell, at.halved = at.old + 1, end, False
            self._passed += 1
            if self._passed >= self._bounds.passed:
                yield from self._checkpoint(held=True)
        if at.page:
            self._close_page()
        at.ended = True
        yield from self._checkpoint()

    def _territory(self, chunk: Chunk | None, following: Chunk | None, end: Cell) -> Iterator[None]:
        """Read a territory and cut the result into chunks. Lines carried into the next territory stay in `_lines`."""
        at, full = self.position, self._bounds.chunk_bytes
        content = self._objects.get(chunk.id) if chunk else b""
        start = at.cell
        old = ((cell, line) for cell, line in lines_of(content) if cell >= start)
        for cell, line in overlaid(old, self._changes.take(end)):
            at.cell = (cell[0], cell[1] + 1)
            if line is None:
                self._cleared += 1
                if self._cleared >= self._bounds.cleared:
                    yield from self._checkpoint(held=True)
                continue
            self._lines.append(line)
            self._size += len(line)
            while self._size > 2 * full:
                yield from self._write(full)
        if chunk and at.whole and b"".join(self._lines) == content:
            self._lines.clear()
            self._size = 0
            self._list(chunk, shared=True)
            return
        if following and not at.halved:
            if self._size <= full // 2 and (self._size + following.size <= full // 2 or self._touched(at.old + 1)):
                at.whole = False
                return
            if self._size > full:
                at.halved = True
                yield from self._write((self._size + 1) // 2)
        at.halved = True
        while self._lines:
            yield from self._write(full)

    def _touched(self, number: int) -> bool:
        """Whether the next change is in or before the territory of this chunk."""
        following = self._old.at(number + 1)
        return self._changes.before(following.first if following else END)

    def _write(self, limit: int) -> Iterator[None]:
        """Write a chunk of all lines that fit into `limit` bytes, at least one, and make a checkpoint."""
        taken = [self._lines.popleft()]
        size = len(taken[0])
        while self._lines and size + len(self._lines[0]) <= limit:
            taken.append(self._lines.popleft())
            size += len(taken[-1])
        self._size -= size
        content = b"".join(taken)
        chunk = Chunk(
            object_id(self._sheet, self._place, content), place_of(taken[0]), place_of(taken[-1]), len(taken), size
        )
        self._objects.put(chunk.id, content)
        self.position.whole = False
        self._list(chunk, shared=False)
        yield from self._checkpoint()

    def _list(self, chunk: Chunk, *, shared: bool) -> None:
        at = self.position
        at.page.append(chunk)
        at.cells, at.size = at.cells + chunk.cells, at.size + chunk.size
        at.chunks, at.shared = at.chunks + 1, at.shared + shared
        if len(at.page) == self._bounds.page_chunks:
            self._close_page()

    def _close_page(self) -> None:
        """Write the page, unless the old snapshot has an equal page at the same place."""
        at = self.position
        number = len(at.pages)
        if at.page == self._old.page(number):
            at.pages.append(self._old.pages[number])
        else:
            content = page_content(at.page)
            name = object_id(self._sheet, self._place, content)
            self._objects.put(name, content)
            at.pages.append(name)
        at.page = []

    def _checkpoint(self, *, held: bool = False) -> Iterator[None]:
        """Make a checkpoint that contains the unwritten lines (`held`), or that begins at the first of them.

        In the second case, the next run reads the lines again.
        """
        at, read = self.position, self.position.cell
        self._passed = self._cleared = 0
        first = place_of(self._lines[0]) if self._lines else read
        if held or first < self._again_from:
            at.held = [line.decode() for line in self._lines]
            self._again_from = read
        else:
            # The lines held at the start of this run are written by now, or are read again.
            at.cell, at.held = first, []
            self._again_from = first
        at.offsets = self._changes.offsets_before(at.cell)
        yield
        at.cell, at.held = read, []
