"""A generator of orders, and the model of their minutes. The model gets orders and ticks in the recorded merge order, and has no
code of `onefold.windows`.
"""

import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from onefold.model import Inadmissible, Input, Source, Table, TrackedRows, Workload

ORDERS = "sales.orders"
MINUTES = Table(name="sales.minutes", topic="sales.minutes", key=("shop", "minute"))
MINUTE, LATENESS = timedelta(minutes=1), timedelta(seconds=10)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def generate(seed: int, count: int, end_ms: int = 1_767_225_600_000) -> Iterator[Input]:
    """`count` orders of a few shops in the three minutes before `end_ms`, in any order."""
    rng = random.Random(seed)
    for _ in range(count):
        shop = rng.choice(("Bern", "Genf", "Chur", "Zug"))
        order = {"shop": shop, "cents": rng.randrange(-500, 10_000), "at": end_ms - rng.randrange(180_000)}
        yield Input(ORDERS, shop.encode(), json.dumps(order).encode())


def live(seed: int, count: int) -> Iterator[Input]:
    """Generate orders of the last three minutes. Older orders would be too late at the first tick."""
    return generate(seed, count, time.time_ns() // 1_000_000)


class Model:
    """The rows of closed minutes, and the orders of open minutes."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {MINUTES.name: TrackedRows()}
        # By partition of the shop, because a tick is for one: shop and minute of each order.
        self._waiting: dict[int, dict[tuple[str, datetime], list[int]]] = {}
        self._told: dict[str, datetime] = {}

    def key(self, value: dict[str, Any], source: Source) -> str:
        """The shop of an order."""
        return str(value["shop"])

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Count the order, unless its minute or a later minute of the shop is closed."""
        minute = value["at"].replace(second=0, microsecond=0)
        shop = value["shop"]
        if shop in self._told and minute <= self._told[shop]:
            raise Inadmissible(f"{minute} of {shop} was told")
        self._waiting.setdefault(source.partition, {}).setdefault((shop, minute), []).append(value["cents"])
        return True

    def tick(self, at_ms: int, source: Source) -> bool:
        """Close the minutes that ended ten seconds ago or earlier."""
        now = EPOCH + timedelta(milliseconds=at_ms)
        waiting = self._waiting.get(source.partition, {})
        over = [(shop, minute) for shop, minute in waiting if minute + MINUTE + LATENESS <= now]
        for shop, minute in over:
            cents = waiting.pop((shop, minute))
            mean = (Decimal(sum(cents)) / len(cents)).quantize(Decimal("0.01"), ROUND_HALF_EVEN)
            row = (shop, minute, len(cents), sum(cents), mean)
            self.rows[MINUTES.name][shop, minute] = row, source
            self._told[shop] = max(self._told.get(shop, minute), minute)
        return bool(over)

    def settle(self) -> None:
        """Nothing is put off."""


WORKLOAD = Workload("sales", (ORDERS,), (MINUTES,), Model, ticks=True)
