"""What `onefold verify` prints for people, and its exit codes."""

import io

import pytest
from rich.console import Console

from onefold.cli.commands.verify import render
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, Check, Finding, Verdict

COUNTS = {"records": 4, "accepted": 3, "ignored": 1, "forwarded": 0, "dead": 0}
ROW = Finding("different row", "campaigns.totals", {"id": 1}, {"computed": (1100, 2100)}, "campaigns.totals/0/7")


def printed(verdict: Verdict, shown: int | None = 20, width: int = 200) -> str:
    stream = io.StringIO()
    render(verdict, Console(file=stream, width=width), shown)
    return stream.getvalue()


def test_valid() -> None:
    text = printed(Verdict("runner", VALID, "all is well", [Check("runner.stats", 5, 5)], COUNTS))
    assert "runner: valid - all is well." in text
    assert "4 input records (3 accepted, 1 without effect" in text


def test_what_was_not_read_again_is_said() -> None:
    verdict = Verdict(
        "runner", VALID, "all is well", [], COUNTS, proved=1234, proved_at="2026-01-02T03:04:05.678+00:00"
    )
    assert "\n1,234 records of all topics were not read again: the verdict of 2026-01-02T03:04:05Z has." in printed(
        verdict
    )


def test_invalid_names_row_columns_and_records() -> None:
    text = printed(
        Verdict("campaigns", INVALID, "1 difference", [Check("campaigns.totals", 2, 2)], COUNTS, [ROW] * 3), 2
    )
    assert "id 1" in text
    assert "computed: 2100, should be 1100" in text
    assert "campaigns.totals/0/7" in text
    assert "1 more; --all prints them" in text
    assert "more; --all" not in printed(Verdict("campaigns", INVALID, "", [], COUNTS, [ROW] * 30), None)


def test_a_finding_can_be_copied_from_a_narrow_terminal() -> None:
    """Nothing in it is broken but by the terminal."""
    key = {"sheet_id": "a-rather-long-name-of-a-sheet", "entry": 12345678901234567890}
    finding = Finding("different row", "sheets.entries", key, {"content": ("x" * 90, "y" * 90)}, "sheets.entries/0/7")
    text = printed(Verdict("sheets", INVALID, "", [], COUNTS, [finding]), width=80)
    assert (
        "different row - sheets.entries - sheet_id a-rather-long-name-of-a-sheet, entry 12345678901234567890\n" in text
    )
    assert f"  content: {'y' * 90}, should be {'x' * 90}\n  output record sheets.entries/0/7\n" in text


def test_unknown_says_why() -> None:
    verdict = Verdict("runner", UNKNOWN, "there is no topic runner.updates")
    assert printed(verdict) == "runner: unknown - there is no topic runner.updates.\n"
    assert verdict.exit_code == 2


def test_values_are_never_taken_for_markup() -> None:
    finding = Finding("extra row", "campaigns.totals", {"id": "[bold]x[/bold]"}, text="[/red]")
    assert "[bold]x[/bold]" in printed(Verdict("campaigns", INVALID, "", [], COUNTS, [finding]))


@pytest.mark.parametrize("reason", ["the check itself failed: KeyError: '[/b]'", "no column [id]"])
def test_a_reason_is_never_taken_for_markup(reason: str) -> None:
    assert printed(Verdict("runner", UNKNOWN, reason)) == f"runner: unknown - {reason}.\n"


def test_what_strangers_wrote_is_text_and_no_command_to_a_terminal() -> None:
    """In a finding and in a reason."""
    finding = Finding("extra row", "a.b", {"id": "\x1b[31m"}, {"name": ("x", "\x1b]0;t\x07")}, text="up\n\x1b[A")
    text = printed(Verdict("runner", INVALID, "it says \x1b[2J", [], COUNTS, [finding]))
    assert all(line.isprintable() for line in text.splitlines())
    assert all(shown in text for shown in (r"id \x1b[31m", r"name: \x1b]0;t\x07", r"up\n\x1b[A", r"it says \x1b[2J."))
    assert printed(Verdict("runner", UNKNOWN, "\x1b[2J")) == "runner: unknown - \\x1b[2J.\n"


def test_kinds_come_worst_first_and_the_worst_of_a_kind_is_named() -> None:
    far = Finding("different row", "campaigns.totals", {"id": 2}, weight=9)
    verdict = Verdict("campaigns", INVALID, "", [], COUNTS, [ROW, far, Finding("doubled output", "campaigns.sends")])
    assert list(verdict.kinds()) == ["doubled output", "different row"]
    assert verdict.as_data()["kinds"]["different row"]["worst"]["key"] == {"id": 2}


def test_a_verdict_says_what_it_covers_and_what_it_does_not() -> None:
    """Of a topic with many partitions the first ones; and no reason is said, too."""
    begins, ends = {at: 7 * at for at in range(6)}, {at: 1000 + at for at in range(6)}
    verdict = Verdict("runner", VALID, "all is well", [], COUNTS, outputs=1234, rows=5)
    verdict.begins, verdict.offsets = {"runner.updates": begins}, {"runner.updates": ends, "runner.changelog": {0: 9}}
    verdict.not_judged = {"runner.extra": "it is for\u202e fun", "runner.stats.note": ""}
    text = printed(verdict)
    assert "\nCompared: 1,234 output records and 5 rows.\n" in text
    places = "/0 0 to 1,000, /1 7 to 1,001, /2 14 to 1,002, /3 21 to 1,003, 2 more partitions"
    assert f"\nRead: runner.updates{places}.\n" in text
    wanted = "runner.extra (it is for\\u202e fun); runner.stats.note (the model does not say why)"
    assert f"\nNot judged: {wanted}.\n" in text
    assert verdict.as_data()["not_judged"] == verdict.not_judged
