"""The judge of snapshots, on objects that the test wrote itself: it is content with right ones, and names each that is not."""

import hashlib
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from onefold.verify.objects import Folder
from onefold.verify.record import Source
from onefold.verify.verdict import Finding
from onefold.workloads import sheets
from onefold.workloads.sheet_snapshots import Content, Line, Made, judged

pytestmark = pytest.mark.promise("lost-objects-are-found")

Cells = dict[tuple[int, int], tuple[str, str]]


class Written:
    """A sheet `s` with an import (entry 1), an edit (2), a snapshot (3), an edit (4) and a snapshot (5) that shares a chunk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Folder(folder)
        self.put("payloads/aa", lines({(1, 1): ("n", "1.5"), (9, 9): ("t", "far")}))
        self.log = {
            1: Line("import", object="payloads/aa"),
            2: edit(1, 2, ("f", "=A1")),
            3: Line("snapshot"),
            4: edit(9, 9, None),
            5: Line("snapshot"),
        }
        self.near = self.chunk(3, {(1, 1): ("n", "1.50"), (1, 2): ("f", "=A1")})
        self.far = self.chunk(3, {(9, 9): ("t", "far")})
        self.made = {("s", 3): self.snapshot(3, [self.near, self.far]), ("s", 5): self.snapshot(5, [self.near])}

    def put(self, name: str, content: bytes) -> str:
        path = self.folder / "objects" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return name

    def own(self, entry: int, content: bytes) -> str:
        digest = hashlib.sha256(f"s/0/{entry}\n".encode() + content).hexdigest()
        return self.put(f"snapshots/{digest}", content)

    def chunk(self, entry: int, cells: Cells) -> dict[str, Any]:
        content = lines(cells)
        first, *_, last = [*cells, *cells]
        return {
            "id": self.own(entry, content), "first": first, "last": last, "cells": len(cells), "size": len(content),
        }  # fmt: skip

    def snapshot(self, entry: int, chunks: Sequence[dict[str, Any]]) -> Made:
        page = self.own(entry, json.dumps({"chunks": chunks}).encode())
        totals = {name: sum(chunk[name] for chunk in chunks) for name in ("cells", "size")}
        shared = sum(entry == 5 and chunk["id"] in (self.near["id"], self.far["id"]) for chunk in chunks)
        return Made(0, self.root(entry, [page], **totals), totals | {"chunks": len(chunks), "shared": shared})

    def root(self, entry: int, pages: list[str], /, **claimed: Any) -> str:
        fields = {"sheet": "s", "segment": 0, "entry": entry, "pages": pages} | claimed
        return self.own(entry, json.dumps(fields).encode())

    def findings(self) -> list[Finding]:
        return judged({"s": self.log}, self.made, self.store)[1]


def edit(row: int, column: int, held: tuple[str, str] | None) -> Line:
    content: Content | None = None
    if held:
        content = (held[0], Decimal(held[1]) if held[0] == "n" else held[1])
    return Line("edit", (row, column), content)


def lines(cells: Cells) -> bytes:
    return b"".join(json.dumps([*cell, *content]).encode() + b"\n" for cell, content in cells.items())


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_right_snapshots_are_right(written: Written) -> None:
    """All of them were gone through, and an upload that may still be named is no orphan."""
    written.put("payloads/bb", b"")
    written.put("../marks/payloads/bb", b"")
    checks, findings = judged({"s": written.log}, written.made, written.store)

    assert findings == []
    assert [(check.what, check.expected, check.found) for check in checks] == [
        ("snapshots", 2, 2),
        ("orphan objects", 0, 0),
    ]


def changed_cell(written: Written) -> None:
    written.log[2] = edit(1, 2, ("f", "=A2"))


def missed_edit(written: Written) -> None:
    written.log[2] = edit(1, 1, ("n", "1.5"))


def doubled_cell(written: Written) -> None:
    written.made["s", 5] = written.snapshot(5, [written.near, written.near])


def old_chunk_with_a_changed_cell(written: Written) -> None:
    written.log[4] = edit(1, 2, ("t", "new"))


def cell_that_came_into_an_old_chunk(written: Written) -> None:
    written.near = written.chunk(3, {(1, 1): ("n", "1.5"), (1, 2): ("f", "=A1"), (9, 9): ("t", "far")})
    written.made = {("s", 3): written.snapshot(3, [written.near]), ("s", 5): written.snapshot(5, [written.near])}
    written.log[4] = edit(5, 5, ("t", "between"))


def other_bytes_under_the_name(written: Written) -> None:
    written.put(written.near["id"], lines({(1, 1): ("n", "1.5"), (1, 2): ("t", "=A1")}))


def name_of_another_entry(written: Written) -> None:
    chunk = written.chunk(4, {(1, 1): ("n", "1.5"), (1, 2): ("f", "=A1")})
    written.made["s", 3] = written.snapshot(3, [chunk, written.far])


def wrong_total(written: Written) -> None:
    made = written.made["s", 3]
    written.made["s", 3] = Made(0, made.root, {**made.totals, "cells": 4})


def wrong_borders(written: Written) -> None:
    written.made["s", 3] = written.snapshot(3, [{**written.near, "last": (1, 3)}, written.far])


def no_cell(written: Written) -> None:
    written.put("payloads/aa", b"[1, 1]\n")


def claimed_otherwise(**claims: Any) -> Callable[[Written], None]:
    """The second snapshot lists the first one's chunk with other claims, in all totals too."""

    def spoil(written: Written) -> None:
        written.made["s", 5] = written.snapshot(5, [{**written.near, **claims}])

    return spoil


def old_chunk_with_a_narrower_range(written: Written) -> None:
    """The cell that is cleared lies outside of the claimed range, and readers of the chunk still find it."""
    written.log[4] = edit(1, 2, None)
    kept, far = {**written.near, "last": (1, 1), "cells": 1}, written.far
    written.made["s", 5] = written.snapshot(5, [kept, far])


def total_of(name: str, number: int) -> Callable[[Written], None]:
    def spoil(written: Written) -> None:
        made = written.made["s", 5]
        written.made["s", 5] = Made(0, made.root, {**made.totals, name: number})

    return spoil


def root_that_claims(**claims: Any) -> Callable[[Written], None]:
    def spoil(written: Written) -> None:
        made = written.made["s", 5]
        (page,) = json.loads((written.folder / "objects" / made.root).read_bytes())["pages"]
        totals = {name: made.totals[name] for name in ("cells", "size")}
        written.made["s", 5] = Made(0, written.root(5, [page], **(totals | claims)), made.totals)

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(old_chunk_with_a_narrower_range, id="an old chunk's range, around a stale cell"),
        pytest.param(claimed_otherwise(first=(1, 0)), id="an old chunk's first cell"),
        pytest.param(claimed_otherwise(last=(8, 8)), id="an old chunk's last cell"),
        pytest.param(claimed_otherwise(size=1), id="an old chunk's size"),
        pytest.param(total_of("shared", 77), id="too many shared"),
        pytest.param(total_of("shared", 0), id="too few shared"),
        pytest.param(root_that_claims(sheet="t"), id="the root's sheet"),
        pytest.param(root_that_claims(segment=1), id="the root's segment"),
        pytest.param(root_that_claims(entry=3), id="the root's entry"),
        pytest.param(root_that_claims(cells=3), id="the root's cells"),
        pytest.param(root_that_claims(size=3), id="the root's size"),
    ],
)
def test_every_claim_about_another_object_is_compared(written: Written, spoil: Callable[[Written], None]) -> None:
    """A page claims chunks, a root claims totals, and a report claims what is shared."""
    assert written.findings() == []
    spoil(written)

    assert [finding.kind for finding in written.findings()] == ["wrong object"]


@pytest.mark.parametrize(
    "spoil",
    [
        changed_cell,
        missed_edit,
        doubled_cell,
        old_chunk_with_a_changed_cell,
        cell_that_came_into_an_old_chunk,
        other_bytes_under_the_name,
        name_of_another_entry,
        wrong_total,
        wrong_borders,
        no_cell,
    ],
    ids=lambda spoil: spoil.__name__.replace("_", " "),
)
def test_a_wrong_object_is_found(written: Written, spoil: Callable[[Written], None]) -> None:
    """And the snapshot that names it."""
    spoil(written)
    (finding,) = written.findings()

    assert finding.kind == "wrong object"
    assert finding.key["sheet_id"] == "s"


@pytest.mark.parametrize("name", ["near", "payload", "root"])
def test_a_missing_object_is_found(written: Written, name: str) -> None:
    """A chunk, an upload that an entry names, or the root."""
    gone = {"near": written.near["id"], "payload": "payloads/aa", "root": written.made["s", 3].root}[name]
    (written.folder / "objects" / gone).unlink()
    (finding,) = written.findings()

    assert (finding.kind, finding.text) == ("missing object", f"{gone} is not in the object store")


@pytest.mark.parametrize("name", ["snapshots/00", "payloads/bb"])
def test_an_orphan_is_found(written: Written, name: str) -> None:
    """Nothing names it, and no mark says that something may."""
    written.put(name, b"")

    assert [(finding.kind, finding.key) for finding in written.findings()] == [("orphan object", {"object": name})]


def test_a_page_may_be_named_again(written: Written) -> None:
    """Where nothing changed, it is the same page under the same name."""
    written.log[4] = edit(9, 9, ("t", "far"))
    chunks = [written.near, written.far]
    page = written.own(3, json.dumps({"chunks": chunks}).encode())
    totals = written.made["s", 3].totals
    root = written.root(5, [page], cells=totals["cells"], size=totals["size"])
    for name in written.folder.glob("objects/snapshots/*"):
        if f"snapshots/{name.name}" not in {
            root,
            page,
            written.near["id"],
            written.far["id"],
            written.made["s", 3].root,
        }:
            name.unlink()
    written.made["s", 5] = Made(0, root, {**totals, "shared": 2})

    assert written.findings() == []
    written.log[4] = edit(9, 9, ("t", "near"))
    assert [finding.kind for finding in written.findings()] == ["wrong object"]


def test_snapshots_that_were_asked_for_are_unmade_until_they_are_reported() -> None:
    model, entry = sheets.Model(), sheets.BETWEEN + 1
    for number in range(sheets.BETWEEN):
        assert model.unmade() == ""
        model.apply({"sheet_id": "s", "object_id": "payloads/aa"}, Source(sheets.IMPORTS, 0, number))
    assert model.unmade() == "1 snapshots of sheets are not made yet"
    told = {"sheet_id": "s", "segment": 0, "entry": entry, "cells": 1, "size": 1, "chunks": 1, "shared": 0}
    model.apply({**told, "root": "snapshots/" + 64 * "a"}, Source(sheets.FINISHED, 0, 0))
    assert model.unmade() == ""
