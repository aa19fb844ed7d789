"""Sheets: what each log must say, which snapshots must be asked for, and what must become of every upload.

Rules, in the judge's words. A sheet's log is a list, numbered from 1. An edit appends a line, and so does an import. Whenever a
line has made it a hundred or more since the last snapshot line, a snapshot line comes right behind it, and a job with its
number. Lines 1 to 1000 are segment 0, the next thousand segment 1, and so on.

A report of a finished snapshot is taken when the sheet has such a snapshot line and nothing was reported for it. The highest
line reported so is what the sheet shows, with its root. Of other reports one above that line is inadmissible, and so is one of
that very line with another root; the rest says nothing new.

An object is completed or discarded by what comes first. The completion that is first gives an import and a job to keep it.
Discarding always gives a job, with a number that counts the object's jobs: to keep it when it was completed, else not. Completing
what was discarded is refused, as often as it is tried; completing what was completed says nothing new.

Names: a sheet's has 1 to 64 ASCII letters, digits, `_`, `.` and `-`; an object's, and a root's, has parts of small letters and
digits with `/` between them, two at least, and at most 128 characters. A cell has up to three capitals, at most XFD, and a row
of 1 to 1048576 without a leading zero. A number is below 10^29 with nine digits after the point; a text has at most 32767 code
points, a formula begins with `=` and has at most 8192; an edit has one of the three or none. Counts are not negative.

The generated input: a few sheets that get most of the edits, and uploads of which nobody hears again, which are discarded. Where
no workers run, ask for `alone=True`: then there are reports of snapshots, as workers would write them, and uploads that are
completed, repeated, discarded before or after, though no object of any of them was ever made. Where hostile input is asked for,
some edits are out of bounds, and some of such reports name a line that is no snapshot's, or another root.
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
from onefold.verify.objects import Store
from onefold.verify.record import Source
from onefold.verify.verdict import Check, Finding
from onefold.workloads.shaping import Input, Shape, shaped
from onefold.workloads.sheet_snapshots import Judge, Line, Made, judged

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
class _Sheet:
    """A log: how many lines it has, and of its snapshot lines which have a report."""

    lines: int = 0
    changes: int = 0
    since: int = 0
    roots: dict[int, str | None] = field(default_factory=dict)
    newest: int = 0


class Model:
    """The rows that the topics must give, and the jobs and imports that must have been written."""

    def __init__(self) -> None:
        self._sheets: dict[str, _Sheet] = {}
        # Per object whether it was completed, and how many jobs it has had.
        self._objects: dict[str, tuple[bool, int]] = {}
        self._asked_for: list[tuple[str, dict[str, Any]]] = []
        self.rows: dict[str, dict[tuple[Any, ...], Any]] = {
            table.name: TrackedRows() for table in (_ENTRIES, _SHEETS, _SNAPSHOTS, _REFUSALS)
        }

    def key(self, value: dict[str, Any], source: Source) -> str:
        """An upload is about its object, all else about its sheet."""
        return str(value["object_id" if source.topic == UPLOADS else "sheet_id"])

    def feeds(self) -> Sequence[tuple[str, dict[str, Any]]]:
        """The jobs and the import that the last value asks for."""
        return self._asked_for

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take a record of one of the four topics."""
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
        """Rows are kept up to date all the time."""

    def unmade(self) -> str:
        """How many snapshots were asked for and are not reported, in one sentence; "" when all are."""
        left = sum(root is None for sheet in self._sheets.values() for root in sheet.roots.values())
        return f"{left} snapshots of sheets are not made yet" if left else ""

    def judge_made(self, store: Store) -> tuple[list[Check], list[Finding]]:
        """Every reported snapshot against the log of its sheet, and what lies in the store beside them."""
        logs: dict[str, dict[int, Line]] = {}
        for (name, number), (row, _) in self.rows[_ENTRIES.name].items():
            logs.setdefault(name, {})[number] = _line(row)
        made = {key: _made(row) for key, (row, _) in self.rows[_SNAPSHOTS.name].items()}
        return judged(logs, made, store)

    def follow_made(self, store: Store) -> Callable[[], Iterator[Finding]]:
        """Snapshots are judged in the order of their sheet's log: one that is reported waits for those before it."""
        judge = Judge(store)

        def look() -> Iterator[Finding]:
            for name in self._sheets:
                yield from judge.go_on(name, self._reported(name, judge.reached(name)))

        return look

    def _reported(self, name: str, after: int) -> Iterator[tuple[int, Line, Made | None]]:
        """The entries of a sheet after that one, up to the first snapshot that is not reported."""
        entries, snapshots = self.rows[_ENTRIES.name], self.rows[_SNAPSHOTS.name]
        for number in range(after + 1, self._sheets[name].lines + 1):
            line = _line(entries[name, number][0])
            if line.kind == "snapshot" and (name, number) not in snapshots:
                return
            yield number, line, _made(snapshots[name, number][0]) if line.kind == "snapshot" else None

    def _append(self, name: str, kind: str, contents: tuple[Any, ...], source: Source) -> bool:
        sheet = self._sheets.setdefault(name, _Sheet())
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

    def _line(self, name: str, sheet: _Sheet, kind: str, contents: tuple[Any, ...], source: Source) -> None:
        sheet.lines += 1
        line = (name, sheet.lines, (sheet.lines - 1) // _A_SEGMENT, kind, *contents)
        self.rows[_ENTRIES.name][name, sheet.lines] = line, source

    def _show(self, name: str, sheet: _Sheet, source: Source) -> bool:
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
        sheet = self._sheets.get(name, _Sheet())
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
    """A row of the entries as a line of the log."""
    kind, _, at, column, number, text, formula, payload = row[3:]
    if kind != "edit":
        return Line(kind, object=payload or "")
    held = {"n": number, "t": text, "f": formula}
    content = next(((letter, value) for letter, value in held.items() if value is not None), None)
    return Line(kind, (at, column), content)


def _made(row: tuple[Any, ...]) -> Made:
    """A row of the snapshots."""
    return Made(row[2], row[3], dict(zip(("cells", "size", "chunks", "shared"), row[4:], strict=True)))


def _contents(value: dict[str, Any]) -> tuple[Any, ...]:
    """Of an edit: cell, row, column, number, text, formula."""
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
    """The same number; raises `Inadmissible` when it has more than nine digits after the point, or is too large."""
    if not number.is_finite():
        raise Inadmissible("a number is finite")
    _, digits, exponent = number.as_tuple()
    if not any(digits):
        return Decimal(0)
    # Not `abs`, whose arithmetic fails for 1E+1000000.
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
    Model,
    fed=(IMPORTS,),
    queues=(JOBS, OBJECTS),
    made=True,
)

# --- input

# So few that snapshots come soon, and so many that each partition has its share.
_SHEETS_MAX, _EDITS_A_SHEET = 40, 800
_UPLOADS_SHARE, _REPORTED_AGAIN_SHARE, _BAD_SHARE = 0.03, 0.2, 0.02
# A report comes when so many edits more were sent than its snapshot needs: edits that are late are then there as well.
_LEEWAY = 20
# Cells that meet again and again, and a few that are far out.
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
    seed: int, count: int, *, shape: Shape | None = None, sheets: int | None = None, alone: bool = False
) -> Iterator[Input]:
    """`count` inputs; the same seed gives the same ones. None for the imports: those are the pipeline's own.

    Args:
        seed: of the random numbers.
        count: how many.
        shape: how the stream differs from a well-behaved one.
        sheets: how many there are.
        alone: also what workers and clients with an object store write, made up.
    """
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    size = sheets or max(1, min(_SHEETS_MAX, count // _EDITS_A_SHEET))
    shape = shape or Shape()
    return shaped(rng, count, _events(rng, size, alone=alone, bad=shape.hostile > 0), shape)


def _events(rng: random.Random, size: int, *, alone: bool, bad: bool) -> Iterator[Input]:
    """Without end. The first sheets get most of the edits."""
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
    """Half of them numbers; some clear their cell."""
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
    """The same object: discarded, also twice; or also completed, maybe again, before or after or never discarded."""
    path = f"payloads/{sha256(f'{name}/{number}'.encode()).hexdigest()}"
    size = rng.randrange(1, 10**6)
    fields = {"object_id": path, "sheet_id": name, "cells": size // 20, "size": size}
    chosen = rng.choice(("c", "c", "cc", "cd", "cdcd", "d", "dd", "dc", "dcdc") if alone else ("d", "dd"))
    for letter in chosen:
        yield _input(UPLOADS, path, {**fields, "action": "complete" if letter == "c" else "discard"})


def _reports(rng: random.Random, name: str, number: int, *, bad: bool) -> Iterator[Input]:
    """Of the snapshot of that number. Each hundred edits and the snapshot's own line are 101 lines."""
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
