"""The judge's model of the campaigns domain, held to the seed and to every order of arrival."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.verify.decode import Inadmissible
from onefold.verify.record import Source
from onefold.workloads import campaigns
from onefold.workloads.campaigns import instant

NOON, ONE = datetime(2021, 12, 1, 12), datetime(2021, 12, 1, 13)
SEED = [
    {"id": 1, "email": "A", "subject": "A", "sent": 100, "date": "2021-12-01 12:00:00", "version": 0},
    {"id": 2, "email": "B", "subject": "B", "sent": 100, "date": "2021-12-01 12:00:00", "version": 0},
    {"id": 1, "email": "A", "subject": "A", "sent": 1000, "date": "2021-12-01 13:00:00", "version": 0},
]
THIRD = {**SEED[0], "sent": 7, "date": "2021-12-01T16:00:00+02:00"}
CORRECTED = {**SEED[0], "sent": 90, "version": 1}
WITHDRAWN = {**SEED[2], "sent": 0, "version": 1}
REDATED = {**SEED[2], "date": "2021-12-01 11:00:00", "version": 1, "subject": "earlier"}


def applied(values: list[dict[str, Any]]) -> campaigns.Model:
    model = campaigns.Model()
    for offset, value in enumerate(values):
        model.apply(value, Source(campaigns.TOPIC, 0, offset))
    model.settle()
    return model


def totals(model: campaigns.Model) -> dict[int, tuple[Any, ...]]:
    """Per campaign everything but how often it changed, which alone may depend on the order."""
    return {key[0]: (*row[:9], row[10]) for key, (row, _) in model.rows["campaigns.totals"].items()}


@given(st.permutations(SEED * 2))
def test_the_seed_gives_1100_and_100_in_any_order_with_duplicates(values: list[dict[str, Any]]) -> None:
    assert totals(applied(values)) == {
        1: (1, "A", "A", NOON, 100, ONE, 1000, None, 2, 1100),
        2: (2, "B", "B", NOON, 100, None, None, None, 1, 100),
    }


@given(st.permutations([*SEED, *SEED, THIRD, CORRECTED, WITHDRAWN, REDATED]))
def test_corrections_third_sends_and_moved_dates_in_any_order(values: list[dict[str, Any]]) -> None:
    eleven = NOON.replace(hour=11)
    model = applied(values)
    assert totals(model)[1] == (1, "A", "A", eleven, 1000, NOON, 90, 7, 3, 1097)
    assert model.rows["campaigns.sends"][1, ONE][0] == (1, ONE, 0, "A", "A", 1)


def test_a_campaign_with_nothing_but_withdrawn_sends_keeps_its_name() -> None:
    assert totals(applied([WITHDRAWN])) == {1: (1, "A", "A", None, None, None, None, None, 0, 0)}


def test_what_wins_nothing_changes_nothing() -> None:
    model = applied([SEED[0]])
    source = Source(campaigns.TOPIC, 0, 9)
    assert not model.apply(SEED[0], source)
    assert not model.apply({**SEED[0], "sent": 99}, source)
    assert model.apply({**SEED[0], "sent": 101}, source)
    assert model.apply({**SEED[0], "sent": 5, "version": 1}, source)
    model.settle()
    row, last = model.rows["campaigns.totals"][1,]
    assert (row[9], last) == (3, source)


def test_a_campaign_holds_a_thousand_sends() -> None:
    model = applied([{**SEED[0], "date": f"2021-12-01 12:{n // 60:02}:{n % 60:02}"} for n in range(1000)])
    assert not model.apply(SEED[0], Source(campaigns.TOPIC, 0, 0))
    with pytest.raises(Inadmissible):
        model.apply(SEED[2], Source(campaigns.TOPIC, 0, 0))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2021-12-01 12:00:00", NOON),
        ("2021-12-01T12:00:00Z", NOON),
        ("2021-12-01T13:00:00+01:00", NOON),
        ("2021-12-01 06:30:00.000-05:30", NOON),
        ("2021-12-01 12:00:00.5", NOON.replace(microsecond=500_000)),
        ("2021-12-01 12:00:00.000001", NOON.replace(microsecond=1)),
        ("0001-01-01 00:00:00", datetime(1, 1, 1)),
    ],
)
def test_dates(text: str, moment: datetime) -> None:
    assert instant(text) == moment


@pytest.mark.parametrize(
    "text",
    ["", "2021-12-01", "2021-12-01 12:00", "2021-12-01 24:00:00", "2021-12-01 12:00:60", "2021-02-29 12:00:00",
     "20211201T120000", "0000-01-01 00:00:00", "0001-01-01 00:00:00+01:00", "9999-12-31 23:59:59-00:01",
     "2021-12-01 12:00:00+24:00", "2021-12-01 12:00:00+22:60", "2021-12-01 12:00:00,5", "2021-12-01 12:00:00.1234567",
     "2021-12-01 12:00:00 ", "\u0662\u0660\u0662\u0661-12-01 12:00:00", "2021-12-01t12:00:00", "2021-12-01 12:00:00z",
     "2021-W48-3 12:00:00"],
)  # fmt: skip
def test_what_is_no_date(text: str) -> None:
    with pytest.raises(Inadmissible):
        instant(text)
