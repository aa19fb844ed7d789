"""The spreadsheet's event log: entries that are counted without a gap, snapshots that are due, and what becomes of uploads.

Two kinds of state in one pipeline, told apart by their keys:

    a sheet     its id has no /        sheets.edits, sheets.imports and sheets.finished come to it
    an object   its id has one         sheets.uploads comes to it

What the fold decides here is final, and all that has to be done outside of Kafka follows from it: a *job* is an output, in
the transaction of the decision, so there is no decision without its job and no job without a decision. Workers do the jobs,
at least once.

The rule of a sheet:

- An edit is an entry, and so is an import: entries are counted from 1 on. SEGMENT of them are a segment of the log.
- When SNAPSHOT_EVERY entries have come since the newest snapshot entry, the next entry is a snapshot entry, and its job is in
  the queue `sheets.jobs`. It is asked after each entry whether there are *at least* so many: a snapshot entry that is missing
  (the rule was another one, the state was taken over) is made good at the next entry.
- The id of a snapshot's root comes back in `sheets.finished`. What is reported first for a snapshot entry counts. Later ones
  change nothing; but another root for the newest one is a dead letter, and so is a snapshot that nobody asked for.

The rule of an uploaded object: it is *completed* or *discarded*, whichever is asked for first, for ever.

- Completed: its sheet gets an entry with its id, by `sheets.imports`, which this pipeline feeds itself; and the job says that it
  is to be kept. To complete it again changes nothing.
- Discarded, which also an object can be that nobody has heard of: the job says that it is to be deleted. To complete it later is
  a refusal, and the client has to upload again under another name.
- To discard it again gives a job again, which says what was decided. So who sweeps the store deletes nothing: he asks here.

Dead letters: fields that break the contract or the bounds below, two values in one edit, and reports as above.
"""

import re
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onefold import Event, Output, Outputs, Rejected, Topology

SNAPSHOT_EVERY = 100
# What is read at once when a log is read: some 100 KB of it.
SEGMENT = 1000

# The bounds are those of the spreadsheets that people have, so that what comes from there fits.
ROWS, COLUMNS = 1_048_576, 16_384
TEXT_CHARACTERS, FORMULA_CHARACTERS = 32_767, 8_192

_CELL = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")
_SHEET_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# A path in the store. With a / in it, it is no sheet's id.
_PATH = re.compile(r"(?=.{3,128}$)[a-z0-9]+(/[a-z0-9]+)+")
# As many digits as the contract has for a number: what does not fit, or would have to be rounded, is an error.
_EXACT = Context(prec=38, traps=[Inexact, InvalidOperation])
_SMALLEST = Decimal("1e-9")

#: Snapshot entries at the same distance from one another: the first, the distance, the last.
Run = tuple[int, int, int]


# A state holds nothing that refers to it, so it can be in no cycle: out of the garbage collector's sight it is smaller.
class State(Struct, frozen=True, omit_defaults=True, gc=False):
    """A sheet, or an object. What the other one needs stays at its default, and is not stored.

    Attributes:
        entries: of the sheet; also the number of the last one.
        edits: of these, edits and imports.
        asked: the newest snapshot entry; 0: none.
        finished: the newest one whose snapshot was reported; 0: none.
        root: of that snapshot.
        waiting: the snapshot entries without a report, in order. While no worker runs they are many, but at one distance from
            one another: the state does not grow with them.
        decided: of the object: "completed", "discarded", or nothing yet.
        decisions: how many jobs were given for it.
    """

    entries: int = 0
    edits: int = 0
    asked: int = 0
    finished: int = 0
    root: str | None = None
    waiting: tuple[Run, ...] = ()
    decided: str = ""
    decisions: int = 0


def handle(state: State | None, event: Event) -> tuple[State | None, Outputs]:
    """Four topics: three of them come to a sheet, uploads to an object."""
    value = event.value
    if not _SHEET_ID.fullmatch(value.sheet_id):
        raise Rejected("sheet_id must be 1 to 64 of A-Z, a-z, 0-9, _ . and -")
    if event.topic == "sheets.edits":
        return _entered(state or State(), value.sheet_id, "edit", _edited(value))
    if event.topic == "sheets.uploads":
        return _uploaded(state, value)
    if event.topic == "sheets.imports":
        return _entered(state or State(), value.sheet_id, "import", {"object_id": value.object_id})
    return _finished(state, value)


def _entered(sheet: State, sheet_id: str, kind: str, fields: dict[str, Any]) -> tuple[State, Outputs]:
    """The sheet with one more entry; and with a snapshot entry behind it, and the job for that, when one is due."""
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


def _standing(sheet_id: str, sheet: State) -> tuple[str, Any]:
    names = ("entries", "edits", "asked", "finished", "root")
    return "sheets.sheets", {"sheet_id": sheet_id, **{name: getattr(sheet, name) for name in names}}


def _segment(number: int) -> int:
    return (number - 1) // SEGMENT


def _edited(value: Any) -> dict[str, Any]:
    """The cell and its new value, as the entry has them."""
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
    """Row and column, from 1 on."""
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


def _uploaded(state: State | None, value: Any) -> tuple[State | None, Outputs]:
    if not _PATH.fullmatch(value.object_id):
        raise Rejected("object_id must be a path of a-z, 0-9 and /, with at least one / and up to 128 characters")
    if value.cells < 0 or value.size < 0:
        raise Rejected("cells and size must not be negative")
    found = state or State()
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


def _decided(found: State, decided: str, object_id: str) -> tuple[State, tuple[str, Any]]:
    """The object after one more decision, and the job for it."""
    after = replace(found, decided=decided, decisions=found.decisions + 1)
    job = {"log_id": object_id, "segment": 0, "entry": after.decisions, "keep": decided == "completed"}
    return after, ("sheets.objects", job)


def _finished(sheet: State | None, value: Any) -> tuple[State | None, Outputs]:
    """A report of a snapshot that is made: the first one for its entry counts."""
    number = value.entry
    if number < 1 or value.segment != _segment(number):
        raise Rejected(f"entry is {number} and segment {value.segment}; entries begin at 1, {SEGMENT} are a segment")
    if not _PATH.fullmatch(value.root):
        raise Rejected("root must be a path of a-z, 0-9 and /, with at least one / and up to 128 characters")
    if not 0 <= value.shared <= value.chunks or value.cells < 0 or value.size < 0:
        raise Rejected("cells, size, chunks and shared must not be negative, nor shared above chunks")
    found = sheet or State()
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
    """The runs with one more number, which is above all others."""
    if runs:
        *others, (first, distance, last) = runs
        if last in (first, number - distance):
            return (*others, (first, number - last, number))
    return (*runs, (number, 0, number))


def _without(runs: tuple[Run, ...], number: int) -> tuple[Run, ...] | None:
    """The runs without this number; None when it is in none of them."""
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
    state=State,
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
