"""Averages: two streams of numbers, and the minutes that they must give.

Rules, in the judge's words. Minutes end at every full ten seconds of the clock. A number counts in the six minutes that hold
its time. A name's minutes are told, in order, up to the earlier of the two times that its streams have reached; a stream has
reached the latest time that it said. A number for a minute that ends no later than the last one told is late there. A minute of
more than a hundred numbers is one alarm. A value has at most six digits behind the point and twelve before it, and an average is
the exact one, rounded to six digits, halves to even.

The generated input: a few busy names, which raise alarms, and many quiet ones, as many numbers of either stream, some of them
late, some twice.
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
# More digits than a sum or a quotient could need to be on the right side of a half.
_LONG = Context(prec=100)


class _Name:
    """What has been heard of one name: the numbers of each minute that is not told, by its end."""

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
    """The rows that a log of numbers must give. It is told them in the order in which they were folded."""

    def __init__(self) -> None:
        self._names: dict[str, _Name] = {}
        self._averages = TrackedRows()
        self._alarms = TrackedRows()
        self.rows = {AVERAGES.name: self._averages, ALARMS.name: self._alarms}

    def key(self, value: dict[str, Any], source: Source) -> str:
        """Numbers of one name belong together."""
        return str(value["name"])

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Every number counts, or counts as late."""
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
        """Rows are kept up to date all the time."""


def _moment(milliseconds: int) -> datetime:
    try:
        at = _FIRST + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise Inadmissible("there is no such time") from None
    if at < _FIRST or at.year > _LAST_YEAR:
        raise Inadmissible("the time is out of range")
    return at


def _fits(number: Decimal) -> bool:
    """Whether twelve digits and six are enough. Zeros at the end are no digits."""
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
# A busy name has three numbers a second: 180 a minute. A quiet one has one in a while.
_BUSY, _QUIET = 3, 40


def generate(seed: int, count: int, *, shape: Shape | None = None) -> Iterator[Input]:
    """`count` inputs; the same seed gives the same ones."""
    rng = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    return shaped(rng, count, _numbers(rng), shape or Shape())


def _numbers(rng: random.Random) -> Iterator[Input]:
    at_ms = _START_MS
    while True:
        at_ms += rng.randrange(180)
        number = rng.randrange(_BUSY) if rng.random() < 0.8 else _BUSY + rng.randrange(_QUIET)
        name, value = f"n{number}", Decimal(rng.randrange(-(10**9), 10**9)).scaleb(-1 - rng.randrange(6))
        body = f'{{"name": "{name}", "value": {value:f}, "at_ms": {at_ms}}}'
        yield Input(rng.choice(STREAMS), name.encode(), body.encode())
