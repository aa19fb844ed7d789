"""Tests without a broker: the real task on a log in memory, with crashes."""

from pathlib import Path
from typing import Any

import pytest
from onefold.testing import STEPS, TopologyDriver

from pipename import TOPOLOGY

FIRST = {"id": "A-1", "customer": "Ann", "cents": 500, "state": "placed", "version": 0}
PAID = {**FIRST, "state": "paid", "version": 1}
OTHER = {"id": "A-2", "customer": "Ann", "cents": 900, "state": "placed", "version": 0}
ROW = {"customer": "Ann", "orders": 2, "placed_cents": 900, "paid_cents": 500}


@pytest.fixture
def driver() -> TopologyDriver:
    """The pipeline with the schemas of the project."""
    return TopologyDriver(TOPOLOGY, contracts=Path(__file__).parent / "avro")


def send(driver: TopologyDriver, *orders: dict[str, Any]) -> None:
    for order in orders:
        driver.send("pipename.orders", order)
    driver.run()


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_changes_no_number(driver: TopologyDriver, step: str) -> None:
    driver.crash_at(step)
    send(driver, FIRST, OTHER, PAID)

    assert driver.restarts == 1
    assert driver.table("pipename.totals") == {("Ann",): {**ROW, "changes": 3}}


def test_what_comes_twice_or_late_counts_once(driver: TopologyDriver) -> None:
    send(driver, PAID, FIRST, PAID, OTHER, OTHER)

    assert driver.table("pipename.totals") == {("Ann",): {**ROW, "changes": 2}}


def test_what_cannot_be_is_a_dead_letter(driver: TopologyDriver) -> None:
    send(driver, {**FIRST, "cents": -1}, {**FIRST, "state": "lost"})

    assert len(driver.records("pipename.orders.dead")) == 2
    assert driver.read("pipename.totals") == []
