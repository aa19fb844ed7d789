"""Totals of each customer's orders, correct under replays, duplicates and reordering.

The handler never adds to a stored total. The state has the newest version of each
order, and the handler computes the totals from all orders. A duplicate counts once.
"""

from dataclasses import dataclass, replace

from onefold import Event, Output, Outputs, Rejected, Topology

STATES = ("placed", "paid", "cancelled")
CENTS_MAX = 10**9
# A customer's state is a single Kafka record of at most 8 MB.
ORDERS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Order:
    """The newest version of an order."""

    version: int
    state: str
    cents: int


@dataclass(frozen=True, slots=True)
class Customer:
    """All orders of a customer by id, and the number of changes."""

    orders: dict[str, Order]
    changes: int


def handle(customer: Customer | None, event: Event) -> tuple[Customer, Outputs]:
    """Keep the highest version of each order. Ignore duplicates and older versions."""
    value = event.value
    if value.state not in STATES:
        raise Rejected(f"state is {value.state[:20]!r}; it must be one of {STATES}")
    if not 0 <= value.cents <= CENTS_MAX:
        raise Rejected(f"cents is {value.cents}; it must be 0 to {CENTS_MAX}")
    customer = customer or Customer({}, 0)
    held = customer.orders.get(value.id)
    if held and value.version <= held.version:
        return customer, ()
    if not held and len(customer.orders) == ORDERS_MAX:
        raise Rejected(f"the customer has {ORDERS_MAX} orders already")
    order = Order(value.version, value.state, value.cents)
    orders = {**customer.orders, value.id: order}
    changed = replace(customer, orders=orders, changes=customer.changes + 1)
    return changed, (total(value.customer, changed),)


def total(name: str, customer: Customer) -> Output:
    """The output record with all columns of a customer's row."""
    orders = customer.orders.values()
    fields = {
        "customer": name,
        "orders": sum(order.state != "cancelled" for order in orders),
        "placed_cents": sum(order.cents for order in orders if order.state == "placed"),
        "paid_cents": sum(order.cents for order in orders if order.state == "paid"),
        "changes": customer.changes,
    }
    return Output("pipename.totals", fields)


TOPOLOGY = Topology(
    name="pipename",
    inputs=("pipename.orders",),
    key=lambda order: order.customer,
    state=Customer,
    handle=handle,
    outputs={"pipename.totals": ("customer",)},
)
