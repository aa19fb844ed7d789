"""The sheets' laws on the real loop: entries without a gap, one job for each snapshot, uploads decided once, after any crash."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.processor.apps.sheets import TOPOLOGY, SheetState, handle
from onefold.processor.core.values import Event
from onefold.testing import STEPS, TopologyDriver
from tests.support.crashes import crashed_at_every_hit

pytestmark = pytest.mark.promise("sheets-without-gaps")

A, B, C = "payloads/a", "payloads/b", "payloads/c"


def feed(driver: TopologyDriver) -> None:
    """Edits of two sheets, some in the wrong partition; uploads; reports, also of the snapshots before."""
    for wave in range(3):
        for number in range(75):
            astray = number % 3 if number % 10 == 0 else None
            fields = {"sheet_id": "st"[number % 2], "cell": f"A{number + 1}", "number": number}
            driver.send("sheets.edits", fields, partition=astray)
        for action, object_id in zip(
            ("complete", "discard", "complete"), ((A, B, C), (A, B, A), (B, B, C))[wave], strict=True
        ):
            fields = {"object_id": object_id, "sheet_id": "s", "action": action, "cells": 1, "size": 1}
            driver.send("sheets.uploads", fields)
        driver.run()
        for sheet in "st":
            report = {"sheet_id": sheet, "segment": 0, "entry": 101, "root": "snapshots/1"}
            driver.send("sheets.finished", {**report, "cells": 1, "size": 1, "chunks": 1, "shared": 0})
    driver.run()
    driver.stop()


def check(driver: TopologyDriver) -> None:
    """What must hold after any crash; which of two topics comes first may differ."""
    entries = driver.read("sheets.entries")
    for sheet, changes in (("s", 114 + 2), ("t", 111)):
        mine = [entry for entry in entries if entry["sheet_id"] == sheet]
        assert [entry["entry"] for entry in mine] == list(range(1, changes + 2)), "counted without a gap"
        assert [entry["entry"] for entry in mine if entry["kind"] == "snapshot"] == [101]
        assert driver.table("sheets.sheets")[sheet,] == {
            "sheet_id": sheet, "entries": changes + 1, "edits": changes, "asked": 101, "finished": 101,
            "root": "snapshots/1",
        }  # fmt: skip
    imported = Counter(entry["object_id"] for entry in entries if entry["kind"] == "import")
    assert imported == {A: 1, C: 1}
    assert Counter(job["log_id"] for job in driver.read("sheets.jobs")) == {"s": 1, "t": 1}
    jobs = [(job["log_id"], job["entry"], job["keep"]) for job in driver.read("sheets.objects")]
    assert sorted(jobs) == [(A, 1, True), (B, 1, False), (B, 2, False), (B, 3, False), (C, 1, True)]
    assert driver.table("sheets.refusals") == {(B,): {"object_id": B, "sheet_id": "s", "reason": "discarded"}}
    assert Counter(row["sheet_id"] for row in driver.read("sheets.snapshots")) == {"s": 1, "t": 1}


def test_it_is_so_without_a_crash() -> None:
    driver = TopologyDriver(TOPOLOGY, partitions=3)
    feed(driver)
    check(driver)
    assert set(driver.states()) == {"s", "t", A, B, C}


@pytest.mark.slow  # a second a step
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_no_gap_and_asks_for_no_snapshot_twice(step: str) -> None:
    for where, driver in crashed_at_every_hit(step, partial(TopologyDriver, TOPOLOGY, partitions=3), feed):
        try:
            check(driver)
        except AssertionError as error:
            raise AssertionError(where) from error


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 5)), min_size=1, max_size=6))
def test_after_any_crashes_the_numbers_have_no_gap(crashes: list[tuple[str, int]]) -> None:
    driver = TopologyDriver(TOPOLOGY, partitions=2)
    for step, hit in crashes:
        for number in range(40):
            driver.send("sheets.edits", {"sheet_id": "s", "cell": "A1", "number": number}, partition=number % 2)
        driver.crash_at(step, hit)
        driver.run()
    driver.run()
    entries = driver.read("sheets.entries")
    assert [entry["entry"] for entry in entries] == list(range(1, len(entries) + 1))
    assert sum(entry["kind"] == "edit" for entry in entries) == 40 * len(crashes)
    assert [job["entry"] for job in driver.read("sheets.jobs")] == [
        entry["entry"] for entry in entries if entry["kind"] == "snapshot"
    ]


def test_a_law_that_holds_of_everything_says_nothing() -> None:
    """With a bug in it the rule fails the check."""

    def forgetful(state: SheetState | None, event: Event) -> Any:
        after, outputs = handle(state, event)
        return after, [output for output in outputs if output[0] != "sheets.jobs"]

    def careless(state: SheetState | None, event: Event) -> Any:
        after, outputs = handle(state, event)
        if after is not None and event.topic == "sheets.uploads":
            after = msgspec.structs.replace(after, decided="")
        return after, outputs

    for bug in (forgetful, careless):
        driver = TopologyDriver(replace(TOPOLOGY, handle=bug), partitions=3)
        feed(driver)
        with pytest.raises(AssertionError):
            check(driver)
