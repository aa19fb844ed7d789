"""What a snapshot consists of: chunks of lines, pages that list chunks, and a root that lists pages.

An object's name is a hash of the snapshot entry that wrote it and of its content. So a job that is done twice writes the same
objects; and a chunk that did not change keeps the name that it was given by the snapshot that wrote it.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from onefold.jobs.apps.sheets.cells import Cell
from onefold.jobs.protocols import Place

# The upper bound of a chunk; a line that is longer is a chunk of its own. An edit of one cell costs so much writing, and a look
# at one cell so much reading; with 64 KiB both are one request, and a million cells are some hundreds of objects.
CHUNK_BYTES = 64 * 1024
# A page of so many is 40 KB; a root of 100 pages stands for 1.6 GB.
PAGE_CHUNKS = 256


class Readable(Protocol):
    """The part of a store of objects that readers need."""

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `Objects`."""

    def size(self, name: str) -> int | None:
        """See `Objects`."""


class Chunk(NamedTuple):
    """A chunk as a page lists it."""

    id: str
    first: Cell
    last: Cell
    cells: int
    size: int


class Root(NamedTuple):
    """The object by which a snapshot is known; `size` is that of its chunks in bytes."""

    sheet: str
    segment: int
    entry: int
    cells: int
    size: int
    pages: list[str]

    def content(self) -> bytes:
        """As it is stored."""
        return _canonical(self._asdict())


#: What the names of all that snapshots write begin with.
SNAPSHOTS = "snapshots/"


def object_id(sheet: str, place: Place, content: bytes) -> str:
    """The name of what the snapshot at this place of a sheet writes."""
    start = f"{sheet}/{place.segment}/{place.entry}\n".encode()
    return SNAPSHOTS + hashlib.sha256(start + content).hexdigest()


def page_content(chunks: list[Chunk]) -> bytes:
    """A page as it is stored."""
    return _canonical({"chunks": [chunk._asdict() for chunk in chunks]})


def read_page(objects: Readable, name: str) -> list[Chunk]:
    """The chunks that a page lists, in the order of their cells. Raises `Missing`."""
    return [chunk_of(found) for found in json.loads(objects.get(name))["chunks"]]


def chunk_of(data: Any) -> Chunk:
    """A chunk from JSON."""
    return Chunk(data["id"], tuple(data["first"]), tuple(data["last"]), data["cells"], data["size"])


def read_root(objects: Readable, name: str) -> Root:
    """A root. Raises `Missing`."""
    return Root(**json.loads(objects.get(name)))


def everything(objects: Readable, name: str) -> Iterator[tuple[str, int | None]]:
    """The names of all objects of a snapshot, from its root on, with the size that each should have where that is known.

    Raises `Missing`: the root or a page is not there.
    """
    yield name, None
    for page in read_root(objects, name).pages:
        yield page, None
        yield from ((chunk.id, chunk.size) for chunk in read_page(objects, page))


class Chunks:
    """The chunks of a finished snapshot by their number, from 0; none at all before the first one.

    Two pages are held: a merge looks one chunk ahead.
    """

    def __init__(self, objects: Readable, root: str | None, page_chunks: int = PAGE_CHUNKS) -> None:
        self.pages = read_root(objects, root).pages if root is not None else []
        self._objects, self._page_chunks = objects, page_chunks
        self._held: dict[int, list[Chunk]] = {}

    def at(self, number: int) -> Chunk | None:
        """None: there are not so many."""
        page, place = divmod(number, self._page_chunks)
        chunks = self.page(page)
        return chunks[place] if place < len(chunks) else None

    def page(self, number: int) -> list[Chunk]:
        """The chunks of a page, also from 0; [] behind the last one."""
        if number >= len(self.pages):
            return []
        if number not in self._held:
            self._held = {at: page for at, page in self._held.items() if abs(at - number) == 1}
            self._held[number] = read_page(self._objects, self.pages[number])
        return self._held[number]


def _canonical(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
