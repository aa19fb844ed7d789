"""The campaigns' rule: whatever the order of arrival, whatever is repeated, the same table."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.processor.apps.campaigns import SENDS_MAX, SENT_MAX, TEXT_MAX, Campaign, canonical, handle
from onefold.processor.core.errors import Rejected
from onefold.processor.core.values import Event

pytestmark = pytest.mark.promise("totals-never-change")

NOON, ONE, TWO = "2021-12-01 12:00:00", "2021-12-01 13:00:00", "2021-12-01 14:00:00"


def send(date: str, sent: int, version: int = 0, email: str = "A", subject: str = "A", id: int = 1) -> Event:  # noqa: A002
    value = SimpleNamespace(id=id, email=email, subject=subject, sent=sent, date=date, version=version)
    return Event("campaigns.sends", 0, 0, value)


def fold(events: list[Event], state: Campaign | None = None) -> tuple[Campaign | None, dict[str, Any]]:
    """The state, and the last totals."""
    totals: dict[str, Any] = {}
    for event in events:
        state, outputs = handle(state, event)
        totals = next((dict(output[1]) for output in outputs if output[0] == "campaigns.totals"), totals)
    return state, totals


def computed(totals: dict[str, Any]) -> int:
    return (totals["sent_1"] or 0) + (totals["sent_2"] or 0) + (totals["sent_rest"] or 0)


def test_the_seeds_three_messages() -> None:
    """Campaign A has 1100, in its two slots."""
    _, totals = fold([send(NOON, 100), send(ONE, 1000)])

    assert tuple(totals[name] for name in ("date_1", "sent_1", "date_2", "sent_2", "sent_rest", "sends")) == (
        NOON,
        100,
        ONE,
        1000,
        None,
        2,
    )


def test_a_repeat_changes_nothing() -> None:
    """The seed's 2100 does not happen: the same state comes back, and no outputs."""
    state, _ = fold([send(NOON, 100), send(ONE, 1000)])

    assert (state, ()) == handle(state, send(ONE, 1000))


SENDS = [send(NOON, 100), send(ONE, 1000), send(TWO, 7, email="B"), send(ONE, 1200), send(NOON, 0, version=1)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(SENDS)))))
def test_every_order_of_arrival_ends_alike(order: tuple[int, ...]) -> None:
    """All permutations, each with everything repeated in between: withdrawn first send, corrected second, a third."""
    events = [SENDS[at] for at in order]
    _, totals = fold([event for pair in zip(events, reversed(events), strict=True) for event in pair])

    assert tuple(totals[name] for name in ("date_1", "sent_1", "date_2", "sent_2", "sent_rest", "sends", "email")) == (
        ONE,
        1200,
        TWO,
        7,
        None,
        2,
        "B",
    )


@given(
    st.lists(
        st.builds(
            send,
            date=st.sampled_from([NOON, ONE, TWO, "2021-11-30T23:00:00", "2021-12-01T14:00:00+01:00"]),
            sent=st.integers(0, 3),
            version=st.integers(0, 2),
            email=st.sampled_from("AB"),
        ),
        min_size=1,
        max_size=8,
    ),
    st.randoms(use_true_random=False),
)
def test_order_and_duplicates_never_matter(events: list[Event], random: Any) -> None:
    """Any sends at all: shuffled and with repeats they leave the sends of the unshuffled ones."""
    shuffled = events + random.choices(events, k=3)
    random.shuffle(shuffled)
    straight, totals = fold(events)
    crooked, _ = fold(shuffled)

    assert straight is not None
    assert crooked is not None
    assert straight.sends == crooked.sends
    assert sum(held.sent for held in straight.sends.values()) == computed(totals)


def test_a_third_send_is_never_lost() -> None:
    """It stands beside the slots."""
    _, totals = fold([send(TWO, 7), send(NOON, 100), send(ONE, 1000), send("2021-12-01 15:00:00", 3)])

    assert (*(totals[n] for n in ("sent_1", "sent_2", "sent_rest", "sends")), computed(totals)) == (
        100,
        1000,
        10,
        4,
        1110,
    )


def test_a_correction_downwards_needs_a_version() -> None:
    """Without one the greater count holds; with one the correction does, also against a late repeat."""
    assert computed(fold([send(NOON, 100), send(NOON, 90)])[1]) == 100
    assert computed(fold([send(NOON, 100), send(NOON, 90, version=1), send(NOON, 100)])[1]) == 90


def test_a_send_moves_to_another_date_by_being_withdrawn() -> None:
    """Its old date holds no slot."""
    _, totals = fold([send(NOON, 100), send(NOON, 0, version=1), send(TWO, 100)])

    assert (totals["date_1"], totals["date_2"], totals["sends"]) == (TWO, None, 1)


def test_a_campaign_with_all_sends_withdrawn_has_no_slots() -> None:
    """And keeps its name."""
    _, totals = fold([send(NOON, 100, subject="S"), send(NOON, 0, version=1, subject="S")])

    assert (totals["date_1"], totals["sent_1"], totals["sends"], totals["subject"]) == (None, None, 0, "S")


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("2021-12-01T12:00:00", NOON),
        ("2021-12-01 12:00:00Z", NOON),
        ("2021-12-01T13:00:00+01:00", NOON),
        ("2021-12-01 12:00:00.5", "2021-12-01 12:00:00.500000"),
        ("2021-12-01 12:00:00.000000", NOON),
        ("0001-01-01 00:00:00", "0001-01-01 00:00:00"),
    ],
)
def test_dates_have_one_form(written: str, means: str) -> None:
    """An instant is an identity, however it is written."""
    assert means == canonical(written)


@pytest.mark.parametrize(
    "written",
    ["", "2021-12-01", "2021-12-01 12:00", "2021-W48-3 12:00:00", "20211201T120000", "2021-02-30 12:00:00", "2021-12-01 24:00:00",
     "2021-12-01 12:00:60", "2021-12-01 12:00:00,5", "2021-12-01 12:00:00+24:00", "0001-01-01 00:00:00+01:00",
     "9999-12-31 23:59:59-01:00", "٢021-12-01 12:00:00", "2021-12-01  12:00:00", "2021-12-01 12:00:00\n"],
)  # fmt: skip
def test_what_is_no_date_is_refused(written: str) -> None:
    """The reason quotes it."""
    with pytest.raises(Rejected, match="date is"):
        canonical(written)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (send(NOON, -1), "sent"),
        (send(NOON, SENT_MAX + 1), "sent"),
        (send(NOON, 1, version=-1), "version"),
        (send(NOON, 1, email="x" * (TEXT_MAX + 1)), "email"),
        (send(NOON, 1, subject="x" * (TEXT_MAX + 1)), "subject"),
    ],
)
def test_values_out_of_range_are_refused(event: Event, field: str) -> None:
    """The reason names the field."""
    with pytest.raises(Rejected, match=field):
        handle(None, event)


def test_a_campaign_holds_a_thousand_sends() -> None:
    """One more is refused; a correction of one that is held is not."""
    dates = [
        f"20{year:02}-01-{day:02} {hour:02}:00:00" for year in range(10, 99) for day in range(1, 29) for hour in (1, 2)
    ]
    state, _ = fold([send(date, 1) for date in dates[:SENDS_MAX]])

    with pytest.raises(Rejected, match=str(SENDS_MAX)):
        handle(state, send(dates[SENDS_MAX], 1))
    assert computed(fold([send(dates[0], 5)], state)[1]) == 1000 + 4
