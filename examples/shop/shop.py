"""Orders and what was paid for them, out of two topics.

Kafka promises no order between two topics: a payment may come before its order. So the state keeps what came, and
whichever comes second finds the first. `first` says which one it was: a value that depends on the order, and is right all
the same, because the order in which records were folded is written down.
"""

from dataclasses import dataclass, field, replace

from onefold import Event, Output, Outputs, Topology


@dataclass(frozen=True, slots=True)
class Bill:
    """What is known of an order: what it costs, once that is known, and the payments by their ids."""

    first: str
    cents: int | None = None
    payments: dict[str, int] = field(default_factory=dict)
    changes: int = 0


def handle(bill: Bill | None, event: Event) -> tuple[Bill, Outputs]:
    """The first order of a number counts, and the first payment of an id."""
    value = event.value
    held = bill or Bill(first=event.topic)
    if event.topic == "shop.orders":
        if held.cents is not None:
            return held, ()
        number, held = value.number, replace(held, cents=value.cents, changes=held.changes + 1)
    else:
        if str(value.id) in held.payments:
            return held, ()
        payments = {**held.payments, str(value.id): value.cents}
        number, held = value.order, replace(held, payments=payments, changes=held.changes + 1)
    paid = sum(held.payments.values())
    row = {"number": number, "cents": held.cents, "paid": paid, "first": held.first, "changes": held.changes}
    return held, (Output("shop.bills", row),)


TOPOLOGY = Topology(
    name="shop",
    inputs=("shop.orders", "shop.payments"),
    key={"shop.orders": lambda order: order.number, "shop.payments": lambda payment: payment.order},
    state=Bill,
    handle=handle,
    outputs={"shop.bills": ("number",)},
)
