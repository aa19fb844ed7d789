"""Stand-ins for what tests of the sink need of Spark: a frame of records, and conditions on their columns."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Record = tuple[str, int, int]


class Condition:
    """What `functions.col` and `functions.lit` give: something that has a value for each record."""

    def __init__(self, value: Callable[[dict[str, Any]], Any]) -> None:
        self.value = value

    def _with(self, other: object, operation: Callable[[Any, Any], Any]) -> Condition:
        right = other.value if isinstance(other, Condition) else lambda record: other
        return Condition(lambda record: operation(self.value(record), right(record)))

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self._with(other, operator.eq)

    def __ge__(self, other: object) -> Condition:
        return self._with(other, operator.ge)

    def __gt__(self, other: object) -> Condition:
        return self._with(other, operator.gt)

    def __and__(self, other: object) -> Condition:
        return self._with(other, operator.and_)

    def __or__(self, other: object) -> Condition:
        return self._with(other, operator.or_)

    __hash__ = None  # type: ignore[assignment]


# In the place of pyspark.sql.functions.
columns = SimpleNamespace(
    col=lambda name: Condition(lambda record: record[name]), lit=lambda value: Condition(lambda record: value)
)


class Frame:
    """A batch: its records. `kept`: how often it is persisted now. `coalesced`: into how many tasks it was put."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)
        self.kept = 0
        self.coalesced: list[int] = []

    def where(self, condition: Condition) -> Frame:
        names = "topic", "partition", "offset"
        return Frame(*(one for one in self.records if condition.value(dict(zip(names, one, strict=True)))))

    def coalesce(self, tasks: int) -> Frame:
        self.coalesced.append(tasks)
        return self

    def persist(self) -> Frame:
        self.kept += 1
        return self

    def unpersist(self) -> None:
        self.kept -= 1

    def toArrow(self) -> list[Record]:  # noqa: N802 - PySpark's own name
        return self.records
