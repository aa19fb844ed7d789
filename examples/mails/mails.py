"""A mail for each order, once: the fold decides that there has to be one, and a worker sends it."""

from dataclasses import dataclass

from onefold import Event, Outputs, Topology


@dataclass(frozen=True, slots=True)
class Order:
    """One that has come."""

    cents: int


def handle(order: Order | None, event: Event) -> tuple[Order, Outputs]:
    """The first time an order comes, a mail has to be sent; a repeat changes nothing."""
    if order is not None:
        return order, ()
    value = event.value
    letter = {"log_id": value.id, "segment": 0, "entry": 1, "address": value.address, "cents": value.cents}
    return Order(value.cents), [
        ("mails.placed", {"id": value.id, "cents": value.cents}),
        ("mails.letters", letter),
    ]


TOPOLOGY = Topology(
    name="mails",
    inputs=("mails.orders",),
    key=lambda order: order.id,
    state=Order,
    handle=handle,
    outputs={"mails.placed": ("id",), "mails.letters": None},
)
