"""A generator of test orders, and the verification model of the pipeline.

The model shares no code with the handler: otherwise `verify` would compare the handler
with itself.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from onefold.model import (
    Column,
    Inadmissible,
    Input,
    Source,
    Table,
    TrackedRows,
    Workload,
)

TOPIC = "pipename.orders"
TOTALS = Table(
    name="pipename.totals",
    topic="pipename.totals",
    key=("customer",),
    but=(Column("total_cents", "long", generated=True),),
)


def generate(seed: int, count: int) -> Iterator[Input]:
    """`count` orders, many repeated, outdated or late. A seed fixes the orders."""
    rng = random.Random(seed)
    orders = count // 3 + 1
    for _ in range(count):
        number, version = rng.randrange(orders), rng.randrange(3)
        customer = f"C-{number % (orders // 10 + 1)}"
        last = "paid" if number % 5 else "cancelled"
        order = {
            "id": f"A-{number}",
            "customer": customer,
            "cents": 100 + number * 37 % 9900,
            "state": ("placed", "paid", last)[version],
            "version": version,
        }
        yield Input(TOPIC, customer.encode(), json.dumps(order).encode())


class Model:
    """`rows`: the expected rows by table and key, with the source of each."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {TOTALS.name: TrackedRows()}
        self._orders: dict[str, dict[str, dict[str, Any]]] = {}
        self._changes: Counter[str] = Counter()

    def key(self, value: dict[str, Any], _source: Source) -> str:
        """The key of the state: an order's customer."""
        return str(value["customer"])

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Apply an order. Returns False if the order is a duplicate or outdated."""
        if value["state"] not in {"placed", "paid", "cancelled"}:
            raise Inadmissible("no such state")
        if not 0 <= value["cents"] <= 1_000_000_000:
            raise Inadmissible("cents is out of range")
        customer, name = value["customer"], value["id"]
        orders = self._orders.setdefault(customer, {})
        if name in orders and orders[name]["version"] >= value["version"]:
            return False
        if name not in orders and len(orders) >= 1000:
            raise Inadmissible("too many orders")
        orders[name] = value
        self._changes[customer] += 1
        states = [order["state"] for order in orders.values()]
        placed, paid = (
            sum(order["cents"] for order in orders.values() if order["state"] == state)
            for state in ("placed", "paid")
        )
        standing = len(states) - states.count("cancelled")
        row = (customer, standing, placed, paid, self._changes[customer], placed + paid)
        self.rows[TOTALS.name][customer,] = row, source
        return True

    def settle(self) -> None:
        """Compute deferred rows. `apply` defers none."""


# For a topic, table, field or column that no table verifies, `onefold check` requires
# not_judged={"name": "why"}.
WORKLOAD = Workload("pipename", (TOPIC,), (TOTALS,), Model)
