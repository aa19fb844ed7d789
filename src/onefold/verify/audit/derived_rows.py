"""Tables derived from the rows of a table, at the offsets of the ledger: updated with each written row, by the rule in the
workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from onefold.verify.column_types import taking
from onefold.verify.derived_tables import Gathered, Key, Row, Sums
from onefold.verify.expect import Table, Workload


class Added:
    """Sums over the rows of a table.

    Args:
        rows: of the model, with all rows written by the sink.
    """

    def __init__(self, table: Table, workload: Workload, rows: Mapping[str, Mapping[Key, Any]]) -> None:
        sums = table.sums
        assert isinstance(sums, Sums), "only a table that says what of"
        self.table = table
        self.of = sums.of
        self._levels = sums.levels
        names = [column.name for one in workload.tables if one.name == sums.of for column in one.columns]
        self._places = [names.index(name) for name in table.key]
        amounts = dict(sums.amounts)
        added = [column.name for column in table.columns if column.name not in table.key]
        told = [*table.key, *added]
        self._row = taking([told.index(column.name) for column in table.columns])
        self._amounts = [names.index(amounts[name]) if amounts[name] else None for name in added]
        self._leaves: dict[Key, list[Any]] = {}
        # A row with sums of zero may exist if its rows all moved to different keys before.
        self._known = set(rows[table.name])
        for values, _ in rows[sums.of].values():
            self.move(None, values)

    def move(self, before: tuple[Any, ...] | None, after: tuple[Any, ...]) -> None:
        """Replace the values `before` (None: the row is new) by `after` in the sums."""
        for values, sign in ((before, -1), (after, 1)):
            if values is not None:
                leaf = self._leaves.setdefault(tuple(values[at] for at in self._places), [0] * len(self._amounts))
                for number, at in enumerate(self._amounts):
                    leaf[number] += sign * (1 if at is None else values[at])

    def wanted(self) -> dict[Key, tuple[Any, ...]]:
        """Return the expected rows by key, including rows with sums of zero."""
        found: dict[Key, list[Any]] = {key: [0] * len(self._amounts) for key in self._known}
        for leaf, amounts in self._leaves.items():
            for key in product(*((name, None) for name in leaf)) if self._levels else (leaf,):
                sums = found.setdefault(key, [0] * len(amounts))
                for number, amount in enumerate(amounts):
                    sums[number] += amount
        return {key: self._row((*key, *amounts)) for key, amounts in found.items()}


class Together:
    """Rows gathered from the rows of a table.

    Args:
        rows: of the model, with all rows written by the sink.

    Attributes:
        rows: the expected rows of the table.
    """

    def __init__(self, table: Table, rows: Mapping[str, Mapping[Key, Any]]) -> None:
        gathered = table.sums
        assert isinstance(gathered, Gathered), "only a table that says what of"
        self.table = table
        self.of = gathered.of
        self._gathered = gathered
        self.rows: dict[Key, Row] = {}
        for values, _ in rows[gathered.of].values():
            self.take(values)

    def take(self, values: Row) -> Key | None:
        """Add a row that the sink has written. Return the key of the changed row, or None."""
        key = self._gathered.key(values)
        if key is not None:
            self.rows[key] = self._gathered.row(self.rows.get(key), values)
        return key
