"""Orders per shop and minute. A minute closes once, ten seconds after its end, by the time of the ticks.

An order of a closed minute is too late, and becomes a dead letter. Without ticks the last minute of a shop would close with
the shop's next order only.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from onefold import Event, Outputs, Rejected, Tick, Topology
from onefold.windows import Open, mean, tumbling

MINUTES = tumbling(60_000, lateness_ms=10_000)
EPOCH, MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Sold:
    """The sales of a shop in a minute."""

    orders: int = 0
    cents: int = 0


@dataclass(frozen=True, slots=True)
class Shop:
    """The minutes of a shop that are not over yet."""

    minutes: Open[Sold]


def handle(shop: Shop | None, event: Event) -> tuple[Shop, Outputs]:
    """Add the order to its minute. There is no output yet."""
    order = event.value
    at_ms = (order.at - EPOCH) // MILLISECOND
    minutes = shop.minutes if shop else None
    if MINUTES.is_late(minutes, at_ms):
        raise Rejected(f"the minute of {order.at} is over")

    def add(sold: Sold | None) -> Sold:
        before = sold or Sold()
        return Sold(before.orders + 1, before.cents + order.cents)

    return Shop(MINUTES.add(minutes, at_ms, add)), ()


def on_tick(name: str, shop: Shop, at_ms: int) -> tuple[Shop, Outputs]:
    """Write the rows of the minutes that are over."""
    minutes, over = MINUTES.close(shop.minutes, at_ms)
    rows = [
        {
            "shop": name,
            "minute": EPOCH + minute.start_ms * MILLISECOND,
            "orders": minute.value.orders,
            "cents": minute.value.cents,
            "mean_cents": mean(minute.value.cents, minute.value.orders, 2),
        }
        for minute in over
    ]
    return Shop(minutes) if over else shop, [("sales.minutes", row) for row in rows]


TOPOLOGY = Topology(
    name="sales",
    inputs=("sales.orders",),
    key=lambda order: order.shop,
    state=Shop,
    handle=handle,
    outputs={"sales.minutes": None},
    tick=Tick(every_s=1, handle=on_tick, due=lambda shop: MINUTES.due_ms(shop.minutes)),
)
