"""Verification model of `trades`: risk messages, and the expected sums at every level of the hierarchy.

The rules of the model: a message counts if its version is above the version of the trade's last counting message. The first
message always counts. A trade has the value and the leaf of its last counting message. Every combination of risk type, region
and trade desk from a counting message has a row with the sum and the number of its present trades. Every coarser combination up
to the total also has a row. A row without trades may be missing.

`onefold.workloads.trade_feed` generates the input.
"""

from array import array
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

from onefold.verify.decode import Inadmissible
from onefold.verify.expect import Column, Table, Workload
from onefold.verify.record import Source
from onefold.verify.summed import Sums
from onefold.workloads.trade_feed import TOPIC, generate, live

__all__ = ["CURRENT", "RISK", "TOPIC", "WORKLOAD", "Model", "generate", "live"]

_LEAF = tuple(map(Column, ("risk_type", "region", "trade_desk")))
_WORTH = Column("value", "millionths")
CURRENT = Table(
    "trades.current",
    "trades.deltas",
    ("trade_id",),
    (Column("trade_id"), Column("version"), _WORTH, *_LEAF, Column("traded_at", "instant")),
)
RISK = Table(
    "trades.risk",
    "trades.deltas",
    ("risk_type", "region", "trade_desk"),
    (*_LEAF, _WORTH, Column("trades", "long")),
    summed=True,
    sums=Sums(CURRENT.name, (("value", "value"), ("trades", "")), levels=True),
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS_AFTER_POINT = 6
_TOO_LARGE = Decimal(10**12)
_Leaf = tuple[str, str, str]


class Model:
    """The expected rows for a log of messages.

    Trades are stored in arrays of numbers instead of objects, because ten million trades must fit into memory.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._columns = _Columns()
        self._current = _Current(self._places, self._columns)
        # Every leaf of a counting message, with the last message that changed the leaf.
        self._changed: dict[int, Source] = {}
        self._risk: dict[tuple[Any, ...], Any] = {}
        self.rows: dict[str, Any] = {CURRENT.name: self._current, RISK.name: self._risk}

    def key(self, value: dict[str, Any], source: Source) -> str:
        """The trade, which identifies the state of a message."""
        return str(value["TradeID"])

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Count the message, unless its version is not higher than the trade's version."""
        names = _leaf(value)
        worth, moment = _admit(value, names)
        trade, version, columns = value["TradeID"], value["Version"], self._columns
        place = self._places.get(trade)
        leaf = columns.number_of(names)
        if place is None:
            self._places[trade] = columns.append(version, worth, leaf, moment, source)
        elif version <= columns.versions[place]:
            return False
        else:
            self._changed[columns.leaves[place]] = source
            columns.replace(place, version, worth, leaf, moment, source)
        self._current.changed.append((trade,))
        self._changed[leaf] = source
        return True

    def settle(self) -> None:
        """Recompute the sums of all trades."""
        columns = self._columns
        sums: dict[int, list[int]] = {leaf: [0, 0] for leaf in self._changed}
        for leaf, worth in zip(columns.leaves, columns.values, strict=True):
            sums[leaf][0] += worth
            sums[leaf][1] += 1
        levels: dict[tuple[Any, ...], list[Any]] = {}
        for leaf, (worth, trades) in sums.items():
            for level in product(*((name, None) for name in columns.names[leaf])):
                found = levels.setdefault(level, [0, 0, self._changed[leaf]])
                found[0] += worth
                found[1] += trades
                found[2] = max(found[2], self._changed[leaf])
        self._risk.clear()
        for level, (worth, trades, source) in levels.items():
            self._risk[level] = (*level, _decimal(worth), trades), source


class _Columns:
    """Arrays with an element for each trade. Leaves and inputs are stored as numbers."""

    def __init__(self) -> None:
        self.versions, self.values, self.moments, self.offsets = array("q"), array("q"), array("q"), array("q")
        self.leaves, self.inputs = array("l"), array("l")
        self.names: list[_Leaf] = []
        self._numbers: dict[_Leaf, int] = {}
        self._input_names: list[tuple[str, int]] = []
        self._input_numbers: dict[tuple[str, int], int] = {}

    def number_of(self, leaf: _Leaf) -> int:
        number = self._numbers.get(leaf)
        if number is None:
            number = self._numbers[leaf] = len(self.names)
            self.names.append(leaf)
        return number

    def append(self, version: int, worth: int, leaf: int, moment: int, source: Source) -> int:
        self.versions.append(version)
        self.values.append(worth)
        self.moments.append(moment)
        self.leaves.append(leaf)
        self.inputs.append(self._number_of_input(source))
        self.offsets.append(source.offset)
        return len(self.versions) - 1

    def replace(self, place: int, version: int, worth: int, leaf: int, moment: int, source: Source) -> None:
        self.versions[place], self.values[place], self.moments[place] = version, worth, moment
        self.leaves[place], self.offsets[place] = leaf, source.offset
        self.inputs[place] = self._number_of_input(source)

    def _number_of_input(self, source: Source) -> int:
        where = source[:2]
        number = self._input_numbers.get(where)
        if number is None:
            number = self._input_numbers[where] = len(self._input_names)
            self._input_names.append(where)
        return number

    def source(self, place: int) -> Source:
        return Source(*self._input_names[self.inputs[place]], self.offsets[place])


class _Current(Mapping[tuple[Any, ...], Any]):
    """The rows of `trades.current`, computed on each access."""

    def __init__(self, places: dict[str, int], columns: _Columns) -> None:
        self._places = places
        self._columns = columns
        self.changed: list[tuple[Any, ...]] = []

    def __getitem__(self, key: tuple[Any, ...]) -> Any:
        place, columns = self._places[key[0]], self._columns
        moment = _EPOCH + timedelta(microseconds=columns.moments[place])
        worth, names = _decimal(columns.values[place]), columns.names[columns.leaves[place]]
        return (key[0], columns.versions[place], worth, *names, moment), columns.source(place)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return ((trade,) for trade in self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: Any) -> bool:
        return key[0] in self._places


def _admit(value: dict[str, Any], names: _Leaf) -> tuple[int, int]:
    """The value in millionths and the time in microseconds. Raises `Inadmissible` for an invalid message."""
    if value["Version"] < 0:
        raise Inadmissible("Version is negative")
    if not 1 <= len(value["TradeID"]) <= 200:
        raise Inadmissible("TradeID has no 1 to 200 characters")
    risk_type, region, desk = names
    if not (1 <= len(risk_type) <= 100 and 1 <= len(region) <= 100 and 1 <= len(desk) <= 100):
        raise Inadmissible("a name of the hierarchy has no 1 to 100 characters")
    seconds = value["Timestamp"]
    if not 0 <= seconds <= 9_007_199_254:
        raise Inadmissible("Timestamp is not within 0 and 9,007,199,254")
    return _fixed_point(value["Value"]), round(seconds * 1_000_000)


def _leaf(value: dict[str, Any]) -> _Leaf:
    """The leaf of a message, by field names because fields come in any order."""
    names = value["Hierarchy"]
    return names["RiskType"], names["Region"], names["TradeDesk"]


def _fixed_point(value: Decimal) -> int:
    """The value in millionths."""
    # Comparisons of decimals are exact. Decimal arithmetic rounds, and fails for 1E+1000000.
    if not value.is_finite() or not -_TOO_LARGE < value < _TOO_LARGE:
        raise Inadmissible("Value is not below 10^12")
    number = int(value.scaleb(_DIGITS_AFTER_POINT))
    if _decimal(number) != value:
        raise Inadmissible("Value has more than 6 digits after the point")
    return number


def _decimal(millionths: int) -> Decimal:
    return Decimal(millionths).scaleb(-_DIGITS_AFTER_POINT)


_PREVIOUS = ("value", "risk_type", "region", "trade_desk")
WORKLOAD = Workload(
    "trades",
    (TOPIC,),
    (CURRENT, RISK),
    Model,
    not_judged={
        "trades.landed": "the time of a commit follows from no input",
        "trades.truth": "a producer writes it, and no sink",
        "trades.deltas.messages": "how many changes are told at once depends on the transactions",
    }
    | {f"trades.deltas.previous_{name}": "trades.risk is made of it, and compared" for name in _PREVIOUS},
)
