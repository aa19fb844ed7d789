"""docs/examples/shop: a pipeline that joins two topics, on the whole stack, under chaos, and judged by the order that was."""

import importlib
import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from onefold.operate import state
from onefold.processor.core.steps import STEPS
from onefold.stack import cores
from onefold.testing import TopologyDriver
from tests.support.command_line import Onefold
from tests.support.examples import EXAMPLES, example_stack
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("judged-joins")

SHOP = EXAMPLES / "shop"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Onefold]:
    """The example's stack."""
    with example_stack("shop", tmp_path_factory.mktemp("join")) as onefold:
        yield onefold


@pytest.mark.long  # 26 s
@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
def test_a_join_is_judged_right_whatever_is_killed(shop: Onefold) -> None:
    """Both topics at once, the processor and the sink killed in the middle, and every row *valid*; values that depend on the
    order between the topics are among them.
    """
    processors = {name for name in shop.status()["services"] if name.startswith("processor-")}
    assert processors == {f"processor-shop-{number}" for number in range(1, min(4, cores.processes(1)) + 1)}
    producers = [
        shop.start("produce", topic, "--count", "6000", "--seed", "5", "--rate", "1500")
        for topic in ("shop.orders", "shop.payments")
    ]
    for service in ("processor-shop-1", "sink-1"):
        os.kill(state.read_running(shop.home)["services"][service]["pid"], signal.SIGKILL)
    for producer in producers:
        assert producer.wait(120) == 0
    said = shop("verify", "shop", "--timeout", "180")
    assert "shop: valid" in said

    with psycopg.connect(shop.dsn) as connection:
        firsts: dict[str, int] = dict(
            connection.execute("SELECT first, count(*) FROM shop.bills GROUP BY first").fetchall()
        )
    assert firsts.keys() == {"shop.orders", "shop.payments"}, "each came first somewhere"


@pytest.mark.long  # 36 s
@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
def test_it_has_replicas_by_configuration_alone(shop: Onefold) -> None:
    """The same handler and tables, with the states and rows that it has come to as an elastic one; one of the two is killed."""
    before = shop.rows("SELECT count(*), sum(changes) FROM shop.bills")[0]
    shop("down")
    shop("up", ONEFOLD_REPLICAS="2")
    processors = {name for name in shop.status()["services"] if name.startswith("processor-")}
    assert processors == {"processor-shop-1", "processor-shop-2"}
    assert shop.rows("SELECT count(*), sum(changes) FROM shop.bills")[0] == before
    producers = [
        shop.start("produce", topic, "--count", "3000", "--seed", "6", "--rate", "1500")
        for topic in ("shop.orders", "shop.payments")
    ]
    eventually(lambda: shop.rows("SELECT sum(changes) FROM shop.bills")[0] > before[1:], 120, "they go on")
    os.kill(shop.pid("processor-shop-1"), signal.SIGKILL)
    for producer in producers:
        assert producer.wait(120) == 0
    shop.drained()
    assert len(shop.status()["replicas"]["shop"]["replicas"]) == 2
    # It goes on from the verdict of the elastic time, over what was decided since: the order between the topics too.
    shop("audit", "shop", "--once")
    assert "shop: valid" in shop("verify", "shop", "--timeout", "180")


@pytest.mark.long  # needs what the first test leaves
@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
def test_a_row_that_the_order_does_not_explain_is_found(shop: Onefold) -> None:
    """The verdict is no formality: one text that the other order would have given."""
    with psycopg.connect(shop.dsn) as connection:
        connection.execute(
            "UPDATE shop.bills SET first = CASE first WHEN 'shop.orders' THEN 'shop.payments' ELSE 'shop.orders' END"
            " WHERE number = (SELECT min(number) FROM shop.bills)"
        )
    assert "shop: invalid" in shop("verify", "shop", "--timeout", "60", code=1)


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
