"""A sheet as it is after one of its entries: the newest finished snapshot at or before it, and the entries after that.

What is read is counted: of the store no more than the root, pages, the chunks that may have cells of what is asked for, and
payloads that the entries after the snapshot name; of the database no more than those entries.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from onefold.jobs.apps.sheets.cells import Cell, Rect, Value, parse_line
from onefold.jobs.apps.sheets.changes import newest, overlaid
from onefold.jobs.apps.sheets.chunks import Chunk, Readable, Root, read_page, read_root
from onefold.jobs.apps.sheets.entries import Entries, Import
from onefold.jobs.apps.sheets.payloads import lines_in

# Objects that are kept in case the next look is at them too: a few MB of chunks.
_KEPT = 64


class NotThere(Exception):
    """There is no such sheet, or it has no such entry yet; as a sentence."""


class Counted:
    """A store that counts what is read of it.

    Attributes:
        bytes_read: of contents.
        objects_read: reads of objects, or of parts of them.
    """

    def __init__(self, objects: Readable) -> None:
        self.bytes_read = self.objects_read = 0
        self._objects = objects

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Objects`."""
        content = self._objects.get(name, start, end)
        self.bytes_read += len(content)
        self.objects_read += 1
        return content

    def size(self, name: str) -> int | None:
        """See `Objects`."""
        return self._objects.size(name)


class Reading:
    """One sheet, as of one entry.

    Attributes:
        entry: that one.
        snapshot: the entry whose snapshot is read; 0: none was finished, and the log is read from its beginning.
        counted: what was read of the store so far.
    """

    def __init__(self, entries: Entries, objects: Readable, sheet: str, at: int | None = None) -> None:
        """`at`: an entry; None: the newest one that has landed. Raises NotThere, and `Missing`: an object is gone."""
        self.counted = Counted(objects)
        self._entries, self._sheet = entries, sheet
        finished = entries.finished(sheet, at)
        self.snapshot = finished.place.entry if finished else 0
        landed = entries.landed(sheet, self.snapshot, at)
        if not landed and not entries.known(sheet):
            raise NotThere(f"there is no sheet {sheet}")
        if at is not None and not 0 < at <= landed:
            raise NotThere(f"sheet {sheet} has no entry {at:,} yet: {landed:,} are in PostgreSQL")
        self.entry = landed if at is None else at
        self._root: Root | None = read_root(self.counted, finished.root) if finished else None
        self._imports: list[Import] = entries.imports(sheet, self.snapshot, self.entry)
        self._pages: list[list[Chunk]] = []
        self._kept: OrderedDict[str, list[tuple[Cell, Value]]] = OrderedDict()

    @property
    def tail(self) -> int:
        """How many entries come after the snapshot."""
        return self.entry - self.snapshot

    def cells(self, rect: Rect) -> Iterator[tuple[Cell, Value]]:
        """The cells of a rectangle that hold something, in order."""
        for cell, value in overlaid(self._held(rect), self._changes(rect)):
            if value is not None:
                yield cell, value

    def _held(self, rect: Rect) -> Iterator[tuple[Cell, Value | None]]:
        """In the snapshot."""
        for chunk in self._chunks(rect):
            yield from (found for found in self._lines(chunk) if rect.holds(found[0]))

    def _chunks(self, rect: Rect) -> Iterator[Chunk]:
        """Those that may have cells of it. Pages are read up to the first one that begins behind it, each once."""
        for number, name in enumerate(self._root.pages if self._root else ()):
            if number == len(self._pages):
                self._pages.append(read_page(self.counted, name))
            for chunk in self._pages[number]:
                if chunk.first > (rect.bottom, rect.right):
                    return
                if rect.meets(chunk.first, chunk.last):
                    yield chunk

    def _lines(self, chunk: Chunk) -> list[tuple[Cell, Value]]:
        if chunk.id in self._kept:
            self._kept.move_to_end(chunk.id)
        else:
            lines = self.counted.get(chunk.id).splitlines(keepends=True)
            self._kept[chunk.id] = [(cell, value) for cell, value in map(parse_line, lines) if value is not None]
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._kept[chunk.id]

    def _changes(self, rect: Rect) -> Iterator[tuple[Cell, Value | None]]:
        """By the entries after the snapshot."""
        edits = self._entries.edits(self._sheet, self.snapshot, self.entry, rect=rect)
        edited = ((cell, -entry, value) for cell, entry, value in edits)
        return newest(heapq.merge(edited, *(self._imported(found, rect) for found in self._imports)))

    def _imported(self, found: Import, rect: Rect) -> Iterator[tuple[Cell, int, Value | None]]:
        for cell, value in lines_in(self.counted, found.object_id, rect):
            yield cell, -found.entry, value
