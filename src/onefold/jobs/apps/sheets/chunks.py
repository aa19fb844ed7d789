"""The objects of a snapshot: chunks with lines, pages with lists of chunks, and a root with a list of pages.

An object's name is a hash of its content and of the snapshot entry at its creation. A repeated job therefore writes the same
objects, and an unchanged chunk keeps its name in later snapshots.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from onefold.jobs.apps.sheets.cells import Cell
from onefold.jobs.protocols import Place, ReadableObjects

# The upper bound of a chunk; a longer line becomes its own chunk. An edited cell costs the write of a chunk, and a displayed
# cell costs the read of a chunk. With 64 KiB, each is a single request, and a million cells are some hundreds of objects.
CHUNK_BYTES = 64 * 1024
# A page is then about 40 KB, and a root of 100 pages covers 1.6 GB.
PAGE_CHUNKS = 256


class Chunk(NamedTuple):
    """A chunk in the list of a page."""

    id: str
    first: Cell
    last: Cell
    cells: int
    size: int


class Root(NamedTuple):
    """The root object, which identifies a snapshot. `size` is the total size of the chunks in bytes."""

    sheet: str
    segment: int
    entry: int
    cells: int
    size: int
    pages: list[str]

    def content(self) -> bytes:
        """The content of the root object."""
        return _canonical(self._asdict())


#: The prefix of the names of all snapshot objects.
SNAPSHOTS = "snapshots/"


def object_id(sheet: str, place: Place, content: bytes) -> str:
    """The name of an object with this content, written by the snapshot at this place of a sheet."""
    start = f"{sheet}/{place.segment}/{place.entry}\n".encode()
    return SNAPSHOTS + hashlib.sha256(start + content).hexdigest()


def page_content(chunks: list[Chunk]) -> bytes:
    """The content of a page object."""
    return _canonical({"chunks": [chunk._asdict() for chunk in chunks]})


def read_page(objects: ReadableObjects, name: str) -> list[Chunk]:
    """The chunks in a page, in the order of their cells. Raises `Missing`."""
    return [chunk_of(found) for found in json.loads(objects.get(name))["chunks"]]


def chunk_of(data: Any) -> Chunk:
    """A chunk from JSON data."""
    return Chunk(data["id"], tuple(data["first"]), tuple(data["last"]), data["cells"], data["size"])


def read_root(objects: ReadableObjects, name: str) -> Root:
    """Read a root. Raises `Missing`."""
    return Root(**json.loads(objects.get(name)))


def everything(objects: ReadableObjects, name: str) -> Iterator[tuple[str, int | None]]:
    """The names of all objects of a snapshot, beginning with the root, and the expected size of each chunk (else None).

    Raises `Missing` if the root or a page is missing.
    """
    yield name, None
    for page in read_root(objects, name).pages:
        yield page, None
        yield from ((chunk.id, chunk.size) for chunk in read_page(objects, page))


class Chunks:
    """The chunks of a finished snapshot by their number, from 0. `root` is None, without chunks, before the first snapshot.

    The object caches two pages, because a merge looks a chunk ahead.
    """

    def __init__(self, objects: ReadableObjects, root: str | None, page_chunks: int = PAGE_CHUNKS) -> None:
        self.pages = read_root(objects, root).pages if root is not None else []
        self._objects, self._page_chunks = objects, page_chunks
        self._held: dict[int, list[Chunk]] = {}

    def at(self, number: int) -> Chunk | None:
        """The chunk with this number; None after the last chunk."""
        page, place = divmod(number, self._page_chunks)
        chunks = self.page(page)
        return chunks[place] if place < len(chunks) else None

    def page(self, number: int) -> list[Chunk]:
        """The chunks of the page with this number, from 0; [] after the last page."""
        if number >= len(self.pages):
            return []
        if number not in self._held:
            self._held = {at: page for at, page in self._held.items() if abs(at - number) == 1}
            self._held[number] = read_page(self._objects, self.pages[number])
        return self._held[number]


def _canonical(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
