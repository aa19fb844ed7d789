"""examples/shop: a pipeline that joins two topics, on the whole stack, under chaos, and judged by the order that was."""

import importlib
import os
import signal

import pytest

from onefold.processor.core.steps import STEPS
from onefold.testing import TopologyDriver
from tests.support.command_line import Onefold
from tests.support.examples import EXAMPLES

pytestmark = pytest.mark.promise("judged-joins")

SHOP = EXAMPLES / "shop"


@pytest.mark.long  # 12 s
def test_a_join_is_judged_right_whatever_is_killed(onefold: Onefold) -> None:
    """Both topics at once, the processor and the sink killed in the middle, and every row *valid*; values that depend on the
    order between the topics are among them. A text that the other order would have given is found.
    """
    producers = [
        onefold.start("produce", topic, "--count", "6000", "--seed", "5", "--rate", "1500")
        for topic in ("shop.orders", "shop.payments")
    ]
    for service in ("processor-shop-1", "sink-1"):
        os.kill(onefold.pid(service), signal.SIGKILL)
    for producer in producers:
        assert producer.wait(120) == 0
    assert "shop: valid" in onefold("verify", "shop", "--timeout", "180")
    firsts = {first for (first,) in onefold.rows("SELECT DISTINCT first FROM shop.bills")}
    assert firsts == {"shop.orders", "shop.payments"}, "each came first somewhere"

    other = (
        "UPDATE shop.bills SET first = CASE first WHEN 'shop.orders' THEN 'shop.payments' ELSE 'shop.orders' END"
        " WHERE number = (SELECT min(number) FROM shop.bills) RETURNING 1"
    )
    onefold.rows(other)
    assert "shop: invalid" in onefold("verify", "shop", "--timeout", "60", code=1)
    onefold.rows(other)


@pytest.mark.parametrize("step", STEPS)
def test_the_example_survives_a_crash_at_every_step(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the simulated log: the payment first, the order first, and each of them twice."""
    monkeypatch.syspath_prepend(str(SHOP))
    driver = TopologyDriver(importlib.import_module("shop").TOPOLOGY, contracts=str(SHOP / "avro"))
    for number in range(4):
        for _ in range(2):
            first, second = ("shop.orders", "shop.payments")[:: 1 if number % 2 else -1]
            for topic in (first, second):
                order = {"number": number, "cents": 100}
                payment = {"order": number, "id": 7 * number, "cents": 60}
                driver.send(topic, order if topic == "shop.orders" else payment)
        driver.crash_at(step)
        driver.run()
    bills = driver.table("shop.bills")
    assert [(bill["cents"], bill["paid"], bill["changes"]) for bill in bills.values()] == [(100, 60, 2)] * 4
