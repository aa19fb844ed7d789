"""A sheet after a given entry: the newest finished snapshot at or before the entry, and the entries after the snapshot.

The reads are counted. From the store, a reading needs only the root, the pages, the chunks that may have requested cells, and
the payloads of the entries after the snapshot. From the database, a reading needs only these entries.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from onefold.jobs.apps.sheets.cells import Cell, Rect, Value, parse_line
from onefold.jobs.apps.sheets.changes import newest, overlaid
from onefold.jobs.apps.sheets.chunks import Chunk, Root, read_page, read_root
from onefold.jobs.apps.sheets.entries import Entries, Import
from onefold.jobs.apps.sheets.payloads import lines_in
from onefold.jobs.protocols import ReadableObjects

# The number of cached chunks: a few MB.
_KEPT = 64


class NotThere(Exception):
    """The sheet does not exist, or does not have the entry yet; the message is a sentence."""


class Counted:
    """A store with counters for reads.

    Attributes:
        bytes_read: The bytes of content read.
        objects_read: The number of reads of objects or of parts of objects.
    """

    def __init__(self, objects: ReadableObjects) -> None:
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


class SheetAtEntry:
    """A sheet after a given entry.

    Attributes:
        entry: The entry.
        snapshot: The entry of the snapshot to read; 0 without a finished snapshot, to read the log from its beginning.
        counted: The store with its counters.
    """

    def __init__(self, entries: Entries, objects: ReadableObjects, sheet: str, at: int | None = None) -> None:
        """`at` is an entry, or None for the newest written entry. Raises NotThere, and `Missing` for a missing object."""
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
        """The number of entries after the snapshot."""
        return self.entry - self.snapshot

    def cells(self, rect: Rect) -> Iterator[tuple[Cell, Value]]:
        """The nonempty cells of a rectangle, in order."""
        for cell, value in overlaid(self._held(rect), self._changes(rect)):
            if value is not None:
                yield cell, value

    def _held(self, rect: Rect) -> Iterator[tuple[Cell, Value | None]]:
        """The cells of the rectangle in the snapshot."""
        for chunk in self._chunks(rect):
            yield from (found for found in self._lines(chunk) if rect.holds(found[0]))

    def _chunks(self, rect: Rect) -> Iterator[Chunk]:
        """The chunks that may have cells of the rectangle. Each page is read once, up to the page with the first later chunk."""
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
        """The changes of the rectangle's cells by the entries after the snapshot."""
        edits = self._entries.edits(self._sheet, self.snapshot, self.entry, rect=rect)
        edited = ((cell, -entry, value) for cell, entry, value in edits)
        return newest(heapq.merge(edited, *(self._imported(found, rect) for found in self._imports)))

    def _imported(self, found: Import, rect: Rect) -> Iterator[tuple[Cell, int, Value | None]]:
        for cell, value in lines_in(self.counted, found.object_id, rect):
            yield cell, -found.entry, value
