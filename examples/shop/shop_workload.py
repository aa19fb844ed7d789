"""A generator of orders and payments, and the model of their bills, in the recorded merge order."""

import json
import random
from collections.abc import Iterator
from typing import Any

from onefold.model import Input, Table, model

ORDERS, PAYMENTS = "shop.orders", "shop.payments"
BILLS = Table(name="shop.bills", topic="shop.bills", key=("number",))


def generate(seed: int, count: int) -> Iterator[Input]:
    """Generate `count` records of both topics: many repeats, and half of the payments before their order."""
    rng = random.Random(seed)
    for _ in range(count):
        number = rng.randrange(count // 4 + 1)
        if rng.random() < 0.4:
            topic, value = ORDERS, {"number": number, "cents": 100 + number}
        else:
            part = rng.randrange(2)
            topic, value = PAYMENTS, {"order": number, "id": 2 * number + part, "cents": 50 + part}
        yield Input(topic, str(number).encode(), json.dumps(value).encode())


def held(tables: Any, number: int, topic: str) -> dict[str, Any]:
    """The bill of a number and the ids of its payments; a new bill for the first record."""
    new = {"number": number, "cents": None, "paid": 0, "first": topic, "changes": 0, "ids": ()}
    return tables[BILLS.name].get(number) or new


def order(value: Any, tables: Any) -> None:
    """The first order of a number says what it costs."""
    bill = held(tables, value["number"], ORDERS)
    if bill["cents"] is None:
        tables[BILLS.name].put({**bill, "cents": value["cents"], "changes": bill["changes"] + 1})


def payment(value: Any, tables: Any) -> None:
    """The first payment of an id counts. `ids` is no column: only the model needs it."""
    bill = held(tables, value["order"], PAYMENTS)
    if value["id"] not in bill["ids"]:
        paid, ids = bill["paid"] + value["cents"], (*bill["ids"], value["id"])
        tables[BILLS.name].put({**bill, "paid": paid, "ids": ids, "changes": bill["changes"] + 1})


WORKLOAD = model(
    "shop",
    {ORDERS: order, PAYMENTS: payment},
    inputs=(ORDERS, PAYMENTS),
    key={ORDERS: "number", PAYMENTS: "order"},
    tables=(BILLS,),
)
