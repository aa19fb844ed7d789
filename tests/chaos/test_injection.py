"""Failures on purpose: as many as asked for, where asked for, and never in silence."""

import itertools
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import structlog

from onefold.chaos.injection import Dice, Injected
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.config.settings import load as load_settings
from onefold.error_codes import Code
from tests.support.coded import raises
from tests.support.migrated import migrate_all


def noted() -> tuple[list[str], Callable[[str], None]]:
    names: list[str] = []
    return names, names.append


def test_without_a_setting_nothing_is_touched() -> None:
    """The very step function comes back."""
    _, step = noted()
    dice = Dice("state", 0.0, Settings(), draw=lambda: 0.0)
    assert dice.at("before_commit", step) is step
    assert not dice.fails()


def test_the_stated_share_fails_at_the_named_step_and_each_is_logged() -> None:
    chances = itertools.cycle([0.5, 0.009, 0.011])
    names, step = noted()
    with structlog.testing.capture_logs() as logged:
        risky = Dice("reduce", 1.0, Settings(home="/nowhere"), draw=lambda: next(chances)).at(
            "sink.before_commit", step
        )
        failures = 0
        for name in ["sink.before_cas", "sink.before_commit"] * 6:
            try:
                risky(name)
            except Injected:
                failures += 1
    assert failures == 2
    assert len(names) == 12, "a kill that was asked for at the same point comes first"
    assert [line["event"] for line in logged if "INJECTED" in line["event"]] != []
    assert sum(line["event"] == "a failure is injected" for line in logged) == 2


def test_they_are_counted_where_everybody_can_see_them(database: str, checkout: Any) -> None:
    migrate_all(database, checkout / "sql")
    settings = Settings(postgres_dsn=database)
    for _ in range(2):  # two processes, one after the other
        dice = Dice("map", 2.0, settings, draw=lambda: 0.0)
        assert dice.fails()
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "SELECT stage, percent, failures, last_at IS NOT NULL FROM onefold.injected"
        ).fetchall()
    assert row == [("map", 2, 2, True)]


def test_a_share_that_would_stop_everything_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_FAIL_MAP_PCT", "100")
    with raises(UserError, Code.SETTING_WRONG, "ONEFOLD_FAIL_MAP_PCT", "100"):
        load_settings()
