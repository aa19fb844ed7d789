"""A join of two topics: orders and payments.

Kafka promises no order between two topics, so a payment may come before its order. The state keeps the first record until the
second record comes. The column `first` names the topic of the first record: a value that depends on the merge order, and that
`verify` can still check, because the merge order is recorded.
"""

from dataclasses import dataclass, field, replace

from onefold import Event, Output, Outputs, Topology


@dataclass(frozen=True, slots=True)
class Bill:
    """An order: the price, unknown until the order comes, and the payments by their ids."""

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
