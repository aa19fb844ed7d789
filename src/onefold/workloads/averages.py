"""Verification model of `averages`: two streams of numbers, and the expected windows.

The rules of the model: windows are a minute long and end at every full ten seconds of the clock. A number counts in the six
windows around its time. The windows of a name are emitted in order, up to the earlier of the latest times of its two streams. A
number is late for a window that ends no later than the last emitted window. A window with more than a hundred numbers is an
alarm. A value has at most six digits after the point and twelve before. An average is the exact average, rounded to six digits,
halves to even.

The generated input has a few busy names, which raise alarms, and many quiet names. Both streams have equally many numbers, some
late and some repeated.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from onefold.verify.decode import Inadmissible
from onefold.verify.expect import Column, Table, Workload
from onefold.verify.models import TrackedRows
from onefold.verify.record import Source
from onefold.workloads.shaping import Input, Shape, shaped

STREAMS = ("averages.left", "averages.right")
AVERAGES = Table("averages.averages", "averages.averages", ("name", "window_end"))
ALARMS = Table(
    "averages.alarms", "averages.alarms", ("name",), only=(Column("name"), Column("alarms", "long")), adds=("alarms",)
)
TOO_MANY = 101

_STEP, _STEPS = timedelta(seconds=10), 6
_FIRST, _LAST_YEAR = datetime(1970, 1, 1, tzinfo=UTC), 2999
# Enough digits of a sum or a quotient for correct rounding at a half.
_LONG = Context(prec=100)


class _Name:
    """The state of a name. `numbers` has the numbers of each window not emitted yet, by the end of the window."""

    def __init__(self) -> None:
        self.numbers: dict[datetime, list[Decimal]] = {}
        self.reached: dict[str, datetime] = {}
        self.told = datetime.min.replace(tzinfo=UTC)
        self.late = self.alarms = 0

    def hear(self, topic: str, at: datetime, value: Decimal) -> None:
        end = at - (at - _FIRST) % _STEP + _STEP
        for _ in range(_STEPS):
            if end <= self.told:
                self.late += 1
            else:
                self.numbers.setdefault(end, []).append(value)
            end += _STEP
        self.reached[topic] = max(at, self.reached.get(topic, at))

    def tell(self) -> Iterator[tuple[datetime, list[Decimal]]]:
        if len(self.reached) < len(STREAMS):
            return
        to = min(self.reached.values())
        for end in sorted(end for end in self.numbers if end <= to):
            self.told = end
            yield end, self.numbers.pop(end)


class Model:
    """The expected rows for the processed numbers. `apply` must be called in the processing order."""

    def __init__(self) -> None:
        self._names: dict[str, _Name] = {}
        self._averages = TrackedRows()
        self._alarms = TrackedRows()
        self.rows = {AVERAGES.name: self._averages, ALARMS.name: self._alarms}

    def key(self, value: dict[str, Any], source: Source) -> str:
        """The name, which identifies the state of a number."""
        return str(value["name"])

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Add the number to its windows, or count the number as late."""
        name, number = value["name"], value["value"]
        if not 1 <= len(name) <= 100 or not _fits(number):
            raise Inadmissible("the name or the value is out of range")
        at = _moment(value["at_ms"])
        heard = self._names.setdefault(name, _Name())
        heard.hear(source.topic, at, number)
        for end, numbers in heard.tell():
            total = Decimal(0)
            for each in numbers:
                total = _LONG.add(total, each)
            average = _LONG.divide(total, len(numbers)).quantize(Decimal("1E-6"), ROUND_HALF_EVEN, context=_LONG)
            self._averages[name, end] = (name, end, average, len(numbers), heard.late), source
            if len(numbers) >= TOO_MANY:
                heard.alarms += 1
                self._alarms[name,] = (name, heard.alarms), source
        return True

    def settle(self) -> None:
        """Do nothing, because `apply` keeps the rows up to date."""


def _moment(milliseconds: int) -> datetime:
    try:
        at = _FIRST + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise Inadmissible("there is no such time") from None
    if at < _FIRST or at.year > _LAST_YEAR:
        raise Inadmissible("the time is out of range")
    return at


def _fits(number: Decimal) -> bool:
    """Whether twelve digits before and six after the point suffice. Trailing zeros do not count."""
    if not number.is_finite():
        return False
    if not number:
        return True
    text = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    last = number.adjusted() - len(text.lstrip("0")) + 1
    return number.adjusted() < 12 and last >= -6


WORKLOAD = Workload(
    "averages",
    STREAMS,
    (AVERAGES, ALARMS),
    Model,
    not_judged={"averages.alarms.window_end": "the table counts alarms, and has no such column"},
)

# --- input

_START_MS = 1_767_225_600_000
# Busy names exceed the alarm's bound of 100 numbers a minute, and quiet names stay far below.
_BUSY, _QUIET = 3, 40


def generate(seed: int, count: int, *, shape: Shape | None = None) -> Iterator[Input]:
    """Generate `count` inputs. Equal seeds give equal inputs."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    return shaped(rng, count, _numbers(rng), shape or Shape())


def _numbers(rng: random.Random) -> Iterator[Input]:
    at_ms = _START_MS
    while True:
        at_ms += rng.randrange(180)
        number = rng.randrange(_BUSY) if rng.random() < 0.8 else _BUSY + rng.randrange(_QUIET)
        name, value = f"n{number}", Decimal(rng.randrange(-(10**9), 10**9)).scaleb(-1 - rng.randrange(6))
        body = f'{{"name": "{name}", "value": {value:f}, "at_ms": {at_ms}}}'
        yield Input(rng.choice(STREAMS), name.encode(), body.encode())
