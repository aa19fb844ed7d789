"""A mail for each order: the handler writes a job, and a worker sends the mail."""

from dataclasses import dataclass

from onefold import Event, Outputs, Topology


@dataclass(frozen=True, slots=True)
class Order:
    """A received order."""

    cents: int


def handle(order: Order | None, event: Event) -> tuple[Order, Outputs]:
    """Write a job for the first record of an order. A repeated record changes nothing."""
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
