"""examples/sales: orders per minute, closed by ticks, on the whole stack, with a kill in the middle, and judged by the time
that was.
"""

import importlib
import json
import os
import signal
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from onefold.testing import STEPS, TopologyDriver
from tests.support.command_line import Onefold
from tests.support.examples import EXAMPLES
from tests.support.waiting import eventually

SALES = EXAMPLES / "sales"
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.mark.promise("a-pipeline-of-your-own")
def test_ticks_tell_the_minutes_and_the_judge_knows_the_time_that_was(onefold: Onefold) -> None:
    """A tick closes the first of the last three minutes without a further order. Then processor and sink are killed, and orders
    of those minutes come too late. `verify` says valid, and invalid for a row that the ticks do not explain.
    """
    onefold("produce", "sales.orders", "--count", "2000", "--seed", "5")
    minutes = "SELECT 1 FROM sales.minutes"
    eventually(lambda: len(onefold.rows(minutes)) >= 4, 60, "a minute of every shop is told")
    for service in ("processor-sales-1", "sink-1"):
        os.kill(onefold.pid(service), signal.SIGKILL)
    onefold("produce", "sales.orders", "--count", "2000", "--seed", "6")
    verdict = json.loads(onefold("verify", "sales", "--timeout", "300", "--json"))
    assert verdict["outcome"] == "valid"
    assert verdict["counts"]["dead"] > 0, "orders that came too late"

    first = "(SELECT min(minute) FROM sales.minutes)"
    onefold.rows(f"UPDATE sales.minutes SET orders = orders + 1 WHERE minute = {first} RETURNING 1")
    assert "sales: invalid" in onefold("verify", "sales", "--timeout", "300", code=1)
    onefold.rows(f"UPDATE sales.minutes SET orders = orders - 1 WHERE minute = {first} RETURNING 1")


@pytest.fixture
def topology(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SALES))
    return importlib.import_module("sales").TOPOLOGY


def ms(seconds: int) -> int:
    return round((NOON + timedelta(seconds=seconds)).timestamp() * 1000)


@pytest.mark.parametrize("step", STEPS)
def test_the_example_survives_a_crash_at_every_step(topology: Any, step: str) -> None:
    """On the simulated log: a minute is told ten seconds after its end, once, and an order of it is too late from then on."""
    driver = TopologyDriver(topology, contracts=str(SALES / "avro"))
    for cents, seconds in ((100, 5), (101, 59), (7, 60)):
        driver.send("sales.orders", {"shop": "Bern", "cents": cents, "at": ms(seconds)})
    for seconds in (60, 69, 70, 70):
        driver.tick(ms(seconds))
    driver.crash_at(step)
    driver.run()
    told = {"shop": "Bern", "minute": NOON, "orders": 2, "cents": 201, "mean_cents": Decimal("100.50")}
    assert driver.read("sales.minutes") == [told]

    driver.send("sales.orders", {"shop": "Bern", "cents": 1, "at": ms(30)})
    driver.tick(ms(3600))
    driver.crash_at(step)
    driver.run()
    assert [row["cents"] for row in driver.read("sales.minutes")] == [201, 7]
    ((_, _, headers),) = driver.records("sales.orders.dead")
    assert headers["onefold-reason"] == b"the minute of 2026-01-05 12:00:30+00:00 is over"
