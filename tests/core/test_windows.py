"""The windows against a model that keeps every event, and asks each window anew."""

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.windows import Closed, Open, Windows, mean, sliding, tumbling

WINDOWS = st.builds(
    lambda every, more, lateness: Windows(every + more, every, lateness),
    st.integers(1, 7),
    st.integers(0, 15),
    st.integers(0, 9),
)
# An event time, or a time to close by; those of ticks go up.
STORY = st.lists(st.tuples(st.sampled_from(["event", "tick", "by events"]), st.integers(-30, 60)), max_size=30)


def count(value: int | None) -> int:
    return (value or 0) + 1


def windows_of(windows: Windows, at_ms: int) -> list[int]:
    """By trying every start there could be."""
    return [
        start
        for start in range(-100, 100)
        if start % windows.every_ms == 0 and start <= at_ms < start + windows.size_ms
    ]


@given(WINDOWS, st.integers(-30, 60))
def test_an_event_is_in_the_windows_whose_times_have_its_own(windows: Windows, at_ms: int) -> None:
    assert list(windows.starts(at_ms)) == windows_of(windows, at_ms)


@given(WINDOWS, STORY)
def test_windows_hold_what_a_brute_force_model_says(windows: Windows, story: list[tuple[str, int]]) -> None:
    """What is open, what was closed when and with how many events, and how often an event was late."""
    held: Open[int] | None = None
    closed: list[Closed[int]] = []
    counts: Counter[int] = Counter()
    told: list[tuple[int, int, int]] = []
    over, late, seen = -(10**6), 0, -(10**6)
    for what, at_ms in story:
        if what == "event":
            assert windows.is_late(held, at_ms) == all(
                start + windows.size_ms <= over for start in windows_of(windows, at_ms)
            )
            held = windows.add(held, at_ms, count)
            seen = max(seen, at_ms)
            for start in windows_of(windows, at_ms):
                if start + windows.size_ms <= over:
                    late += 1
                else:
                    counts[start] += 1
        elif held is not None:
            now_ms = at_ms if what == "tick" else held.seen_ms
            due_ms = windows.due_ms(held)
            held, newly = windows.close(held, now_ms)
            closed += newly
            assert bool(newly) == (due_ms is not None and due_ms <= now_ms)
            for start in sorted(counts):
                if start + windows.size_ms + windows.lateness_ms <= now_ms:
                    over = start + windows.size_ms
                    told.append((start, over, counts.pop(start)))
    assert [tuple(window) for window in closed] == told
    if held is not None:
        assert (held.values, held.late, held.seen_ms) == (dict(counts), late, seen)
        assert windows.due_ms(held) == (min(counts) + windows.size_ms + windows.lateness_ms if counts else None)


def test_a_tumbling_window_holds_an_event_once_and_a_sliding_one_as_often_as_it_slides() -> None:
    assert list(tumbling(60).starts(119)) == [60]
    assert list(tumbling(60).starts(120)) == [120]
    assert list(sliding(60, 20).starts(119)) == [60, 80, 100]
    assert list(sliding(60, 25).starts(119)) == [75, 100]


def test_a_window_closes_by_its_end_and_the_lateness() -> None:
    """Not a millisecond sooner; what comes later is counted, and changes nothing."""
    minutes = tumbling(60, lateness_ms=10)
    held = minutes.add(minutes.add(None, 59, count), 60, count)
    assert minutes.close(held, 69)[1] == []
    held, closed = minutes.close(held, 70)
    assert closed == [Closed(0, 60, 1)]
    assert not minutes.is_late(held, 60)
    assert minutes.is_late(held, 59)
    again = minutes.add(held, 59, count)
    assert (again.values, again.late) == ({60: 1}, 1)
    assert minutes.close(again, 70) == (again, [])
    assert minutes.close(again, 5)[0] is again, "and time does not go back"


@pytest.mark.parametrize("wrong", [(0, 0, 0), (10, 0, 0), (10, 11, 0), (10, 10, -1)])
def test_windows_that_cannot_be_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot be: 0 < every_ms <= size_ms"):
        Windows(*wrong)


@dataclass(frozen=True)
class Kept:
    """A state as a pipeline has it."""

    counts: Open[int]
    totals: Open[tuple[int, Decimal]]


@given(WINDOWS, STORY)
def test_a_state_of_windows_is_the_same_after_it_was_stored(windows: Windows, story: list[tuple[str, int]]) -> None:
    counts, totals = windows.add(None, 0, count), windows.add(None, 0, lambda held: (1, Decimal("0.10")))
    for what, at_ms in story:
        counts = windows.add(counts, at_ms, count) if what == "event" else windows.close(counts, at_ms)[0]
    kept = Kept(counts, totals)
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Kept) == kept


@given(
    st.one_of(st.integers(-(10**40), 10**40), st.decimals(allow_nan=False, allow_infinity=False, places=7)),
    st.integers(1, 10**20),
    st.integers(0, 12),
)
def test_a_mean_is_rounded_once_from_the_exact_quotient(total: int | Decimal, number: int, digits: int) -> None:
    """However many digits it has; half a unit goes to the even digit."""
    found = mean(total, number, digits)
    off = abs(Fraction(found) - Fraction(total) / number) * 10**digits
    assert off <= Fraction(1, 2)
    assert found.as_tuple().exponent == -digits
    if off == Fraction(1, 2):
        assert found.as_tuple().digits[-1] % 2 == 0


def test_the_middle_goes_to_the_even_digit() -> None:
    assert [str(mean(total, 2, 0)) for total in (1, 3, 5, -1, -3)] == ["0", "2", "2", "0", "-2"]
    assert str(mean(Decimal("0.30"), 4, 2)) == "0.08"
    assert str(mean(10**30 + 1, 1, 2)) == "1000000000000000000000000000001.00"
