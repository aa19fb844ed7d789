"""Verification of snapshots of sheets against the log: every cell, every object's name, and unreferenced objects.

The rules of the model: a snapshot has a root with the names of pages, pages with the names of chunks, and chunks with cells as
lines, sorted by row and column. A snapshot has the value of every cell after the newest earlier entry. An object's name is the
SHA-256 of a line `sheet/segment/entry`, of the snapshot that first wrote the object, followed by the content. A later snapshot
may reference an old chunk if no cell in the chunk has changed, and may reference an old page.

The snapshots of a sheet are verified in order, each by the changes since the previous snapshot. A chunk is read at its first
reference. At a later reference, its description must be the same, and no cell in its range may have changed. The work thus
grows with the changes, and not with the number of snapshots times the size of the sheet.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any, NamedTuple

from onefold.verify.objects import Store
from onefold.verify.verdict import Check, Finding

SNAPSHOTS, PAYLOADS = "snapshots/", "payloads/"
_TABLE = "sheets.snapshots"

Cell = tuple[int, int]
#: The content of a cell: "n" and a number, "t" and a text, or "f" and a formula.
Content = tuple[str, Decimal | str]


@dataclass(frozen=True)
class Line:
    """An entry of a sheet's log.

    Attributes:
        kind: edit, import or snapshot.
        cell: The cell of an edit.
        content: The content of an edit; None clears the cell.
        object: The payload's name of an import.
    """

    kind: str
    cell: Cell = (0, 0)
    content: Content | None = None
    object: str = ""


@dataclass(frozen=True)
class Made:
    """The report of a finished snapshot: its root, and its totals."""

    segment: int
    root: str
    totals: Mapping[str, int]


class Faulty(Exception):
    """A wrong or missing object, with the reason as the text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Claim(NamedTuple):
    """The description of a chunk in a page."""

    first: Cell
    last: Cell
    cells: int
    size: int


@dataclass
class _Sheet:
    """The state of a sheet after the entries read so far, and the pages and chunks of its newest snapshot."""

    cells: dict[Cell, Content] = field(default_factory=dict)
    #: The content in the newest snapshot of each cell set since.
    before: dict[Cell, Content | None] = field(default_factory=dict)
    chunks: dict[str, _Claim] = field(default_factory=dict)
    pages: set[str] = field(default_factory=set)
    reached: int = 0
    is_wrong: bool = False


class Judge:
    """The verifier of snapshots, in the order of their sheet's log.

    Attributes:
        named: The objects referenced by an import or a snapshot.
        right: The number of correct snapshots.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sheets: dict[str, _Sheet] = {}
        self.named: set[str] = set()
        self.right = 0

    def reached(self, sheet: str) -> int:
        """The number of the last entry read."""
        return self._sheets[sheet].reached if sheet in self._sheets else 0

    def go_on(self, sheet: str, entries: Iterable[tuple[int, Line, Made | None]]) -> Iterator[Finding]:
        """Verify the next entries of a sheet, by number, with the reports of finished snapshots.

        After a mismatch, the sheet yields no more findings, because later snapshots depend on the wrong snapshot.
        """
        state = self._sheets.setdefault(sheet, _Sheet())
        for number, line, made in () if state.is_wrong else entries:
            if line.kind == "import":
                self.named.add(line.object)
            try:
                _apply(state, line, self._store)
                if made is not None:
                    _Reading(self._store, state, self.named, (sheet, made.segment, number)).judge(made)
                    state.before.clear()
                    self.right += 1
            except Faulty as fault:
                state.is_wrong = True
                yield Finding(fault.kind, _TABLE, {"sheet_id": sheet, "entry": number}, text=str(fault))
                return
            state.reached = number


def judged(
    logs: Mapping[str, Mapping[int, Line]], made: Mapping[tuple[str, int], Made], store: Store
) -> tuple[list[Check], list[Finding]]:
    """Verify all finished snapshots, and find unreferenced objects in the store.

    Args:
        logs: The entries of each sheet, by number.
        made: The finished snapshots, by sheet and entry.
        store: The store of the objects.
    """
    judge = Judge(store)
    findings: list[Finding] = []
    for sheet, log in logs.items():
        findings += judge.go_on(sheet, ((number, log[number], made.get((sheet, number))) for number in sorted(log)))
    # After a wrong snapshot, the references of later snapshots are unknown.
    orphans = [] if findings else _orphans(store, judge.named)
    findings += [Finding("orphan object", "the object store", {"object": name}) for name in orphans]
    return [Check("snapshots", len(made), judge.right), Check("orphan objects", 0, len(orphans))], findings


def _orphans(store: Store, named: set[str]) -> list[str]:
    """Unreferenced objects, without uploads that have an expiration marker and wait for their entry or garbage collection."""
    expiring = store.marked()
    lying = [*store.names(SNAPSHOTS), *(name for name in store.names(PAYLOADS) if name not in expiring)]
    return sorted(set(lying) - named)


def _apply(state: _Sheet, line: Line, store: Store) -> None:
    if line.kind == "edit":
        _set(state, line.cell, line.content)
    elif line.kind == "import":
        for cell, content in _lines(_fetched(store, line.object)):
            _set(state, cell, content)


def _set(state: _Sheet, cell: Cell, content: Content | None) -> None:
    state.before.setdefault(cell, state.cells.get(cell))
    if content is None:
        state.cells.pop(cell, None)
    else:
        state.cells[cell] = content


class _Reading:
    """The verification of a single snapshot."""

    def __init__(self, store: Store, state: _Sheet, named: set[str], place: tuple[str, int, int]) -> None:
        self._store = store
        self._state = state
        self._named = named
        self._place = place
        self._prefix = "{}/{}/{}\n".format(*place).encode()
        self._chunks: dict[str, _Claim] = {}
        self._last: Cell = (0, 0)

    def judge(self, snapshot: Made) -> None:
        """Verify the snapshot. Raises `Faulty` for the first mismatch."""
        root = json.loads(self._own(snapshot.root))
        for page in root["pages"]:
            for chunk in json.loads(self._page(page))["chunks"]:
                self._chunk(chunk)
        totals = {
            "cells": sum(chunk.cells for chunk in self._chunks.values()),
            "size": sum(chunk.size for chunk in self._chunks.values()),
            "chunks": len(self._chunks),
            "shared": len(self._chunks.keys() & self._state.chunks.keys()),
        }
        if totals["cells"] != len(self._state.cells):
            raise Faulty("wrong object", f"it has {totals['cells']} cells, and the log makes {len(self._state.cells)}")
        self._compare("was reported with", snapshot.totals, totals)
        sheet, segment, entry = self._place
        place = {"sheet": sheet, "segment": segment, "entry": entry}
        self._compare("has a root with", root, {**place, "cells": totals["cells"], "size": totals["size"]})
        self._state.chunks = self._chunks
        self._state.pages = set(root["pages"])

    def _compare(self, what: str, claimed: Mapping[str, Any], right: Mapping[str, Any]) -> None:
        for name, value in right.items():
            if claimed.get(name) != value:
                raise Faulty("wrong object", f"it {what} {name} {claimed.get(name)}, should be {value}")

    def _page(self, name: str) -> bytes:
        """The content of a page, which may be a page of the previous snapshot. The chunks of every page are verified."""
        return _fetched(self._store, name) if name in self._state.pages else self._own(name)

    def _own(self, name: str) -> bytes:
        """The content of an object written by this snapshot. Raises `Faulty` if the name does not match the content."""
        content = _fetched(self._store, name)
        if name != SNAPSHOTS + hashlib.sha256(self._prefix + content).hexdigest():
            raise Faulty("wrong object", f"{name} is not the digest of its content in the snapshot that names it first")
        self._named.add(name)
        return content

    def _chunk(self, chunk: dict[str, Any]) -> None:
        name, claim = chunk["id"], _Claim(_cell(chunk["first"]), _cell(chunk["last"]), chunk["cells"], chunk["size"])
        if not self._last < claim.first <= claim.last:
            raise Faulty("wrong object", f"chunk {name} begins at {claim.first}, after {self._last}")
        held = self._state.chunks.get(name) or self._new_chunk(name)
        if claim != held:
            raise Faulty("wrong object", f"its page says of chunk {name} {_told(claim)}, should be {_told(held)}")
        if name in self._state.chunks:
            for cell, before in self._state.before.items():
                if claim.first <= cell <= claim.last and before != self._state.cells.get(cell):
                    raise Faulty("wrong object", f"chunk {name} is an old one, and cell {cell} in it has changed")
        self._chunks[name] = claim
        self._last = claim.last

    def _new_chunk(self, name: str) -> _Claim:
        """Compare the cells of a new chunk with the sheet, and return the expected description of the chunk."""
        content = self._own(name)
        held = list(_lines(content))
        if not held or not all(one[0] < other[0] for one, other in pairwise(held)):
            raise Faulty("wrong object", f"the cells of chunk {name} are none, or are not in order")
        for cell, found in held:
            wanted = self._state.cells.get(cell)
            if found != wanted:
                raise Faulty("wrong object", f"cell {cell} is {found} in chunk {name}, should be {wanted}")
        return _Claim(held[0][0], held[-1][0], len(held), len(content))


def _told(claim: _Claim) -> str:
    return ", ".join(f"{name} {value}" for name, value in claim._asdict().items())


def _fetched(store: Store, name: str) -> bytes:
    content = store.get(name)
    if content is None:
        raise Faulty("missing object", f"{name} is not in the object store")
    return content


def _lines(content: bytes) -> Iterator[tuple[Cell, Content | None]]:
    """The cells of a chunk or a payload. Raises `Faulty` for an invalid line."""
    try:
        for text in content.splitlines():
            row, column, *rest = json.loads(text)
            yield (int(row), int(column)), _content(*rest)
    except (ValueError, TypeError, InvalidOperation):
        raise Faulty("wrong object", "a line of it is no cell") from None


def _content(kind: str | None, text: str = "") -> Content | None:
    if kind is None:
        return None
    return kind, Decimal(text) if kind == "n" else text


def _cell(pair: list[int]) -> Cell:
    row, column = pair
    return row, column
