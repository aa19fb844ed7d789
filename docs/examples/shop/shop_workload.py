"""Orders and payments to try it with, and what they must give. The model is told them in the order in which they were folded."""

import json
import random
from collections.abc import Iterator
from typing import Any

from onefold.model import Input, Source, Table, Workload

ORDERS, PAYMENTS = "shop.orders", "shop.payments"
BILLS = Table(name="shop.bills", topic="shop.bills", key=("number",))


def generate(seed: int, count: int) -> Iterator[Input]:
    """`count` records of both topics, many of them repeated, and payments as often before their order as after it."""
    rng = random.Random(seed)
    for _ in range(count):
        number = rng.randrange(count // 4 + 1)
        if rng.random() < 0.4:
            topic, value = ORDERS, {"number": number, "cents": 100 + number}
        else:
            part = rng.randrange(2)
            topic, value = PAYMENTS, {"order": number, "id": 2 * number + part, "cents": 50 + part}
        yield Input(topic, str(number).encode(), json.dumps(value).encode())


class Model:
    """Every bill, and the record that changed it last."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {BILLS.name: {}}
        self._seen: set[tuple[str, int]] = set()

    def key(self, value: dict[str, Any]) -> str:
        """Of an order its number, of a payment that of its order."""
        return str(value.get("order", value.get("number")))

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take a record; False for one that is known."""
        paying = "order" in value
        name = (source.topic, value["id"] if paying else value["number"])
        if name in self._seen:
            return False
        self._seen.add(name)
        number = value["order"] if paying else value["number"]
        rows = self.rows[BILLS.name]
        (_, cents, paid, first, changes), _ = rows.get((number,), ((number, None, 0, source.topic, 0), None))
        cents, paid = (cents, paid + value["cents"]) if paying else (value["cents"], paid)
        rows[number,] = (number, cents, paid, first, changes + 1), source
        return True

    def settle(self) -> None:
        """Nothing is put off."""


WORKLOAD = Workload("shop", (ORDERS, PAYMENTS), (BILLS,), Model)
