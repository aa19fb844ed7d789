"""Which stored records are gone on from."""

from collections.abc import Mapping
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.abc import ChangelogIs
from onefold.processor.core.changelog_format import FORMAT, RESETTING, check_format, other_partitions
from onefold.processor.core.errors import Refused
from onefold.processor.core.values import RecordCounts
from onefold.processor.runtime.changelog import TaskProgress
from onefold.processor.runtime.checkpoint import StateCheckpoint, unfit
from tests.support.coded import raises


@pytest.mark.parametrize("body", [{}, {"version": 1}, {"version": FORMAT}, {"version": 1, "resetting": False}])
def test_formats_up_to_this_ones_are_read(body: Mapping[str, Any]) -> None:
    check_format(body, "the progress")


def test_a_newer_format_and_a_reset_that_is_incomplete_are_refused() -> None:
    with raises(Refused, Code.NEWER_VERSION):
        check_format({"version": FORMAT + 1}, "the progress")
    with raises(Refused, Code.RESET_INCOMPLETE):
        check_format(RESETTING, "the progress")


@pytest.mark.parametrize("version", [0, -1, "1", True, 1.0, None])
def test_what_is_no_format_is_an_error(version: Any) -> None:
    with pytest.raises(ValueError, match="is no version"):
        check_format({"version": version}, "the progress")


@pytest.mark.parametrize(("states", "differ"), [(2, True), (3, False), (4, True), (None, False), ("2", False)])
def test_states_of_another_number_of_partitions_are_named(states: object, differ: bool) -> None:
    assert bool(other_partitions(states, "orders", 3)) is differ


KNOWN = TaskProgress(transactions=5, counts=RecordCounts(accepted=7))
KEPT_S = 100.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"next": 10}, ""),
        ({"next": 9}, "the changelog holds offsets 10 to 20"),
        ({"next": 20}, ""),
        ({"next": 21}, "the changelog holds offsets 10 to 20"),
        ({"at_s": 1000.0}, ""),
        ({"at_s": 1000.5}, "s old"),
        ({"at_s": 1000.0 - KEPT_S / 2}, ""),
        ({"at_s": 999.5 - KEPT_S / 2}, "s old"),
        ({"topic_id": "another"}, "of another changelog"),
        ({"partition": 1}, "of another changelog"),
        ({"progress": TaskProgress(transactions=4).encode()}, ""),
        ({"progress": TaskProgress(transactions=5).encode()}, "has lost transactions"),
        ({"progress": TaskProgress(transactions=6, counts=KNOWN.counts).encode()}, "has lost transactions"),
        ({"progress": b"junk"}, "cannot be read"),
    ],
)
def test_a_checkpoint_fits_a_changelog_that_has_all_since_then(change: dict[str, Any], reason: str) -> None:
    """At the bounds of its offsets, its age and its transactions."""
    found = StateCheckpoint("id", 0, 15, 990.0, KNOWN.encode(), b"")._replace(**change)
    said = unfit(found, ChangelogIs("id", 10, 20, KEPT_S), 0, KNOWN, 1000.0)
    assert reason in said if reason else said == ""
