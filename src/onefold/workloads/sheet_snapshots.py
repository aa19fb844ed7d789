"""Snapshots of sheets, against the entries of the log: every cell, every object's name, and objects that nothing names.

In the judge's words. A snapshot is a root, which names pages, which name chunks; a chunk has cells as lines, sorted by row
and column. It holds every cell as the newest entry before it left it. An object's name is the SHA-256 of its content with, in
front of it, the line `sheet/segment/entry` of the snapshot that wrote it first. A later snapshot may name a chunk again, when
none of its cells has changed, and a page.

Snapshots of a sheet are judged in order, each by what changed since the one before: a chunk is read when it is named first. A
chunk that is named again must be described as before, and must lie where no cell has changed. So the work grows with the
changes, and not with the number of snapshots times the size of the sheet.
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
#: What a cell holds: "n" and a number, "t" and a text, or "f" and a formula.
Content = tuple[str, Decimal | str]


@dataclass(frozen=True)
class Line:
    """An entry of a sheet's log.

    Attributes:
        kind: edit, import or snapshot.
        cell: of an edit.
        content: of an edit; None clears the cell.
        object: of an import, the name of its payload.
    """

    kind: str
    cell: Cell = (0, 0)
    content: Content | None = None
    object: str = ""


@dataclass(frozen=True)
class Made:
    """What was said of a snapshot that is made: its root, and its totals."""

    segment: int
    root: str
    totals: Mapping[str, int]


class Faulty(Exception):
    """Something is wrong with an object. The text says what."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Claim(NamedTuple):
    """What a page says of a chunk."""

    first: Cell
    last: Cell
    cells: int
    size: int


@dataclass
class _Sheet:
    """A sheet as far as its log was gone through, and the pages and chunks of its newest snapshot: what each chunk holds."""

    cells: dict[Cell, Content] = field(default_factory=dict)
    #: What the cells that were set since that snapshot held in it.
    before: dict[Cell, Content | None] = field(default_factory=dict)
    chunks: dict[str, _Claim] = field(default_factory=dict)
    pages: set[str] = field(default_factory=set)
    reached: int = 0
    is_wrong: bool = False


class Judge:
    """Judges snapshots in the order of their sheet's log, as far as that is known.

    Attributes:
        named: the objects that an import or a right snapshot names.
        right: how many snapshots were.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sheets: dict[str, _Sheet] = {}
        self.named: set[str] = set()
        self.right = 0

    def reached(self, sheet: str) -> int:
        """The number of the last entry that was gone through."""
        return self._sheets[sheet].reached if sheet in self._sheets else 0

    def go_on(self, sheet: str, entries: Iterable[tuple[int, Line, Made | None]]) -> Iterator[Finding]:
        """The next entries of a sheet, by number, and what was said of those that are finished snapshots. After something wrong
        no more is said of that sheet, as what comes after it builds on it.
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
    """What is wrong with the snapshots that were made, and with what else lies in the store.

    Args:
        logs: by sheet its entries, by number.
        made: by sheet and entry the snapshots that are finished.
        store: where their objects are.
    """
    judge = Judge(store)
    findings: list[Finding] = []
    for sheet, log in logs.items():
        findings += judge.go_on(sheet, ((number, log[number], made.get((sheet, number))) for number in sorted(log)))
    # Where a snapshot is wrong, what it and later ones name is not known.
    orphans = [] if findings else _orphans(store, judge.named)
    findings += [Finding("orphan object", "the object store", {"object": name}) for name in orphans]
    return [Check("snapshots", len(made), judge.right), Check("orphan objects", 0, len(orphans))], findings


def _orphans(store: Store, named: set[str]) -> list[str]:
    """Objects that nothing names. An upload with an expiry mark waits for its entry, or for the sweep."""
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
    """Goes through one snapshot."""

    def __init__(self, store: Store, state: _Sheet, named: set[str], place: tuple[str, int, int]) -> None:
        self._store = store
        self._state = state
        self._named = named
        self._place = place
        self._prefix = "{}/{}/{}\n".format(*place).encode()
        self._chunks: dict[str, _Claim] = {}
        self._last: Cell = (0, 0)

    def judge(self, snapshot: Made) -> None:
        """Raises `Faulty` for what is wrong."""
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
        """A page of the snapshot before may be named again; what it lists is judged as that of any other."""
        return _fetched(self._store, name) if name in self._state.pages else self._own(name)

    def _own(self, name: str) -> bytes:
        """The content of an object that this snapshot wrote, after its name was compared with it."""
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
        """Compare the cells of a chunk with the sheet; what a page must say of it."""
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
    """The cells of a chunk or a payload."""
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
