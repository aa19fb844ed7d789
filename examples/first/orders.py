from dataclasses import dataclass

from onefold import Event, Outputs, Topology


@dataclass(frozen=True)
class Customer:
    orders: dict[str, list[int]]  # order id -> [version, cents]


def handle(state: Customer | None, event: Event) -> tuple[Customer, Outputs]:
    order, state = event.value, state or Customer({})
    if order.version <= state.orders.get(order.id, [-1])[0]:
        return state, ()  # a duplicate, or out of order: nothing changes
    orders = {**state.orders, order.id: [order.version, order.cents]}
    cents = sum(cents for _, cents in orders.values())
    return Customer(orders), [("orders.totals", {"customer": order.customer, "orders": len(orders), "cents": cents})]


TOPOLOGY = Topology(
    name="orders", inputs=("orders.orders",), key=lambda order: order.customer,
    state=Customer, handle=handle, outputs={"orders.totals": ("customer",)},
)  # fmt: skip
