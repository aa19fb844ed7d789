"""Windows of event time, as plain data in a state: tumbling and sliding, allowed lateness, the closing of windows.

    from onefold.windows import Open, mean, tumbling

    MINUTES = tumbling(60_000, lateness_ms=10_000)

    @dataclass(frozen=True)
    class Shop:                                              # a state: the open windows of a key
        orders: Open[int]

    def handle(shop, event):
        held = shop.orders if shop else None
        return Shop(MINUTES.add(held, event.value.at_ms, lambda count: (count or 0) + 1)), ()

    def on_tick(key, shop, at_ms):
        orders, closed = MINUTES.close(shop.orders, at_ms)
        return Shop(orders), [("shop.minutes", {"minute": window.start_ms, "orders": window.value}) for window in closed]

    TICK = Tick(every_s=1, handle=on_tick, due=lambda shop: MINUTES.due_ms(shop.orders))

This module reads no clock. **`close` closes** the windows that end at least `lateness_ms` before the time `now_ms`. A pipeline
may use two times, also both:

- a tick's: windows close also without further events. A delayed event is late after the clock has closed a later window of the
  key. A new key, or a key without events since, takes the event: the window opens again, and the next tick closes the window.
- `open.seen_ms`, the latest event time of the key, right after `add`. A delayed event is in time if the key's events are at
  most `lateness_ms` out of order; only the next event closes the last window.

In a join, the processor reads one topic ahead of the other: close by the earlier time of the two topics, or the slower
topic's events are late. The pipeline `averages` does so.

**A late event** belongs to a closed window. A late event changes no window; `open.late` counts late events. For a dead letter
instead, test `is_late` and raise `Rejected`. Whether an event is late depends on the order of topics and ticks. Therefore the
processor records the merge order, and the verifier reads the recorded order.

Event times are whole milliseconds, of any epoch. Refuse impossible times before `add`: a time in the next
century becomes `seen_ms`, and closes all earlier windows by event time.

The state has an entry for every open window: for sliding windows at least `size_ms / every_ms`. The state is plain JSON data.
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
    """The windows of a key, as a part of the key's state. Immutable: `Windows.add` and `Windows.close` return a new object.

    Attributes:
        seen_ms: the latest event time.
        closed_ms: the end of the last closed window, None before the first. Every window with that end or an earlier end is
            closed, also a window without events.
        late: the number of events for closed windows.
        values: the value of each open window, by the window's start.
    """

    seen_ms: int
    closed_ms: int | None = None
    late: int = 0
    values: dict[int, Value] = field(default_factory=dict)


class Closed(NamedTuple, Generic[Value]):
    """A closed window: the event times from `start_ms` to before `end_ms`, and the value of the events."""

    start_ms: int
    end_ms: int
    value: Value


@dataclass(frozen=True)
class Windows:
    """A scheme of windows of `size_ms`, with a start at every multiple of `every_ms`. `tumbling` and `sliding` make schemes.

    Attributes:
        size_ms: from the start of a window to the exclusive end.
        every_ms: from the start of a window to the next start.
        lateness_ms: from the end of a window to the closing.

    Raises:
        ValueError: the sizes are impossible.
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
        """The starts of all windows around a time, the earliest first."""
        first = (at_ms - self.size_ms) // self.every_ms + 1
        return range(first * self.every_ms, at_ms + 1, self.every_ms)

    def add(self, windows: Open[Value] | None, at_ms: int, change: Callable[[Value | None], Value]) -> Open[Value]:
        """The windows after a further event.

        Args:
            windows: the previous windows; None for the first event of a key.
            at_ms: the event's time.
            change: computes a window's next value; from None the first value. Called for every open window of the event.
        """
        held: Open[Value] = windows or Open(at_ms)
        starts = self.starts(at_ms)
        taken = [start for start in starts if not self._is_closed(held, start)]
        values = {**held.values, **{start: change(held.values.get(start)) for start in taken}}
        late = held.late + len(starts) - len(taken)
        return replace(held, seen_ms=max(held.seen_ms, at_ms), late=late, values=values)

    def is_late(self, windows: Open[Value] | None, at_ms: int) -> bool:
        """Whether all windows around a time are closed."""
        return windows is not None and self._is_closed(windows, self.starts(at_ms)[-1])

    def close(self, windows: Open[Value], now_ms: int) -> tuple[Open[Value], list[Closed[Value]]]:
        """Close the windows that end at `now_ms - lateness_ms` or before.

        Returns:
            The open windows, and the closed windows with an event, the earliest first. Without closed windows, the first is the
            same object: an unchanged state.
        """
        to_ms = now_ms - self.lateness_ms
        over = sorted(start for start in windows.values if start + self.size_ms <= to_ms)
        if not over:
            return windows, []
        values = {start: value for start, value in windows.values.items() if start > over[-1]}
        closed = [Closed(start, start + self.size_ms, windows.values[start]) for start in over]
        return replace(windows, closed_ms=closed[-1].end_ms, values=values), closed

    def due_ms(self, windows: Open[Value]) -> int | None:
        """When `close` closes the next window with an event; None without such a window. For `Tick(due=...)`."""
        return min(windows.values) + self.size_ms + self.lateness_ms if windows.values else None

    def _is_closed(self, windows: Open[Value], start_ms: int) -> bool:
        return windows.closed_ms is not None and start_ms + self.size_ms <= windows.closed_ms


def tumbling(size_ms: int, *, lateness_ms: int = 0) -> Windows:
    """Adjacent windows: every event is in exactly one window."""
    return Windows(size_ms, size_ms, lateness_ms)


def sliding(size_ms: int, every_ms: int, *, lateness_ms: int = 0) -> Windows:
    """Overlapping windows: every event is in about `size_ms / every_ms` windows, exactly if the quotient is whole."""
    return Windows(size_ms, every_ms, lateness_ms)


def mean(total: int | Decimal, count: int, digits: int) -> Decimal:
    """`total / count`, with `digits` digits behind the point, rounded once from the exact quotient: to the nearest, and in the
    middle to the even digit, as banks do.

    The total must also be exact. An integer of the smallest unit is exact, for example of cents. Each addition rounds a
    `Decimal` to 28 digits, and nearly always rounds a float.
    """
    rounded = round(Fraction(total) / count * 10**digits)
    return Decimal(f"{rounded}E-{digits}")
