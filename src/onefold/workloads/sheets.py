"""Verification model of `sheets`: the expected logs, the expected snapshots, and the expected decisions on uploads.

The rules of the model: a sheet's log is a list of lines, numbered from 1. Each edit and each import appends a line. As soon as
a hundred lines follow the last snapshot line, the next line is a snapshot line, with a job. Lines 1 to 1000 are segment 0, the
next thousand segment 1, and so on.

The first report of a finished snapshot for a snapshot line is accepted. The sheet shows the highest reported line and its root.
Any further report is inadmissible if its line is above the shown line, or if its line is the shown line and its root differs.
All remaining reports change nothing.

The first request completes or discards an object. A first completion gives an import, and a job to keep the object. Each
discard gives a job, numbered among the object's jobs, to keep a completed object or else to delete the object. Each completion
of a discarded object is refused. A completion of a completed object changes nothing.

A sheet's name has 1 to 64 ASCII letters, digits, `_`, `.` and `-`. The name of an object or a root has at least two parts of
lower-case letters and digits, separated by `/`, and at most 128 characters. A cell has up to three capitals, at most XFD, and a
row from 1 to 1048576 without a leading zero. A number is below 10^29 with nine digits after the point. A text has at most 32767
code points. A formula begins with `=` and has at most 8192 code points. An edit has at most one of the three. Counts are not
negative.

The generated input has a few sheets with most of the edits, and uploads that are discarded. Without running workers, set
`alone=True`: the input then also has the workers' reports of snapshots, and uploads that are completed, repeated, and discarded
before or after, all without objects in a store. With hostile input, some edits are out of bounds, and additional reports have a
wrong root, or a line that is no snapshot line.
"""

import json
import random
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from typing import Any

from onefold.verify.decode import Inadmissible
from onefold.verify.expect import Table, Workload
from onefold.verify.models import TrackedRows
from onefold.verify.objects import ObjectReader
from onefold.verify.record import Source
from onefold.verify.verdict import Check, Finding
from onefold.workloads.shaping import Input, StreamShape, shaped
from onefold.workloads.sheet_snapshots import Line, Made, SnapshotVerifier, judged

EDITS, UPLOADS, IMPORTS, FINISHED = "sheets.edits", "sheets.uploads", "sheets.imports", "sheets.finished"
JOBS, OBJECTS = "sheets.jobs", "sheets.objects"
BETWEEN, _A_SEGMENT = 100, 1000
_LAST_ROW, _LAST_COLUMN = 2**20, 2**14
_SHEET_LETTERS = frozenset(string.ascii_letters + string.digits + "_.-")
_PATH_LETTERS = frozenset(string.ascii_lowercase + string.digits)

_ENTRIES = Table("sheets.entries", "sheets.entries", ("sheet_id", "entry"))
_SHEETS = Table("sheets.sheets", "sheets.sheets", ("sheet_id",))
_SNAPSHOTS = Table("sheets.snapshots", "sheets.snapshots", ("sheet_id", "entry"))
_REFUSALS = Table("sheets.refusals", "sheets.refusals", ("object_id",))


@dataclass
class _SheetLog:
    """The state of a sheet's log. `roots` has the reported root of each snapshot line, or None before the report."""

    lines: int = 0
    changes: int = 0
    since: int = 0
    roots: dict[int, str | None] = field(default_factory=dict)
    newest: int = 0


class SheetsModel:
    """The expected rows for the records of the topics, and the expected jobs and imports."""

    def __init__(self) -> None:
        self._sheets: dict[str, _SheetLog] = {}
        # For each object, whether the object is completed, and the number of its jobs.
        self._objects: dict[str, tuple[bool, int]] = {}
        self._asked_for: list[tuple[str, dict[str, Any]]] = []
        self.rows: dict[str, dict[tuple[Any, ...], Any]] = {
            table.name: TrackedRows() for table in (_ENTRIES, _SHEETS, _SNAPSHOTS, _REFUSALS)
        }

    def key(self, value: dict[str, Any], source: Source) -> str:
        """The object of an upload, and the sheet of every other record."""
        return str(value["object_id" if source.topic == UPLOADS else "sheet_id"])

    def feeds(self) -> Sequence[tuple[str, dict[str, Any]]]:
        """The expected jobs and import of the last value."""
        return self._asked_for

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Process a record of one of the four topics."""
        self._asked_for = []
        if not 1 <= len(value["sheet_id"]) <= 64 or not _SHEET_LETTERS.issuperset(value["sheet_id"]):
            raise Inadmissible("this is no name of a sheet")
        if source.topic == EDITS:
            return self._append(value["sheet_id"], "edit", (*_contents(value), None), source)
        if source.topic == IMPORTS:
            return self._append(value["sheet_id"], "import", (*[None] * 6, value["object_id"]), source)
        if source.topic == UPLOADS:
            return self._decide(value, source)
        return self._report(value, source)

    def settle(self) -> None:
        """Do nothing, because `apply` keeps the rows up to date."""

    def unmade(self) -> str:
        """The number of requested snapshots without a report, in a sentence; "" if all are reported."""
        left = sum(root is None for sheet in self._sheets.values() for root in sheet.roots.values())
        return f"{left} snapshots of sheets are not made yet" if left else ""

    def judge_made(self, store: ObjectReader) -> tuple[list[Check], list[Finding]]:
        """Compare every reported snapshot with the log of its sheet, and find unreferenced objects in the store."""
        logs: dict[str, dict[int, Line]] = {}
        for (name, number), (row, _) in self.rows[_ENTRIES.name].items():
            logs.setdefault(name, {})[number] = _line(row)
        made = {key: _made(row) for key, (row, _) in self.rows[_SNAPSHOTS.name].items()}
        return judged(logs, made, store)

    def follow_made(self, store: ObjectReader) -> Callable[[], Iterator[Finding]]:
        """Return a function that verifies newly reported snapshots.

        Snapshots are verified in the order of their sheet's log, so each waits for the reports of all earlier snapshots.
        """
        judge = SnapshotVerifier(store)

        def look() -> Iterator[Finding]:
            for name in self._sheets:
                yield from judge.go_on(name, self._reported(name, judge.reached(name)))

        return look

    def _reported(self, name: str, after: int) -> Iterator[tuple[int, Line, Made | None]]:
        """The entries of a sheet after the entry `after`, up to the first snapshot without a report."""
        entries, snapshots = self.rows[_ENTRIES.name], self.rows[_SNAPSHOTS.name]
        for number in range(after + 1, self._sheets[name].lines + 1):
            line = _line(entries[name, number][0])
            if line.kind == "snapshot" and (name, number) not in snapshots:
                return
            yield number, line, _made(snapshots[name, number][0]) if line.kind == "snapshot" else None

    def _append(self, name: str, kind: str, contents: tuple[Any, ...], source: Source) -> bool:
        sheet = self._sheets.setdefault(name, _SheetLog())
        self._line(name, sheet, kind, contents, source)
        sheet.changes += 1
        sheet.since += 1
        if sheet.since >= BETWEEN:
            sheet.since = 0
            self._line(name, sheet, "snapshot", (None,) * 7, source)
            sheet.roots[sheet.lines] = None
            place = {"segment": (sheet.lines - 1) // _A_SEGMENT, "entry": sheet.lines}
            self._asked_for.append((JOBS, {"log_id": name, **place}))
        return self._show(name, sheet, source)

    def _line(self, name: str, sheet: _SheetLog, kind: str, contents: tuple[Any, ...], source: Source) -> None:
        sheet.lines += 1
        line = (name, sheet.lines, (sheet.lines - 1) // _A_SEGMENT, kind, *contents)
        self.rows[_ENTRIES.name][name, sheet.lines] = line, source

    def _show(self, name: str, sheet: _SheetLog, source: Source) -> bool:
        root = sheet.roots[sheet.newest] if sheet.newest else None
        asked = max(sheet.roots, default=0)
        self.rows[_SHEETS.name][name,] = (name, sheet.lines, sheet.changes, asked, sheet.newest, root), source
        return True

    def _decide(self, value: dict[str, Any], source: Source) -> bool:
        name, complete = value["object_id"], value["action"] == "complete"
        _check_path(name)
        _check_counts(value["cells"], value["size"])
        before = self._objects.get(name)
        completed, jobs = before or (complete, 0)
        if complete and before is not None:
            if not completed:
                self.rows[_REFUSALS.name][name,] = (name, value["sheet_id"], "discarded"), source
            return not completed
        self._objects[name] = completed, jobs + 1
        self._asked_for.append((OBJECTS, {"log_id": name, "segment": 0, "entry": jobs + 1, "keep": completed}))
        if complete:
            fields = {each: value[each] for each in ("sheet_id", "object_id", "cells", "size")}
            self._asked_for.append((IMPORTS, fields))
        return True

    def _report(self, value: dict[str, Any], source: Source) -> bool:
        name, line, root = value["sheet_id"], value["entry"], value["root"]
        _check_path(root)
        _check_counts(value["cells"], value["size"], value["shared"], value["chunks"] - value["shared"])
        if line <= 0 or value["segment"] != (line - 1) // _A_SEGMENT:
            raise Inadmissible("this line is not in this segment")
        sheet = self._sheets.get(name, _SheetLog())
        if sheet.roots.get(line, "") is not None:
            if line > sheet.newest or (line == sheet.newest and root != sheet.roots[line]):
                raise Inadmissible("no such snapshot was asked for, or it has another root")
            return False
        sheet.roots[line] = root
        sheet.newest = max(sheet.newest, line)
        counts = tuple(value[each] for each in ("cells", "size", "chunks", "shared"))
        self.rows[_SNAPSHOTS.name][name, line] = (name, line, value["segment"], root, *counts), source
        return self._show(name, sheet, source)


def _line(row: tuple[Any, ...]) -> Line:
    """The line of the log for a row of sheets.entries."""
    kind, _, at, column, number, text, formula, payload = row[3:]
    if kind != "edit":
        return Line(kind, object=payload or "")
    held = {"n": number, "t": text, "f": formula}
    content = next(((letter, value) for letter, value in held.items() if value is not None), None)
    return Line(kind, (at, column), content)


def _made(row: tuple[Any, ...]) -> Made:
    """The report for a row of sheets.snapshots."""
    return Made(row[2], row[3], dict(zip(("cells", "size", "chunks", "shared"), row[4:], strict=True)))


def _contents(value: dict[str, Any]) -> tuple[Any, ...]:
    """The cell, row, column, number, text and formula of an edit. Raises `Inadmissible` for an invalid edit."""
    cell, number, text, formula = value["cell"], value["number"], value["text"], value["formula"]
    letters = cell.rstrip(string.digits)
    digits = cell[len(letters) :]
    if not 1 <= len(letters) <= 3 or not set(letters) <= set(string.ascii_uppercase):
        raise Inadmissible("a cell begins with one to three capitals")
    column = 0
    for at, letter in enumerate(reversed(letters)):
        column += 26**at * (1 + string.ascii_uppercase.index(letter))
    if not 1 <= len(digits) <= 7 or digits[0] == "0" or int(digits) > _LAST_ROW or column > _LAST_COLUMN:
        raise Inadmissible("there is no such cell")
    if [number, text, formula].count(None) < 2:
        raise Inadmissible("a cell has one value")
    if text is not None and len(text) >= 2**15:
        raise Inadmissible("the text is too long")
    if formula is not None and (formula[:1] != "=" or len(formula) > 2**13):
        raise Inadmissible("this is no formula, or too long a one")
    return cell, int(digits), column, None if number is None else _admit(number), text, formula


def _admit(number: Decimal) -> Decimal:
    """The number. Raises `Inadmissible` if the number has more than nine digits after the point or is too large."""
    if not number.is_finite():
        raise Inadmissible("a number is finite")
    _, digits, exponent = number.as_tuple()
    if not any(digits):
        return Decimal(0)
    # `abs` would fail for 1E+1000000.
    if not -(10**29) < number < 10**29:
        raise Inadmissible("a number is below 10^29")
    too_small = digits[max(0, len(digits) + int(exponent) + 9) :] if int(exponent) < -9 else ()
    if any(too_small):
        raise Inadmissible("a number has at most nine digits after the point")
    return number


def _check_path(path: str) -> None:
    parts = path.split("/")
    if len(path) > 128 or len(parts) < 2 or not all(part and _PATH_LETTERS.issuperset(part) for part in parts):
        raise Inadmissible("this is no path of an object")


def _check_counts(*counts: int) -> None:
    if min(counts) < 0:
        raise Inadmissible("nothing can be counted below zero")


WORKLOAD = Workload(
    "sheets",
    (EDITS, UPLOADS, IMPORTS, FINISHED),
    (_ENTRIES, _SHEETS, _SNAPSHOTS, _REFUSALS),
    SheetsModel,
    fed=(IMPORTS,),
    queues=(JOBS, OBJECTS),
    made=True,
)

# --- input

# Few enough for early snapshots, and enough for every partition.
_SHEETS_MAX, _EDITS_A_SHEET = 40, 800
_UPLOADS_SHARE, _REPORTED_AGAIN_SHARE, _BAD_SHARE = 0.03, 0.2, 0.02
# The number of additional edits before a report of a snapshot, so that late edits have also arrived.
_LEEWAY = 20
# A small area with repeated edits of the same cells, and a few remote cells.
_ROWS, _COLUMNS = 200, 26
_CORNERS = ("A1", "XFD1048576", "A1048576", "XFD1", "ZZ99", "AAA100")
_TEXTS = ("", "x", "Zürich", "日本語", "\U0001f600", 'say "yes"', "a\nb", "=", " 7 ")  # = alone is a text here
_BAD_EDITS: tuple[dict[str, Any], ...] = (
    {"cell": "A0"},
    {"cell": "XFE1"},
    {"cell": "b7"},
    {"cell": "A1048577"},
    {"number": 1.5, "text": "two values"},
    {"formula": "A1+1"},
    {"text": "x" * 32_768},
    {"sheet_id": "a/b"},
    {"sheet_id": ""},
)


def generate(
    seed: int, count: int, *, shape: StreamShape | None = None, sheets: int | None = None, alone: bool = False
) -> Iterator[Input]:
    """Generate `count` inputs. Equal seeds give equal inputs. The topic of imports gets no inputs, as the pipeline writes it.

    Args:
        seed: The seed of the random numbers.
        count: The number of inputs.
        shape: The disturbances of the stream.
        sheets: The number of sheets.
        alone: Whether to also invent the records of workers and of clients with an object store.
    """
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    size = sheets or max(1, min(_SHEETS_MAX, count // _EDITS_A_SHEET))
    shape = shape or StreamShape()
    return shaped(rng, count, _events(rng, size, alone=alone, bad=shape.hostile > 0), shape)


def _events(rng: random.Random, size: int, *, alone: bool, bad: bool) -> Iterator[Input]:
    """Yield inputs without end. The first sheets get most of the edits."""
    edits, reported, uploads = [0] * size, [0] * size, 0
    while True:
        at = min(rng.randrange(size), rng.randrange(size))
        name = f"sheet-{at + 1}"
        chance = rng.random()
        if chance < _UPLOADS_SHARE:
            uploads += 1
            yield from _upload(rng, name, uploads, alone=alone)
        elif bad and chance > 1 - _BAD_SHARE:
            yield _input(EDITS, name, {"sheet_id": name, "cell": "A1"} | rng.choice(_BAD_EDITS))
        else:
            edits[at] += 1
            yield _input(EDITS, name, {"sheet_id": name, "cell": _cell(rng), **_value(rng)})
        if alone and edits[at] >= (reported[at] + 1) * BETWEEN + _LEEWAY:
            reported[at] += 1
            yield from _reports(rng, name, reported[at], bad=bad)


def _cell(rng: random.Random) -> str:
    if rng.random() < 0.01:
        return rng.choice(_CORNERS)
    return f"{string.ascii_uppercase[rng.randrange(_COLUMNS)]}{1 + rng.randrange(_ROWS)}"


def _value(rng: random.Random) -> dict[str, Any]:
    """The value of an edit: half of the values are numbers, and some clear the cell."""
    chance = rng.random()
    if chance < 0.5:
        return {"number": rng.randrange(-(10**6), 10**6) / 8}
    if chance < 0.7:
        return {"text": rng.choice(_TEXTS)}
    if chance < 0.9:
        above = rng.randrange(1, _ROWS)
        return {"formula": rng.choice((f"=A{above}+B{above}", f"=SUM(A1:C{above})", f"=2*(D{above}-1)/3"))}
    return {}


def _upload(rng: random.Random, name: str, number: int, *, alone: bool) -> Iterator[Input]:
    """The requests for an object: one or two discards, or with `alone` also completions, in several numbers and orders."""
    path = f"payloads/{sha256(f'{name}/{number}'.encode()).hexdigest()}"
    size = rng.randrange(1, 10**6)
    fields = {"object_id": path, "sheet_id": name, "cells": size // 20, "size": size}
    chosen = rng.choice(("c", "c", "cc", "cd", "cdcd", "d", "dd", "dc", "dcdc") if alone else ("d", "dd"))
    for letter in chosen:
        yield _input(UPLOADS, path, {**fields, "action": "complete" if letter == "c" else "discard"})


def _reports(rng: random.Random, name: str, number: int, *, bad: bool) -> Iterator[Input]:
    """The reports of the snapshot with this number. A hundred edits and the snapshot's own line are 101 lines."""
    line = number * (BETWEEN + 1)
    chunks = rng.randrange(1, 9)
    fields = {
        "sheet_id": name,
        "segment": (line - 1) // _A_SEGMENT,
        "entry": line,
        "root": _root(name, line),
        "cells": rng.randrange(10**4),
        "size": rng.randrange(10**6),
        "chunks": chunks,
        "shared": rng.randrange(chunks),
    }
    yield _input(FINISHED, name, fields)
    if rng.random() < _REPORTED_AGAIN_SHARE:
        yield _input(FINISHED, name, fields)
    if bad:
        yield _input(FINISHED, name, {**fields, "root": _root(name, -line)})
        far = line + 10 * _A_SEGMENT
        yield _input(FINISHED, name, {**fields, "entry": far, "segment": (far - 1) // _A_SEGMENT})


def _root(name: str, line: int) -> str:
    return f"snapshots/{sha256(f'{name}/{line}'.encode()).hexdigest()}"


def _input(topic: str, key: str, fields: dict[str, Any]) -> Input:
    return Input(topic, key.encode(), json.dumps(fields, ensure_ascii=False).encode())
