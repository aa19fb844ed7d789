"""The chunks of the next snapshot, of those of the one before it and the changes since: a merge in bounded memory.

A chunk of the old snapshot has a *territory*: the cells from its first one up to the first one of the next chunk. The first
territory begins where the sheet does, the last one ends where the sheet does. A territory without a change is passed: its chunk
is listed again, unread. In any other one the changes are laid over the chunk's lines, and what comes of it is cut into chunks.

The same old snapshot and the same changes give the same chunks, wherever the work was cut off: a cut depends on the lines since
the last cut, and never on a checkpoint.

- More than two full chunks of lines: one is cut off, as full as it can be.
- At the end of a territory what is left is one chunk, or two halves: so that a place where cells come in one by one does not
  become many tiny chunks. Behind the last old chunk it is cut as full as can be, because that is where a sheet grows.
- What is left and fills no more than half of a chunk is not cut but carried into the next territory, if that one is read anyway
  or its chunk fits into the same half: so that tiny chunks do not stay where cells were cleared.
- Is what came of a territory just what its chunk holds, the chunk is listed again.
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
class Bounds:
    """How much at once. The first two decide what is written; the others only how often there is a checkpoint.

    Attributes:
        chunk_bytes: of a chunk.
        page_chunks: of a page.
        passed: old chunks that are done with and nothing is written, between two checkpoints.
        cleared: lines that are read and not kept, between two checkpoints.
        range_bytes: that are read at once of a payload.
    """

    chunk_bytes: int = CHUNK_BYTES
    page_chunks: int = PAGE_CHUNKS
    passed: int = 256
    cleared: int = 65_536
    range_bytes: int = RANGE_BYTES


@dataclass
class Position:
    """How far a merge is: all that another worker needs to go on. As plain JSON data it is a checkpoint.

    Bounded by a page, two chunks, and 75 bytes for each page of the snapshot.

    Attributes:
        old: the number of the old chunk whose territory this is.
        cell: lines before it are read.
        held: lines that are read and not written; most often none, they are read again.
        whole: whether no line of this territory has been written or carried: its chunk might stay as it is.
        halved: the territory is being cut into its last chunks.
        offsets: where to go on in each payload.
        pages: ids of the pages that are full.
        page: the chunks of the one that is not.
        ended: nothing is left to do.
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
        """Plain JSON data."""
        return asdict(self) | {"cell": list(self.cell), "page": [chunk._asdict() for chunk in self.page]}


def position_of(state: Any) -> Position:
    """Of a checkpoint; None: at the beginning."""
    if state is None:
        return Position()
    page = [chunk_of(data) for data in state["page"]]
    # What is appended to is ours: a checkpoint stays what it is.
    return Position(**{**state, "cell": tuple(state["cell"]), "pages": list(state["pages"]), "page": page})


class Merge:
    """One run of it, from a position on. `run` yields after each checkpoint's worth of work; `position` is where it is then."""

    def __init__(
        self,
        objects: Objects,
        old: Chunks,
        changes: Changes,
        sheet: str,
        place: Place,
        position: Position,
        bounds: Bounds,
    ) -> None:
        self.position = position
        self._objects, self._old, self._changes = objects, old, changes
        self._sheet, self._place, self._bounds = sheet, place, bounds
        self._lines: deque[bytes] = deque(line.encode() for line in position.held)
        self._size = sum(map(len, self._lines))
        self._passed = self._cleared = 0
        # Payloads are not read again before this cell.
        self._again_from = position.cell

    def run(self) -> Iterator[None]:
        """All territories, then the last page. After each of what it yields, `position` is a checkpoint."""
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
        """Read it, cut what comes of it; what is carried into the next one stays in `_lines`."""
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
        """Whether the next change is in the territory of this chunk, or before it."""
        following = self._old.at(number + 1)
        return self._changes.before(following.first if following else END)

    def _write(self, limit: int) -> Iterator[None]:
        """A chunk of as many lines as fit into `limit` bytes, one at least; a checkpoint behind it."""
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
        """Write it, unless the old snapshot has the same one at the same place."""
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
        """From the first line that is not written on, which is read again; or with the lines that are `held` in it."""
        at, read = self.position, self.position.cell
        self._passed = self._cleared = 0
        first = place_of(self._lines[0]) if self._lines else read
        if held or first < self._again_from:
            at.held = [line.decode() for line in self._lines]
            self._again_from = read
        else:
            # What was held when this run began is written by now, or read again.
            at.cell, at.held = first, []
            self._again_from = first
        at.offsets = self._changes.offsets_before(at.cell)
        yield
        at.cell, at.held = read, []
