"""Sliding averages of two streams of numbers: the average of each window, and the number of windows with too many numbers.

The rule:

- Windows are a minute long and begin every ten seconds, so each number counts in six windows.
- Each window of a name is emitted once, as soon as both streams have passed its end by the times of the name's own numbers.
  The faster stream therefore waits for the slower, and neither stream makes the numbers of the second late.
- A number for an emitted window is late. A late number does not change the window, and is counted.
- A window with more than a hundred numbers raises an alarm and increments a counter in PostgreSQL.
- Values are decimals of up to 12 digits before the point and 6 after the point. Sums are exact. An average is rounded once, to
  6 digits, halves to even.

Dead letters: fields outside the schema, values and times out of range, an empty or too long name.
"""

from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

from msgspec import Struct

from onefold import Event, Outputs, Rejected, Topology
from onefold.windows import Closed, Open, mean, sliding

LEFT, RIGHT = "averages.left", "averages.right"
MINUTES = sliding(60_000, 10_000)
NUMBERS_MAX = 100
NAME_CHARACTERS_MAX = 100
# The beginning of the year 3000.
AT_MS_END = 32_503_680_000_000

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
_MILLIONTH, _PLACES = Decimal("0.000001"), 6
# Eighteen digits, six of them after the point. A value with more digits raises an error and is never rounded.
_EXACT = Context(prec=18, traps=[Inexact, InvalidOperation])
# Exact for the sum of 10^10 values.
_SUM = Context(prec=28, traps=[Inexact, InvalidOperation])


class MinuteSum(Struct, frozen=True, gc=False):
    """The count and the total of a window's numbers."""

    numbers: int
    total: Decimal


class Channel(Struct, frozen=True):
    """The state of a name: its open windows, and the latest time of each stream in milliseconds since 1970."""

    minutes: Open[MinuteSum]
    left_ms: int | None
    right_ms: int | None


def handle(channel: Channel | None, event: Event) -> tuple[Channel, Outputs]:
    """Add the number to its windows, and emit the closed windows."""
    number = event.value
    value, at_ms = _admit(number), number.at_ms

    def add(before: MinuteSum | None) -> MinuteSum:
        return MinuteSum(1, value) if before is None else MinuteSum(before.numbers + 1, _SUM.add(before.total, value))

    minutes = MINUTES.add(channel.minutes if channel else None, at_ms, add)
    left_ms, right_ms = (channel.left_ms, channel.right_ms) if channel else (None, None)
    if event.topic == LEFT:
        left_ms = at_ms if left_ms is None else max(left_ms, at_ms)
    else:
        right_ms = at_ms if right_ms is None else max(right_ms, at_ms)
    over: list[Closed[MinuteSum]] = []
    if left_ms is not None and right_ms is not None:
        minutes, over = MINUTES.close(minutes, min(left_ms, right_ms))
    return Channel(minutes, left_ms, right_ms), _told(number.name, over, minutes.late)


def _told(name: str, over: list[Closed[MinuteSum]], late: int) -> Outputs:
    told: list[tuple[str, dict[str, Any]]] = []
    for minute in over:
        numbers, total = minute.value.numbers, minute.value.total
        average = {
            "name": name,
            "window_end": _EPOCH + minute.end_ms * _MILLISECOND,
            "average": mean(total, numbers, _PLACES),
            "numbers": numbers,
            "late": late,
        }
        told.append(("averages.averages", average))
    if full := [minute for minute in over if minute.value.numbers > NUMBERS_MAX]:
        last = _EPOCH + full[-1].end_ms * _MILLISECOND
        told.append(("averages.alarms", {"name": name, "alarms": len(full), "window_end": last}))
    return told


def _admit(number: Any) -> Decimal:
    """The value with six digits after the point. Raises `Rejected` for an invalid number."""
    if not 0 < len(number.name) <= NAME_CHARACTERS_MAX:
        raise Rejected(f"name has {len(number.name)} characters; it must have 1 to {NAME_CHARACTERS_MAX}")
    if not 0 <= number.at_ms < AT_MS_END:
        raise Rejected(f"at_ms is {number.at_ms}; it must be 0 to below {AT_MS_END}")
    try:
        value = _EXACT.quantize(number.value, _MILLIONTH)
    except DecimalException:
        value = Decimal("NaN")
    if not value.is_finite():
        raise Rejected("value must be a decimal below 10^12 with at most 6 digits after the point")
    return value


TOPOLOGY = Topology(
    name="averages",
    inputs=(LEFT, RIGHT),
    key=lambda number: number.name,
    state=Channel,
    handle=handle,
    outputs={"averages.averages": None, "averages.alarms": None},
)
