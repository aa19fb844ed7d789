"""A pipeline that joins two topics, each with a contract and a key of its own; outputs with keys and headers of their own."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from onefold import Event, Output, Outputs, Topology
from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.processor.runtime.input_buffer import InputBuffer
from onefold.processor.testing.session import SimulatedInputs
from onefold.testing import STEPS, TopologyDriver
from tests.support.coded import raises
from tests.support.crashes import crashed_at_every_hit

FIELDS = {
    "orders": {"id": "string", "account": "long", "price": "long"},
    "payments": {"order": "string", "amount": "long"},
    "paid": {"id": "string", "price": "long", "paid": "long", "late_ms": "long"},
    "credits": {"account": "long", "order": "string", "amount": "long"},
}
SENT_MS = 1_700_000_000_000


class Order(Struct):
    """What is known of an order. Whichever topic came first made it."""

    account: int | None = None
    price: int = 0
    ordered_ms: int = 0
    paid: int = 0
    paid_ms: int = 0


def handle(order: Order | None, event: Event) -> tuple[Order | None, Outputs]:
    """A payment may come before its order: it is kept until both are there."""
    value = event.value
    old = order or Order()
    if event.topic == "shop.orders":
        if old.account is not None:
            return order, ()
        new = Order(value.account, value.price, event.timestamp_ms, old.paid, old.paid_ms)
    else:
        latest = max(old.paid_ms, event.timestamp_ms)
        new = Order(old.account, old.price, old.ordered_ms, old.paid + value.amount, latest)
    if new.account is None or not new.paid:
        return new, ()
    name = value.id if event.topic == "shop.orders" else value.order
    paid = {"id": name, "price": new.price, "paid": new.paid, "late_ms": new.paid_ms - new.ordered_ms}
    credit = {"account": new.account, "order": name, "amount": new.paid if old.account is None else new.paid - old.paid}
    return new, (("shop.paid", paid), Output("shop.credits", credit, key=new.account, headers=event.headers))


SHOP = Topology(
    name="shop",
    inputs=("shop.orders", "shop.payments"),
    key={"shop.orders": lambda order: order.id, "shop.payments": lambda payment: payment.order},
    state=Order,
    handle=handle,
    outputs={"shop.paid": ("id",), "shop.credits": None},
)


@pytest.fixture
def contracts(tmp_path: Path) -> Path:
    """The four contracts, in a folder."""
    for name, fields in FIELDS.items():
        columns = [{"name": field, "type": kind} for field, kind in fields.items()]
        schema = {"type": "record", "name": name.title(), "namespace": "shop", "topics": [f"shop.{name}"]}
        (tmp_path / f"shop.{name}.avsc").write_text(json.dumps({**schema, "fields": columns}), encoding="utf-8")
    return tmp_path


def feed(driver: TopologyDriver) -> None:
    """Two waves. Payments come before their orders and after them, in two parts, some in the wrong partition."""
    for wave in range(2):
        for number in range(6):
            order = {"id": f"o{number}", "account": number % 3, "price": 100 * number}
            payment = {"order": f"o{number}", "amount": 10 + number}
            for topic, value in (("orders", order), ("payments", payment))[:: 1 if number % 2 else -1]:
                late_ms = number if topic == "payments" else 0
                trace = f"{topic}-{wave}-{number}".encode()
                away = number % driver.partitions if number < 2 else None
                driver.send(
                    f"shop.{topic}", value, partition=away,
                    timestamp_ms=SENT_MS + late_ms, headers=[("trace", trace)],
                )  # fmt: skip
        driver.run()
    driver.stop()


def outcome(driver: TopologyDriver) -> dict[str, Any]:
    sent = [
        (key, headers["trace"], partition)
        for partition in range(driver.partitions)
        for _, entry in driver.log.read("shop.credits", partition, 0)[0]
        for key, headers in [(entry.key, dict(entry.headers))]
    ]
    counts = [driver.task(partition).progress.counts for partition in range(driver.partitions)]
    return {"paid": driver.table("shop.paid"), "credits": sorted(sent), "states": driver.states(), "counts": counts}


def test_orders_and_payments_are_joined_whichever_comes_first(contracts: Path) -> None:
    """Every order once, with both of its payments; and each credit in the partition of its account."""
    driver = TopologyDriver(SHOP, contracts=contracts, partitions=2)
    feed(driver)

    assert driver.table("shop.paid") == {
        (f"o{number}",): {"id": f"o{number}", "price": 100 * number, "paid": 2 * (10 + number), "late_ms": number}
        for number in range(6)
    }
    by_account: dict[int, int] = {}
    for credit in driver.read("shop.credits"):
        by_account[credit["account"]] = by_account.get(credit["account"], 0) + credit["amount"]
    assert by_account == {account: 2 * (20 + 2 * account + 3) for account in range(3)}
    partition_of = driver.task()._inputs.partition_of
    assert all(partition_of(key.decode()) == partition for key, _, partition in outcome(driver)["credits"])


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_no_trace_in_a_join(contracts: Path, step: str) -> None:
    """Rows, credits with their headers, states with their timestamps, and counts are those of a run without a crash."""
    make = partial(TopologyDriver, SHOP, contracts=contracts, partitions=2)
    undisturbed = make()
    feed(undisturbed)
    expected = outcome(undisturbed)
    for where, driver in crashed_at_every_hit(step, make, feed):
        assert expected == outcome(driver), where


def test_an_input_that_lost_what_is_decided_costs_no_record_of_the_other(contracts: Path) -> None:
    """The read that fails has gone through the other one's records by then."""
    driver = TopologyDriver(SHOP, contracts=contracts)
    for number in range(5):
        driver.send("shop.orders", {"id": f"o{number}", "account": 1, "price": 5})
        driver.send("shop.payments", {"order": f"o{number}", "amount": 5})
    driver.log.truncate("shop.payments", 0, 4)
    inputs = SimulatedInputs(driver.log, SHOP, 0)
    inputs.seek({"shop.orders": 0, "shop.payments": 2})
    buffer = InputBuffer(inputs, 0.05)
    for _ in range(3):
        buffer.read({"shop.orders": 1, "shop.payments": 4}, 100)

    assert [(record.topic, record.offset) for record in buffer.records] == [
        *(("shop.orders", offset) for offset in range(1, 5)),
        ("shop.payments", 4),
    ]


def test_a_repartitioned_record_keeps_its_timestamp_and_its_headers(contracts: Path) -> None:
    """The copy is sent later than the original; whoever folds it is told when that was."""
    driver = TopologyDriver(SHOP, contracts=contracts, partitions=2)
    away = 1 - driver.task()._inputs.partition_of("o1")
    headers = [("trace", b"1"), ("onefold-source", b"not/0/ours"), ("empty", None)]
    order, payment = {"id": "o1", "account": 1, "price": 5}, {"order": "o1", "amount": 5}
    driver.send("shop.orders", order, partition=away, timestamp_ms=SENT_MS, headers=headers)
    driver.send("shop.payments", payment, partition=away, timestamp_ms=SENT_MS + 7, headers=headers)
    driver.run()

    assert driver.table("shop.paid")["o1",]["late_ms"] == 7
    assert driver.states()["o1"].ordered_ms == SENT_MS
    ((_, _, given),) = driver.records("shop.credits")
    assert given == {"onefold-source": b"shop.payments/%d/0" % (1 - away), "trace": b"1", "empty": None}
    copies = [headers for _, _, headers in driver.records("shop.orders") if "onefold-timestamp" in headers]
    assert [copy["onefold-source"] for copy in copies] == [b"shop.orders/%d/0" % away]


def test_a_driver_without_a_contract_says_which_one_is_missing(contracts: Path) -> None:
    (contracts / "shop.paid.avsc").unlink()
    with raises(Refused, Code.SCHEMA_MISSING, "shop.paid"):
        TopologyDriver(SHOP, contracts=contracts)
