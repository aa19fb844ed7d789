"""Windows of event time, as plain data in a state: tumbling and sliding, how late an event may be, what closes a window.

    from onefold.windows import Open, mean, tumbling

    MINUTES = tumbling(60_000, lateness_ms=10_000)

    @dataclass(frozen=True)
    class Shop:                                              # a state: one key's windows that are open
        orders: Open[int]

    def handle(shop, event):
        held = shop.orders if shop else None
        return Shop(MINUTES.add(held, event.value.at_ms, lambda count: (count or 0) + 1)), ()

    def on_tick(key, shop, at_ms):
        orders, closed = MINUTES.close(shop.orders, at_ms)
        return Shop(orders), [("shop.minutes", {"minute": window.start_ms, "orders": window.value}) for window in closed]

    TICK = Tick(every_s=1, handle=on_tick, due=lambda shop: MINUTES.due_ms(shop.orders))

Nothing in here looks at a clock. **What closes a window** is the time that `close` is given, and the windows that end at least
`lateness_ms` before it are closed. There are two such times, and a pipeline may use both:

- a tick's: windows are closed also when no event comes any more. What a sender held back is late once a window of its key that
  ends later was closed, which the clock decides. A key that is new, or had no event since, takes it: its window is open again,
  and the next tick closes it.
- `open.seen_ms`, the latest event time that the key has seen, right after `add`. Whatever a sender held back is in time, as
  long as the key's events are at most `lateness_ms` out of order; the last window is closed by the next event alone.

Where several topics are joined, one of them is read before the other: close by the earlier of the times that they have reached,
or the slower topic's events are late. The pipeline `averages` does so.

**A late event** is one that comes to a window which is closed. It changes no window; `open.late` counts it. Who would rather
have a dead letter asks `is_late` and raises `Rejected`. Which event is late depends on what came before it: in another order
of topics and ticks it would have been another one. That is why the order is written down, and the verifier reads it.

Event times are whole milliseconds, of any epoch. Refuse times that cannot be before you add them: one from the next
century is the latest that was seen, and closes all others by event time.

The state has an entry for every window that is open: of a sliding window `size_ms / every_ms` at least. It becomes JSON as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Closed", "Open", "Windows", "mean", "sliding", "tumbling"]

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Open(Generic[Value]):
    """The windows of one key, as part of its state. `Windows.add` makes it and `Windows.close` gives the next one; it is never
    changed itself.

    Attributes:
        seen_ms: the latest event time.
        closed_ms: the end of the last window that was closed, and None before the first was. Every window that ends then or
            before is closed, also one that never had an event.
        late: how often an event came to a window that was closed.
        values: what was made of the events of each window that is open, by its start.
    """

    seen_ms: int
    closed_ms: int | None = None
    late: int = 0
    values: dict[int, Value] = field(default_factory=dict)


class Closed(NamedTuple, Generic[Value]):
    """A window that is over: the event times from `start_ms` to before `end_ms`, and what was made of its events."""

    start_ms: int
    end_ms: int
    value: Value


@dataclass(frozen=True)
class Windows:
    """Which windows there are: each of `size_ms`, and one begins at every multiple of `every_ms`. Made by `tumbling` and
    `sliding`.

    Attributes:
        size_ms: from the start of a window to its end, which is not in it.
        every_ms: from the start of one to that of the next.
        lateness_ms: how much later than its end a window is closed.

    Raises:
        ValueError: there are no such windows.
    """

    size_ms: int
    every_ms: int
    lateness_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.every_ms <= self.size_ms or self.lateness_ms < 0:
            raise ValueError(
                f"windows of {self.size_ms} ms every {self.every_ms} ms, {self.lateness_ms} ms late, cannot be: "
                f"0 < every_ms <= size_ms and 0 <= lateness_ms"
            )

    def starts(self, at_ms: int) -> range:
        """The starts of all windows that an event of this time is in, the earliest first."""
        first = (at_ms - self.size_ms) // self.every_ms + 1
        return range(first * self.every_ms, at_ms + 1, self.every_ms)

    def add(self, windows: Open[Value] | None, at_ms: int, change: Callable[[Value | None], Value]) -> Open[Value]:
        """The windows after one more event.

        Args:
            windows: those before; None for the first event of a key.
            at_ms: the event's time.
            change: makes of a window's value the next one; of None the first one. Called for every window of the event that is
                not closed.
        """
        held: Open[Value] = windows or Open(at_ms)
        starts = self.starts(at_ms)
        taken = [start for start in starts if not self._is_closed(held, start)]
        values = {**held.values, **{start: change(held.values.get(start)) for start in taken}}
        late = held.late + len(starts) - len(taken)
        return replace(held, seen_ms=max(held.seen_ms, at_ms), late=late, values=values)

    def is_late(self, windows: Open[Value] | None, at_ms: int) -> bool:
        """Whether all windows of an event of this time are closed."""
        return windows is not None and self._is_closed(windows, self.starts(at_ms)[-1])

    def close(self, windows: Open[Value], now_ms: int) -> tuple[Open[Value], list[Closed[Value]]]:
        """Close the windows that end at `now_ms - lateness_ms` or before.

        Returns:
            Those that stay open, and those that had an event and were closed, the earliest first. When there are none of the
            latter, the former are the same object: a state that did not change.
        """
        to_ms = now_ms - self.lateness_ms
        over = sorted(start for start in windows.values if start + self.size_ms <= to_ms)
        if not over:
            return windows, []
        values = {start: value for start, value in windows.values.items() if start > over[-1]}
        closed = [Closed(start, start + self.size_ms, windows.values[start]) for start in over]
        return replace(windows, closed_ms=closed[-1].end_ms, values=values), closed

    def due_ms(self, windows: Open[Value]) -> int | None:
        """When `close` will close the next of them that has an event; None when there is none. For `Tick(due=...)`."""
        return min(windows.values) + self.size_ms + self.lateness_ms if windows.values else None

    def _is_closed(self, windows: Open[Value], start_ms: int) -> bool:
        return windows.closed_ms is not None and start_ms + self.size_ms <= windows.closed_ms


def tumbling(size_ms: int, *, lateness_ms: int = 0) -> Windows:
    """Windows side by side: every event is in one of them."""
    return Windows(size_ms, size_ms, lateness_ms)


def sliding(size_ms: int, every_ms: int, *, lateness_ms: int = 0) -> Windows:
    """Windows that overlap: every event is in about `size_ms / every_ms` of them, and in exactly so many where that is whole."""
    return Windows(size_ms, every_ms, lateness_ms)


def mean(total: int | Decimal, count: int, digits: int) -> Decimal:
    """`total / count`, with so many digits behind the point. It is rounded once, from the exact quotient: to the nearest, and
    in the middle to the even digit, as banks do.

    The total has to be exact as well. Whole numbers of the smallest unit are, such as cents; a `Decimal` is rounded to 28
    digits each time that something is added to it, and a float nearly always.
    """
    rounded = round(Fraction(total) / count * 10**digits)
    return Decimal(f"{rounded}E-{digits}")
