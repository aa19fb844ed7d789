"""The spreadsheet's event log: entries with consecutive numbers, due snapshots, and decisions about uploads.

The pipeline has two kinds of state, distinguished by their keys:

    a sheet     an id without /        inputs sheets.edits, sheets.imports and sheets.finished
    an object   an id with /           input sheets.uploads

The handler's decisions are final, and all side effects outside of Kafka follow from them. A *job* is an output in the
transaction of its decision, so every decision has its job and every job has its decision. Workers execute each job at least
once.

The rule of a sheet:

- Each edit and each import is an entry, numbered from 1. A segment of the log has SEGMENT entries.
- After SNAPSHOT_EVERY entries since the newest snapshot entry, the next entry is a snapshot entry, with a job in the queue
  `sheets.jobs`. The condition is *at least* SNAPSHOT_EVERY entries, so the next entry also adds a missing snapshot entry, for
  instance after a change of the rule.
- The report in `sheets.finished` has the id of a snapshot's root. The first report for a snapshot entry counts, and later
  reports change nothing. A different root for the newest snapshot is a dead letter, as is a report for a later entry that is no
  snapshot entry.

The rule of an uploaded object: the first request, *complete* or *discard*, decides permanently.

- A completed object becomes an entry of its sheet through the feedback topic `sheets.imports`, and the job tells the worker to
  keep the object. A repeated `complete` changes nothing.
- A discarded object may also be unknown. The job tells the worker to delete the object. A later `complete` is refused, and the
  client must upload again under a new name.
- A repeated `discard` emits the decision again as a job. The garbage collection of the store therefore deletes nothing, and
  only sends `discard` requests.

Dead letters: fields outside the schema or the bounds below, two values in an edit, and the reports above.
"""

import re
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onefold import Event, Output, Outputs, Rejected, Topology

SNAPSHOT_EVERY = 100
# The unit of reading a log: about 100 KB.
SEGMENT = 1000

# The bounds of common spreadsheet programs, so that their sheets fit.
ROWS, COLUMNS = 1_048_576, 16_384
TEXT_CHARACTERS, FORMULA_CHARACTERS = 32_767, 8_192

_CELL = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")
_SHEET_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# A path in the store. The / distinguishes a path from a sheet's id.
_PATH = re.compile(r"(?=.{3,128}$)[a-z0-9]+(/[a-z0-9]+)+")
# The schema's digits of a number. A number with more digits raises an error and is never rounded.
_EXACT = Context(prec=38, traps=[Inexact, InvalidOperation])
_SMALLEST = Decimal("1e-9")

#: Evenly spaced snapshot entries: the first, the distance, the last.
Run = tuple[int, int, int]


# States contain no reference cycles. Untracked by the garbage collector (gc=False), each state needs less memory.
class SheetState(Struct, frozen=True, omit_defaults=True, gc=False):
    """The state of a sheet or of an object. Fields of the other kind keep their defaults and are not stored.

    Attributes:
        entries: The number of the sheet's entries, and so the number of its last entry.
        edits: The number of edits and imports among the entries.
        asked: The newest snapshot entry; 0 without a snapshot entry.
        finished: The newest snapshot entry with a reported snapshot; 0 before the first report.
        root: The root of the snapshot of `finished`.
        waiting: The snapshot entries without a report, in order. Without a running worker they become many, but evenly spaced,
            so the state does not grow.
        decided: The decision about the object: "completed", "discarded", or "" before a decision.
        decisions: The number of jobs emitted for the object.
    """

    entries: int = 0
    edits: int = 0
    asked: int = 0
    finished: int = 0
    root: str | None = None
    waiting: tuple[Run, ...] = ()
    decided: str = ""
    decisions: int = 0


def handle(state: SheetState | None, event: Event) -> tuple[SheetState | None, Outputs]:
    """Process an event of a sheet (edits, imports and reports) or of an object (uploads)."""
    value = event.value
    if not _SHEET_ID.fullmatch(value.sheet_id):
        raise Rejected("sheet_id must be 1 to 64 of A-Z, a-z, 0-9, _ . and -")
    if event.topic == "sheets.edits":
        return _entered(state or SheetState(), value.sheet_id, "edit", _edited(value))
    if event.topic == "sheets.uploads":
        return _uploaded(state, value)
    if event.topic == "sheets.imports":
        return _entered(state or SheetState(), value.sheet_id, "import", {"object_id": value.object_id})
    return _finished(state, value)


def _entered(sheet: SheetState, sheet_id: str, kind: str, fields: dict[str, Any]) -> tuple[SheetState, Outputs]:
    """The sheet after a new entry, and after a snapshot entry with its job if a snapshot is due."""
    number = sheet.entries + 1
    after = replace(sheet, entries=number, edits=sheet.edits + 1)
    outputs: list[Any] = [_entry(sheet_id, number, kind, fields)]
    # All entries since the newest snapshot entry are edits and imports.
    if number - sheet.asked >= SNAPSHOT_EVERY:
        due = number + 1
        after = replace(after, entries=due, asked=due, waiting=_noted(sheet.waiting, due))
        outputs.append(_entry(sheet_id, due, "snapshot", {}))
        outputs.append(("sheets.jobs", {"log_id": sheet_id, "segment": _segment(due), "entry": due}))
    return after, (*outputs, _standing(sheet_id, after))


def _entry(sheet_id: str, number: int, kind: str, fields: dict[str, Any]) -> tuple[str, Any]:
    entry = {"sheet_id": sheet_id, "entry": number, "segment": _segment(number), "kind": kind}
    return "sheets.entries", {**entry, **_NOTHING, **fields}


_NOTHING = dict.fromkeys(("cell", "row", "col", "number", "text", "formula", "object_id"))


def _standing(sheet_id: str, sheet: SheetState) -> tuple[str, Any]:
    names = ("entries", "edits", "asked", "finished", "root")
    return "sheets.sheets", {"sheet_id": sheet_id, **{name: getattr(sheet, name) for name in names}}


def _segment(number: int) -> int:
    return (number - 1) // SEGMENT


def _edited(value: Any) -> dict[str, Any]:
    """The entry's fields for the cell and its new value."""
    row, col = _place(value.cell)
    if sum(given is not None for given in (value.number, value.text, value.formula)) > 1:
        raise Rejected("number, text and formula: a cell has one of them, or none")
    if value.text is not None and len(value.text) > TEXT_CHARACTERS:
        raise Rejected(f"text has {len(value.text)} characters; at most {TEXT_CHARACTERS} are taken")
    if value.formula is not None and not value.formula.startswith("="):
        raise Rejected("formula must begin with =")
    if value.formula is not None and len(value.formula) > FORMULA_CHARACTERS:
        raise Rejected(f"formula has {len(value.formula)} characters; at most {FORMULA_CHARACTERS} are taken")
    number = None if value.number is None else _exact(value.number)
    return {"cell": value.cell, "row": row, "col": col, "number": number, "text": value.text, "formula": value.formula}


def _place(cell: str) -> tuple[int, int]:
    """The row and the column of a cell, both from 1."""
    found = _CELL.fullmatch(cell)
    if found is not None:
        row, col = int(found[2]), 0
        for letter in found[1]:
            col = col * 26 + ord(letter) - ord("A") + 1
        if row <= ROWS and col <= COLUMNS:
            return row, col
    raise Rejected("cell must be A1 to XFD1048576, in capitals")


def _exact(number: Decimal) -> Decimal:
    try:
        found = _EXACT.quantize(number, _SMALLEST)
    except DecimalException:
        found = Decimal("NaN")
    if not found.is_finite():
        raise Rejected("number must be below 10^29, with at most 9 digits after the point")
    return found


def _uploaded(state: SheetState | None, value: Any) -> tuple[SheetState | None, Outputs]:
    if not _PATH.fullmatch(value.object_id):
        raise Rejected("object_id must be a path of a-z, 0-9 and /, with at least one / and up to 128 characters")
    if value.cells < 0 or value.size < 0:
        raise Rejected("cells and size must not be negative")
    found = state or SheetState()
    upload = {"object_id": value.object_id, "sheet_id": value.sheet_id}
    if value.action == "complete":
        if found.decided == "completed":
            return state, ()
        if found.decided == "discarded":
            return state, (("sheets.refusals", {**upload, "reason": "discarded"}),)
        after, kept = _decided(found, "completed", value.object_id)
        fields = {**upload, "cells": value.cells, "size": value.size}
        return after, (Output("sheets.imports", fields, key=value.sheet_id), kept)
    after, job = _decided(found, found.decided or "discarded", value.object_id)
    return after, (job,)


def _decided(found: SheetState, decided: str, object_id: str) -> tuple[SheetState, tuple[str, Any]]:
    """The object after a further decision, and the decision's job."""
    after = replace(found, decided=decided, decisions=found.decisions + 1)
    job = {"log_id": object_id, "segment": 0, "entry": after.decisions, "keep": decided == "completed"}
    return after, ("sheets.objects", job)


def _finished(sheet: SheetState | None, value: Any) -> tuple[SheetState | None, Outputs]:
    """Process the report of a finished snapshot. The first report for a snapshot entry counts."""
    number = value.entry
    if number < 1 or value.segment != _segment(number):
        raise Rejected(f"entry is {number} and segment {value.segment}; entries begin at 1, {SEGMENT} are a segment")
    if not _PATH.fullmatch(value.root):
        raise Rejected("root must be a path of a-z, 0-9 and /, with at least one / and up to 128 characters")
    if not 0 <= value.shared <= value.chunks or value.cells < 0 or value.size < 0:
        raise Rejected("cells, size, chunks and shared must not be negative, nor shared above chunks")
    found = sheet or SheetState()
    waiting = _without(found.waiting, number)
    if waiting is None:
        if number > found.finished:
            raise Rejected(f"entry {number} is no snapshot entry of this sheet")
        if number == found.finished and value.root != found.root:
            raise Rejected(
                f"the snapshot of entry {number} has the root {found.root} already, and cannot have another one"
            )
        return sheet, ()
    after = replace(found, waiting=waiting)
    if number > found.finished:
        after = replace(after, finished=number, root=value.root)
    names = ("sheet_id", "entry", "segment", "root", "cells", "size", "chunks", "shared")
    snapshot = {name: getattr(value, name) for name in names}
    return after, (("sheets.snapshots", snapshot), _standing(value.sheet_id, after))


def _noted(runs: tuple[Run, ...], number: int) -> tuple[Run, ...]:
    """The runs after adding a number above all present numbers."""
    if runs:
        *others, (first, distance, last) = runs
        if last in (first, number - distance):
            return (*others, (first, number - last, number))
    return (*runs, (number, 0, number))


def _without(runs: tuple[Run, ...], number: int) -> tuple[Run, ...] | None:
    """The runs without this number; None if no run contains the number."""
    for at, (first, distance, last) in enumerate(runs):
        if first <= number <= last and (number - first) % (distance or 1) == 0:
            before = [_run(first, distance, number - distance)] if number > first else []
            behind = [_run(number + distance, distance, last)] if number < last else []
            return (*runs[:at], *before, *behind, *runs[at + 1 :])
    return None


def _run(first: int, distance: int, last: int) -> Run:
    return first, distance if last > first else 0, last


TOPOLOGY = Topology(
    name="sheets",
    inputs=("sheets.edits", "sheets.uploads", "sheets.imports", "sheets.finished"),
    key={
        "sheets.edits": lambda edit: edit.sheet_id,
        "sheets.uploads": lambda upload: upload.object_id,
        "sheets.imports": lambda found: found.sheet_id,
        "sheets.finished": lambda report: report.sheet_id,
    },
    state=SheetState,
    handle=handle,
    outputs={
        "sheets.entries": None,
        "sheets.sheets": ("sheet_id",),
        "sheets.snapshots": None,
        "sheets.refusals": ("object_id",),
        "sheets.imports": None,
        "sheets.jobs": None,
        "sheets.objects": None,
    },
)
