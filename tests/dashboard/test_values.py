"""The values of a pipeline's queries: whatever they are, they cost a panel a sentence, and the dashboard nothing."""

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from onefold.dashboard import detail, engine, flow, invariants, jobs, panel_view, reader, rollups
from onefold.dashboard import snapshot as snapshots
from onefold.dashboard.engine import Engine
from onefold.dashboard.flow import Flow
from onefold.dashboard.invariants import Checked
from onefold.dashboard.panels import BUDGET_S, NOT_YET, REST, Reading, Shown, Table, bars
from onefold.dashboard.reader import TOO_LARGE, UNFIT, Connection, Reader
from onefold.dashboard.rollups import Level, Row, Sum
from onefold.dashboard.snapshot import LagNow, OfPipeline, Snapshot, View, is_conclusive, take
from onefold.dashboard.words import figure, templates
from onefold.operate.lag import Lag
from onefold.operate.panels import Panel, Rollup, Rows, Stat
from onefold.verify.invariants import Invariant
from tests.support import answering
from tests.support.answering import Answering

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LAG = LagNow({}, None, None)
ROLLUP = Rollup(kind="rollup", title="r", query="SELECT 1", levels=("shelf",), value="euros", count="pieces")
REPORTED = ROLLUP.model_copy(update={"expected": "SELECT 2"})
TABLE = Rows(kind="table", title="t", query="SELECT 1")


def connected(answer: Callable[[str], answering.Rows]) -> tuple[Answering, Connection]:
    made = Answering(answer)
    return made, cast(Connection, made)


def read(*panels: Panel, answer: Callable[[str], answering.Rows]) -> list[Shown]:
    """The panels of a snapshot whose statements are answered so."""
    _, connection = connected(answer)
    reading = Reading()
    return asyncio.run(reading.fetch(connection, "shop", panels, {}, NOW, reading.ends()))


def page(*shown: Shown, at: datetime = NOW) -> str:
    """The panels as the page has them."""
    snapshot = Snapshot(Engine(at), panels=shown)
    names = {"snapshot": snapshot, "checked": None, "panels": panel_view.of(snapshot, "shop", LAG)}
    return templates().get_template("panels.html").render(names)


def nested() -> answering.Rows:
    """What psycopg does with JSON of very many levels."""
    json.loads("[" * 100_000)
    raise AssertionError


@pytest.mark.parametrize(
    "row",
    [
        ("a", Decimal(1), None),
        ("a", Decimal(1), Decimal("NaN")),
        ("a", "many", 1),
        ("a", timedelta(seconds=1), 1),
        ("a", Decimal("NaN"), 1),
        ("a", Decimal("Infinity"), 1),
    ],
)
def test_a_value_that_is_no_sum_costs_its_own_panel_a_sentence(row: tuple[Any, ...]) -> None:
    found = read(TABLE, ROLLUP, TABLE, answer=lambda text: [row] if "euros" in text else [(1,)])
    assert [one.trouble for one in found] == ["", UNFIT, ""]
    assert page(*found).count(UNFIT) == 1


def test_a_row_that_python_cannot_read_costs_its_own_panel_a_sentence() -> None:
    (found,) = read(TABLE, answer=lambda text: nested())
    assert found.trouble == UNFIT


def test_what_is_no_number_is_written_all_the_same() -> None:
    late = datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=5)))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    values = (Decimal("NaN"), math.nan, Decimal("-Infinity"), late, deep)
    written = [figure(value) for value in values]
    assert written == ["NaN", "nan", "\N{MINUS SIGN}Infinity", "(cannot be shown)", "(cannot be shown)"]
    stat = Stat(kind="stat", title="s", query="SELECT 1", expected="SELECT 1")
    shown = read(
        TABLE, Rows(kind="bar", title="b", query="SELECT 2"), stat, answer=lambda text: [("a", 1, Decimal("NaN"))]
    )
    assert [one.trouble for one in shown] == ["", "", ""]
    assert page(*shown).count("NaN") == 4


def test_what_cannot_be_drawn_is_one_sentence_on_the_page() -> None:
    content = Table(("a", "n"), [("x", Decimal("NaN")), ("y", Decimal(1))])
    assert UNFIT in page(Shown(1, Rows(kind="bar", title="b", query="SELECT 1"), NOW, content))


def test_the_longest_bar_is_as_long_as_its_column_for_any_number() -> None:
    assert bars(Table(("a", "n"), [("x", 1.7e308)]))[0].share == 100.0


@pytest.mark.parametrize(
    ("minute", "slot"),
    [
        ((Decimal(0), 0, 0, None, None, None, None), (1, None, None, None)),
        ((Decimal(0), Decimal("NaN"), 0, None, None, None, None), (1, 1, None, None)),
        ((Decimal(0), 1, 1, Decimal("Infinity"), None, None, None), (1, 1, None, None)),
        ((Decimal(0), 1, 1, None, None, None, None), (Decimal("Infinity"), 1, None, None)),
        ((Decimal(0), 1, 1, None, None, None, None), (1, 1, math.nan, None)),
    ],
)
def test_a_latency_that_is_none_is_one_sentence(minute: tuple[Any, ...], slot: tuple[Any, ...]) -> None:
    """The page then has what the sink noted, if anything."""

    def answer(text: str) -> answering.Rows:
        return [(False,)] if "to_regclass" in text else [minute] if "all_timed" in text else [slot]

    assert latency(connected(answer)[1], Reading()) == (None, f"latency: {UNFIT}")


def latency(connection: Connection, reading: Reading, ends: float | None = None) -> tuple[Flow | None, str]:
    limit = reading.ends() if ends is None else ends
    return asyncio.run(flow.fetch(connection, "shop", "SELECT 1", reading, NOW, limit))


def test_a_latency_rests_as_a_panel_does() -> None:
    """Its query takes a second by this clock, and runs again when it has rested."""
    clock = 0.0

    def answer(text: str) -> answering.Rows:
        nonlocal clock
        clock += 0.5
        return [(Decimal(0), 1, 1, None, None, None, None)] if "all_timed" in text else []

    made, connection = connected(answer)
    reading = Reading(lambda: clock)
    first = latency(connection, reading)
    assert first[1] == ""
    assert latency(connection, reading) == first
    assert len(made.statements) == 2
    clock += REST
    latency(connection, reading)
    assert len(made.statements) == 4


def test_the_panels_of_all_views_have_one_time_together() -> None:
    """Each takes a second by this clock. What rests is shown all the same."""
    clock = 0.0

    def answer(text: str) -> answering.Rows:
        nonlocal clock
        clock += 1.0 if "to_regclass" not in text else 0.0
        return [(False,)] if "to_regclass" in text else [(1,)]

    made, connection = connected(answer)
    reading = Reading(lambda: clock)
    ends = reading.ends()
    names = ("shop", "bank", "trades")
    found = [asyncio.run(reading.fetch(connection, name, [TABLE], {}, NOW, ends))[0].trouble for name in names]
    assert found == ["", "", NOT_YET]
    assert clock == BUDGET_S
    assert latency(connection, reading, ends) == (None, f"latency: {NOT_YET}")
    again = [asyncio.run(reading.fetch(connection, name, [TABLE], {}, NOW, ends))[0].trouble for name in names]
    assert again == found
    assert len(made.statements) == 3


def test_a_snapshot_has_one_deadline_for_all_views(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*asked: Any) -> Any:
        return {}

    async def state(connection: Connection) -> Engine:
        return Engine(NOW)

    found: list[float] = []

    async def flowing(*asked: Any) -> tuple[None, str]:
        found.append(asked[-2])
        return None, ""

    for module, name in ((rollups, "agreements"), (invariants, "fetch"), (jobs, "fetch"), (detail, "fetch")):
        monkeypatch.setattr(module, name, nothing)
    monkeypatch.setattr(engine, "fetch", state)
    monkeypatch.setattr(flow, "fetch", flowing)
    monkeypatch.setattr(snapshots, "declarations", dict)
    ticks = itertools.count()
    door = SimpleNamespace(snapshot=lambda: nullcontext(connected(lambda text: [])[1]))
    views: list[View] = [OfPipeline("shop"), OfPipeline("bank"), None]
    asyncio.run(take(cast(Reader, door), views, Reading(lambda: float(next(ticks)))))
    assert found == [1 + BUDGET_S, 1 + BUDGET_S], "the invariants before them have a time of their own"


def test_the_statements_of_a_panel_have_a_second_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def answer(text: str) -> answering.Rows:
        nonlocal clock
        clock += 0.4
        return [(NOW,)] if "max(reported_at)" in text else [("a", 1, 1)]

    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: clock))
    made, connection = connected(answer)
    reading = Reading()
    asyncio.run(reading.fetch(connection, "shop", [REPORTED], {}, NOW, reading.ends()))
    assert made.timeouts == [1000, 600, 200, 4000]
    made.timeouts.clear()
    clock = 0.0
    expected = Stat(kind="stat", title="s", query="SELECT 1", expected="SELECT 2")
    asyncio.run(reading.fetch(connection, "bank", [expected], {}, NOW, reading.ends()))
    assert made.timeouts == [1000, 600, 4000]


@pytest.mark.parametrize(("seconds", "said"), [(0, 0), (1, 0), (5, 0), (6, 1)])
def test_the_page_says_how_old_a_panel_is_when_that_is_more_than_some_seconds(seconds: int, said: int) -> None:
    (shown,) = read(TABLE, answer=lambda text: [(1,)])
    assert page(shown, at=NOW + timedelta(seconds=seconds)).count("As of 12:00:00") == said


def test_a_producers_report_is_of_a_moment_with_a_zone() -> None:
    """Else it could not be compared with the moment of a snapshot, and no page could be made."""
    made, connection = connected(lambda text: [(NOW,)] if "max(reported_at)" in text else [("a", 1, 1)])
    asyncio.run(rollups.fetch(connection, REPORTED, ()))
    assert [text for text in made.statements if "reported_at" in text] == [
        "SELECT (SELECT max(reported_at)::timestamptz FROM (SELECT 2\n) AS reported)"
    ]
    assert "max(reported_at)::timestamptz" in rollups._comparison(REPORTED).as_string(None)
    lag = LagNow({"shop": Lag(0, 0.0, 0, 0.0)}, NOW, NOW)
    assert not is_conclusive(NOW, "shop", datetime.max.replace(tzinfo=UTC), lag)


def test_a_level_without_a_producer_is_shown() -> None:
    found = read(ROLLUP, answer=lambda text: [(None, Decimal(3), 2), ("a", Decimal(3), 2), ("b", None, None)])
    content = found[0].content
    assert isinstance(content, Level)
    assert content.parts == [Row("a", Sum(Decimal(3), 2), None)]


class Rules:
    """The invariants of two pipelines. answer: gives the rows of each, or raises; with the clock of what is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], answering.Rows]) -> None:
        monkeypatch.setattr(invariants, "_rules", lambda name: (Invariant(f"{name}.x", f"SELECT {name}".encode()),))
        self.clock = 0.0
        self._connection = connected(lambda text: [("bank",), ("shop",)] if "nspname" in text else answer(text))[1]
        self._reading = Reading(lambda: self.clock)

    def checked(self) -> Mapping[str, Checked]:
        ends = self._reading.ends(snapshots.INVARIANTS_S)
        return asyncio.run(invariants.fetch(self._connection, self._reading, NOW, ends))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (psycopg.errors.DivisionByZero("division by zero"), "the query does not work: division by zero"),
        (RecursionError("too deep"), "the query gives a value that cannot be shown here"),
    ],
)
def test_an_invariant_that_gives_no_rows_is_reported_like_a_broken_one(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def answer(text: str) -> answering.Rows:
        raise error

    assert Rules(monkeypatch, answer).checked()["shop"] == Checked(1, [f"shop.x: {said}"], [])


def test_an_invariant_that_takes_too_long_costs_nothing_but_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called unchecked, and asked again in a minute."""
    asked = []

    def answer(text: str) -> answering.Rows:
        asked.append(text)
        if "bank" in text:
            rules.clock += 1.0
            raise psycopg.errors.QueryCanceled("statement timeout")
        return [(7,)]

    rules = Rules(monkeypatch, answer)
    assert rules.checked() == {
        "bank": Checked(1, [], [f"bank.x: {TOO_LARGE}"]),
        "shop": Checked(1, [], [f"shop.x: {NOT_YET}"]),
    }
    assert rules.checked()["shop"] == Checked(1, ["shop.x: a 7"], [])
    assert len(asked) == 2
    for seconds in (59, 2):
        rules.clock += seconds
        assert rules.checked()["shop"] == Checked(1, ["shop.x: a 7"], []), (
            "also while bank takes the time of a snapshot"
        )
    assert asked[2:] == ["b'SELECT shop'", "b'SELECT bank'"]
