"""The sheets' rule as a table: cells, snapshots that are due, reports of those that are made, uploads that are decided once."""

from decimal import Decimal
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.processor.apps.sheets import SNAPSHOT_EVERY, SheetState, handle
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Event

A = "payloads/a"


def edit(cell: str = "B7", sheet: str = "s", **value: Any) -> Event:
    given_ = {"number": None, "text": None, "formula": None} | value
    return Event("sheets.edits", 0, 0, SimpleNamespace(sheet_id=sheet, cell=cell, **given_))


def upload(action: str, object_id: str = A, cells: int = 3, size: int = 30) -> Event:
    value = SimpleNamespace(object_id=object_id, sheet_id="s", action=action, cells=cells, size=size)
    return Event("sheets.uploads", 0, 0, value)


def import_(object_id: str = A) -> Event:
    return Event("sheets.imports", 0, 0, SimpleNamespace(sheet_id="s", object_id=object_id, cells=3, size=30))


def finished(entry: int, root: str = "snapshots/1", segment: int | None = None, **counts: int) -> Event:
    given_ = {"cells": 1, "size": 1, "chunks": 2, "shared": 1} | counts
    segment = (entry - 1) // 1000 if segment is None else segment
    value = SimpleNamespace(sheet_id="s", segment=segment, entry=entry, root=root, **given_)
    return Event("sheets.finished", 0, 0, value)


def fold(*events: Event, state: SheetState | None = None) -> tuple[SheetState, list[tuple[str, dict[str, Any]]]]:
    """The state after all of them, and everything that was written, by topic."""
    written: list[tuple[str, dict[str, Any]]] = []
    for event in events:
        state, outputs = handle(state, event)
        written += [(output[0], output[1]) for output in outputs]
    assert state is not None
    return state, written


def of(topic: str, written: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [fields for name, fields in written if name == topic]


EDITS = [edit()] * SNAPSHOT_EVERY


# --- edits


@pytest.mark.parametrize(
    ("cell", "row", "col"),
    [("A1", 1, 1), ("B7", 7, 2), ("Z9", 9, 26), ("AA10", 10, 27), ("XFD1048576", 1048576, 16384), ("ZZ1", 1, 702)],
)
def test_a_cell_has_a_row_and_a_column(cell: str, row: int, col: int) -> None:
    _, written = fold(edit(cell, number=Decimal("12.5")))
    (entry,) = of("sheets.entries", written)
    assert entry == {
        "sheet_id": "s", "entry": 1, "segment": 0, "kind": "edit", "cell": cell, "row": row, "col": col,
        "number": Decimal("12.5"), "text": None, "formula": None, "object_id": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "cell",
    [
        *("XFE1", "A1048577", "A0", "a1", "A01", "", "A", "1", "A-1", "$A$1", "A1 ", " A1", "A1\n", "AAAA1", "A1:B2"),
        *("ZZZ1", "A10000000", "A\u0661", "\uff211"),  # the last two have a digit and a capital of other scripts
    ],
)
def test_what_is_no_cell_is_a_dead_letter(cell: str) -> None:
    with pytest.raises(Rejected, match="cell must be A1 to XFD1048576"):
        handle(None, edit(cell))


@pytest.mark.parametrize("sheet", ["", "x" * 65, "a/b", "a b", "ä", "a\n", "a:b"])
def test_what_is_no_sheet_is_a_dead_letter(sheet: str) -> None:
    with pytest.raises(Rejected, match="sheet_id must be"):
        handle(None, edit(sheet=sheet))


@pytest.mark.parametrize("sheet", ["x" * 64, "a.b_C-9", "-", "."])
def test_a_sheet_may_have_any_of_these_names(sheet: str) -> None:
    assert handle(None, edit(sheet=sheet))[1]


def test_an_edit_has_one_value_or_none() -> None:
    for value in ({"number": Decimal(1)}, {"text": ""}, {"formula": "="}, {}):
        assert handle(None, edit(**value))[1]
    for values in ({"number": Decimal(0), "text": ""}, {"text": "x", "formula": "=1"}):
        with pytest.raises(Rejected, match="a cell has one of them"):
            handle(None, edit(**values))


def test_texts_and_formulas_have_bounds() -> None:
    """In characters, and not in bytes."""
    assert handle(None, edit(text="\U0001f600" * 32_767))[1]
    assert handle(None, edit(formula="=" + "x" * 8_191))[1]
    for bad, why in (
        ({"text": "x" * 32_768}, "text has 32768 characters; at most 32767"),
        ({"formula": "=" + "x" * 8_192}, "formula has 8193 characters; at most 8192"),
        ({"formula": "1+1"}, "formula must begin with ="),
        ({"formula": ""}, "formula must begin with ="),
    ):
        with pytest.raises(Rejected, match=why):
            handle(None, edit(**bad))


@pytest.mark.parametrize(
    "number", ["0", "-0", "1e28", "99999999999999999999999999999.999999999", "-0.000000001", "1.50"]
)
def test_a_number_is_exact(number: str) -> None:
    (entry,) = of("sheets.entries", fold(edit(number=Decimal(number)))[1])
    assert entry["number"] == Decimal(number)


@pytest.mark.parametrize("number", ["1e29", "-1e29", "1e-10", "NaN", "sNaN", "Infinity", "1e999999", "1.0000000001"])
def test_a_number_that_would_have_to_be_rounded_is_a_dead_letter(number: str) -> None:
    with pytest.raises(Rejected, match=r"number must be below 10\^29"):
        handle(None, edit(number=Decimal(number)))


# --- snapshots


def test_a_snapshot_is_due_after_a_hundred_entries() -> None:
    state, written = fold(*EDITS[1:])
    assert of("sheets.jobs", written) == []
    state, written = fold(edit(), state=state)
    assert [entry["kind"] for entry in of("sheets.entries", written)] == ["edit", "snapshot"]
    assert of("sheets.jobs", written) == [{"log_id": "s", "segment": 0, "entry": 101}]
    assert of("sheets.sheets", written) == [
        {"sheet_id": "s", "entries": 101, "edits": 100, "asked": 101, "finished": 0, "root": None}
    ]
    _, written = fold(*[import_()] * 100, state=state)
    assert [entry["entry"] for entry in of("sheets.entries", written)] == list(range(102, 203))
    assert of("sheets.jobs", written) == [{"log_id": "s", "segment": 0, "entry": 202}]


def test_segments_are_a_thousand_entries() -> None:
    """Also of a snapshot that begins one."""
    _, written = fold(*EDITS * 20)
    entries = of("sheets.entries", written)
    assert [entry["entry"] for entry in entries] == list(range(1, 2021))
    assert all(entry["segment"] == (entry["entry"] - 1) // 1000 for entry in entries)
    assert {job["entry"]: job["segment"] for job in of("sheets.jobs", written)} == {
        number: (number - 1) // 1000 for number in range(101, 2021, 101)
    }
    _, written = fold(edit(), state=SheetState(entries=999, edits=989, asked=899))
    assert of("sheets.jobs", written) == [{"log_id": "s", "segment": 1, "entry": 1001}]


@pytest.mark.parametrize("late", [1, 7, 5000])
def test_a_snapshot_that_is_missing_is_made_good_at_the_next_entry(late: int) -> None:
    """A state of an older rule, or one that was taken over: the comparison is not with just a hundred."""
    state, written = fold(edit(), state=SheetState(entries=99 + late, edits=99 + late))
    assert of("sheets.jobs", written) == [{"log_id": "s", "segment": (100 + late) // 1000, "entry": 101 + late}]
    assert of("sheets.jobs", fold(*EDITS[1:], state=state)[1]) == []
    assert len(of("sheets.jobs", fold(*EDITS, state=state)[1])) == 1


# --- reports


def test_a_report_is_shown_and_a_repeat_changes_nothing() -> None:
    asked, _ = fold(*EDITS)
    state, written = fold(finished(101), state=asked)
    assert of("sheets.snapshots", written) == [
        {
            "sheet_id": "s",
            "entry": 101,
            "segment": 0,
            "root": "snapshots/1",
            "cells": 1,
            "size": 1,
            "chunks": 2,
            "shared": 1,
        }
    ]
    (sheet,) = of("sheets.sheets", written)
    assert (sheet["finished"], sheet["root"]) == (101, "snapshots/1")
    assert handle(state, finished(101)) == (state, ())
    later, _ = fold(*EDITS, finished(202, "snapshots/2"), state=state)
    assert handle(later, finished(101)) == (later, ()), "also when a newer one is finished"


def test_another_root_for_the_newest_snapshot_is_a_dead_letter() -> None:
    state, _ = fold(*EDITS, finished(101))
    with pytest.raises(Rejected, match="has the root snapshots/1 already"):
        handle(state, finished(101, "snapshots/2"))


@pytest.mark.parametrize("entry", [1, 100, 102, 202, 203, 10_000])
def test_a_report_for_an_entry_that_asked_for_none_is_a_dead_letter(entry: int) -> None:
    state, _ = fold(*EDITS * 2)
    if entry == 202:
        assert handle(state, finished(entry))[1]
        return
    with pytest.raises(Rejected, match="is no snapshot entry"):
        handle(state, finished(entry))
    with pytest.raises(Rejected, match="is no snapshot entry"):
        handle(None, finished(entry))


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (finished(101, segment=1), "entry is 101 and segment 1"),
        (finished(0), "entry is 0"),
        (finished(-100), "entry is -100"),
        (finished(101, "snapshots"), "root must be a path"),
        (finished(101, "snapshots/A"), "root must be a path"),
        (finished(101, "a/" + "x" * 127), "root must be a path"),
        (finished(101, cells=-1), "must not be negative"),
        (finished(101, size=-1), "must not be negative"),
        (finished(101, shared=-1), "must not be negative"),
        (finished(101, shared=3), "nor shared above chunks"),
    ],
)
def test_a_report_that_cannot_be_is_a_dead_letter(report: Event, why: str) -> None:
    state, _ = fold(*EDITS)
    with pytest.raises(Rejected, match=why):
        handle(state, report)


@pytest.mark.parametrize("order", list(permutations([101, 202, 303, 404])))
def test_reports_in_any_order_are_each_taken_once(order: tuple[int, ...]) -> None:
    """Workers do them in order. Should they ever not, no snapshot is lost, and the newest one stands."""
    state, _ = fold(*EDITS * 4)
    state, written = fold(*(finished(entry, f"snapshots/{entry}") for entry in [*order, *order]), state=state)
    assert [snapshot["entry"] for snapshot in of("sheets.snapshots", written)] == list(order)
    assert (state.finished, state.root, state.waiting) == (404, "snapshots/404", ())


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.data())
def test_what_waits_is_what_was_asked_for_and_not_reported(turns: list[bool], data: st.DataObject) -> None:
    """Against a set, with states that were taken over in between: the distance then differs."""
    state, waiting = SheetState(), set[int]()
    for asks in turns:
        if asks or not waiting:
            jump = data.draw(st.sampled_from([0, 0, 0, 1, 30]))
            state = msgspec.structs.replace(state, entries=state.entries + 99 + jump)
            state, written = fold(edit(), state=state)
            waiting.add(of("sheets.jobs", written)[0]["entry"])
        else:
            number = data.draw(st.sampled_from(sorted(waiting)))
            state, _ = fold(finished(number), state=state)
            waiting.remove(number)
        held = {at for first, apart, last in state.waiting for at in range(first, last + 1, apart or 1)}
        assert held == waiting


def test_the_state_does_not_grow_while_no_worker_runs() -> None:
    """A million entries, of which nobody has made a snapshot; then all of them are, one by one."""
    state, _ = fold(*EDITS * 3)
    small = len(msgspec.json.encode(state))
    (first, apart, _), many = state.waiting[0], 10_000
    state = msgspec.structs.replace(
        state, entries=many * 101, edits=many * 100, asked=many * 101, waiting=((first, apart, many * 101),)
    )
    state, _ = fold(*EDITS * 3, state=state)
    assert len(state.waiting) == 1
    assert len(msgspec.json.encode(state)) < small + 30
    for entry in range(101, state.asked + 1, 101):
        state, _ = fold(finished(entry), state=state)
        assert len(state.waiting) <= 1
    assert state.waiting == ()
    assert msgspec.json.decode(msgspec.json.encode(state), type=SheetState) == state


# --- uploads


def kept(written: list[tuple[str, dict[str, Any]]]) -> list[tuple[int, bool]]:
    return [(job["entry"], job["keep"]) for job in of("sheets.objects", written)]


def test_a_completed_upload_is_an_import_and_is_kept() -> None:
    state, written = fold(upload("complete"))
    assert of("sheets.imports", written) == [{"sheet_id": "s", "object_id": A, "cells": 3, "size": 30}]
    assert of("sheets.objects", written) == [{"log_id": A, "segment": 0, "entry": 1, "keep": True}]
    assert handle(state, upload("complete")) == (state, ())
    _, outputs = handle(None, upload("complete"))
    assert getattr(outputs[0], "key", None) == "s", "it goes to the sheet"
    _, written = fold(import_())
    assert [(entry["kind"], entry["object_id"]) for entry in of("sheets.entries", written)] == [("import", A)]


@pytest.mark.parametrize(
    ("actions", "jobs", "imports", "refusals"),
    [
        ("c", [True], 1, 0),
        ("cc", [True], 1, 0),
        ("d", [False], 0, 0),
        ("dd", [False, False], 0, 0),
        ("cd", [True, True], 1, 0),
        ("cdd", [True, True, True], 1, 0),
        ("cdc", [True, True], 1, 0),
        ("dc", [False], 0, 1),
        ("dcc", [False], 0, 2),
        ("dcd", [False, False], 0, 1),
        ("dcdc", [False, False], 0, 2),
    ],
)
def test_what_comes_first_decides(actions: str, jobs: list[bool], imports: int, refusals: int) -> None:
    _, written = fold(*(upload("complete" if letter == "c" else "discard") for letter in actions))
    assert kept(written) == list(enumerate(jobs, 1))
    assert len(of("sheets.imports", written)) == imports
    assert of("sheets.refusals", written) == [{"object_id": A, "sheet_id": "s", "reason": "discarded"}] * refusals


@given(st.text("cd", min_size=1, max_size=12))
def test_an_object_is_never_both_named_and_deleted(actions: str) -> None:
    """The law for which there is a sweep that asks: whatever comes, in whatever order."""
    _, written = fold(*(upload("complete" if letter == "c" else "discard") for letter in actions))
    named = len(of("sheets.imports", written))
    assert named <= 1
    assert {keep for _, keep in kept(written)} == {named == 1}
    assert [number for number, _ in kept(written)] == list(range(1, len(kept(written)) + 1))


@pytest.mark.parametrize("object_id", ["", "x", "payloads/", "/a", "a//b", "a/B", "a/../b", "a/b\n", "a/" + "x" * 127])
def test_what_is_no_path_is_a_dead_letter(object_id: str) -> None:
    with pytest.raises(Rejected, match="object_id must be a path"):
        handle(None, upload("complete", object_id))


def test_an_upload_of_less_than_nothing_is_a_dead_letter() -> None:
    for event in (upload("complete", cells=-1), upload("complete", size=-1)):
        with pytest.raises(Rejected, match="must not be negative"):
            handle(None, event)
