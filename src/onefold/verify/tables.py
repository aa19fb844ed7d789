"""Compare the rows in PostgreSQL with the expected rows: each column, in both directions."""

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any

from onefold.verify.column_types import KINDS, taking
from onefold.verify.derived_tables import Gathered
from onefold.verify.expect import Expected, Table, View, Workload
from onefold.verify.outputs import LastOutput
from onefold.verify.record import Source
from onefold.verify.snapshot import ORIGIN, DatabaseSnapshot
from onefold.verify.verdict import Check, Finding

Key = tuple[Any, ...]
Values = tuple[Any, ...]


class _Untold(Enum):
    UNTOLD = "untold"


# The value of a column that an output record does not have, such as a generated column; also in a checkpoint.
UNTOLD: Any = _Untold.UNTOLD


#: An expected row: its values; its output record, or None for no or several output records; and the input record of the last
#: change, or None if unknown.
Wanted = tuple[Values, LastOutput | None, Source | None]


class Comparer:
    """Compares rows of a table with expected rows. A row has all columns, and then the place of its output record.

    Attributes:
        key: returns the key of a row, or of its values.
        found: the number of rows in the table, after `whole`.
    """

    found = 0

    def __init__(self, table: Table) -> None:
        self.table = table
        self.names = tuple(column.name for column in table.columns)
        self._width = len(self.names)
        self.key: Callable[[tuple[Any, ...]], Key] = taking([self.names.index(name) for name in table.key])
        self._adds_up = table.summed and not isinstance(table.sums, Gathered)
        self._amounts = taking([at for at, name in enumerate(self.names) if name not in table.key])

    def row(self, key: Key, row: tuple[Any, ...], wanted: Wanted | None) -> Finding | None:
        """Return the mismatch of the row with a key, or None. `wanted`: the expected row; None: no row must exist."""
        table = self.table
        values, origin = row[: self._width], row[self._width :]
        if wanted is None:
            return extra(table, key, origin)
        right, written, source = wanted
        if values != right and (wrong := differing(table, self.names, without_untold(values, right), values)):
            # A row from several records gets new origins. Without the origin, a lasting mismatch is named once, and not at each
            # look.
            return different(table, key, wrong, origin if source else None, source)
        if table.summed:
            if origin[0] == table.topic:
                return None
            text = f"its rows are made of records of {table.topic}"
        elif written is None or origin != (table.topic, written.partition, written.offset):
            text = f"the last output record of this row is {_spot(table, written) or 'missing'}"
        elif written.source != source:
            text = f"the last output record of this row names {written.source}"
        else:
            return None
        told = str(source) if source else None
        return Finding("wrong origin", table.name, row_of(table, key), {}, joined(origin), told, text)

    def missing(self, key: Key, wanted: Wanted) -> Iterator[Finding]:
        """Yield the mismatch of a missing row. A row with sums of zero may be missing: amounts that cancel out within one
        transaction are never written.
        """
        values, written, source = wanted
        if self._adds_up and not any(self._amounts(values)):
            return
        spot, table = _spot(self.table, written), self.table
        text = "its output record is in Kafka" if spot else "no output record was ever written for it"
        text = "it is made of several output records" if table.summed else text
        yield Finding("missing row", table.name, row_of(table, key), {}, spot, str(source) if source else None, text)

    def whole(
        self,
        snapshot: DatabaseSnapshot,
        rows: Collection[Key],
        wanted: Callable[[Key], Wanted | None],
        *,
        is_sound: bool = True,
    ) -> Iterator[Finding]:
        """Yield all mismatches in the table, and set `found`.

        Args:
            rows: the keys of the expected rows.
            wanted: returns the expected row of a key; None: no row must exist.
            is_sound: whether all columns have the right types. PostgreSQL may be unable to compare keys of a wrong type.
        """
        self.found = matched = 0
        for row in snapshot.rows(self.table.name, (*self.names, *ORIGIN)):
            self.found += 1
            right = wanted(key := self.key(row))
            matched += right is not None
            if (wrong := self.row(key, row, right)) is not None:
                yield wrong
        for *doubled, count in snapshot.doubled(self.table) if is_sound else ():
            key = tuple(doubled)
            matched -= count - 1 if wanted(key) else 0
            text = f"there are {count} rows with this key"
            yield Finding("extra row", self.table.name, row_of(self.table, key), text=text)
        if matched < len(rows):
            there = set(snapshot.rows(self.table.name, self.table.key))
            for key in rows:
                if key not in there and (right := wanted(key)) is not None:
                    yield from self.missing(key, right)


class Comparison:
    """Compares the tables of a workload in one snapshot. `last[table][key]` is the last output record of each row."""

    def __init__(
        self, workload: Workload, snapshot: DatabaseSnapshot, expected: Expected, last: dict[str, Any]
    ) -> None:
        self._workload = workload
        self._snapshot = snapshot
        self._model = expected.model
        self._last = last
        self.checks: list[Check] = []

    def findings(self) -> Iterator[Finding]:
        """Yield all mismatches in tables and views. Afterwards, `checks` is complete."""
        for table in self._workload.tables:
            wrong = list(self._snapshot.column_types(table))
            yield from wrong
            if not any("missing" in finding.text for finding in wrong):
                rows, last, comparer = self._model.rows[table.name], self._last.get(table.name, {}), Comparer(table)
                wanted = partial(_wanted, rows, last)
                yield from comparer.whole(self._snapshot, rows, wanted, is_sound=not wrong)
                self.checks.append(Check(table.name, len(rows), comparer.found))
        for view in self._workload.views:
            yield from self._view(view)

    def _view(self, view: View) -> Iterator[Finding]:
        table = next(table for table in self._workload.tables if table.name == view.table)
        names = [column.name for column in table.columns]
        shown, key_of = taking([*map(names.index, view.columns)]), taking([*map(view.columns.index, table.key)])
        wanted = {key: (shown(values), source) for key, (values, source) in self._model.rows[table.name].items()}
        expected = len(wanted)
        found = 0
        for row in self._snapshot.rows(view.name, view.columns):
            key = key_of(row)
            correct, source = wanted.pop(key, (None, None))
            found += 1
            if correct is None:
                yield Finding("extra row", view.name, row_of(table, key))
            elif row != correct and (wrong := differing(table, view.columns, correct, row)):
                yield different(table, key, wrong, None, source, view.name)
        self.checks.append(Check(view.name, expected, found))
        for key, (_, source) in wanted.items():
            yield Finding("missing row", view.name, row_of(table, key), source=str(source))


def _wanted(rows: Mapping[Key, tuple[Values, Source]], last: Mapping[Key, LastOutput], key: Key) -> Wanted | None:
    found = rows.get(key)
    return None if found is None else (found[0], last.get(key), found[1])


def differing(
    table: Table, names: tuple[str, ...], correct: tuple[Any, ...], values: tuple[Any, ...]
) -> dict[str, Any]:
    """Return the differences of a row by column: the expected and the found value."""
    kinds = {column.name: KINDS[column.kind].comparable for column in table.columns}
    found = {}
    for name, one, other in zip(names, correct, values, strict=True):
        as_ = kinds[name]
        if one != other and (as_ is None or as_(one) != as_(other)):
            found[name] = one, other
    return found


def extra(table: Table, key: tuple[Any, ...], origin: tuple[Any, ...]) -> Finding:
    """Return the mismatch of an unexpected row."""
    return Finding("extra row", table.name, row_of(table, key), {}, joined(origin))


def different(
    table: Table,
    key: tuple[Any, ...],
    columns: dict[str, Any],
    origin: tuple[Any, ...] | None,
    source: Any,
    where: str | None = None,
) -> Finding:
    """Return the mismatch of a row with wrong values: by column, the expected and the found value."""
    weight = sum(abs((a or 0) - (b or 0)) for a, b in columns.values() if {type(a), type(b)} <= {int, type(None)})
    output = joined(origin) if origin else None
    told = str(source) if source else None
    return Finding("different row", where or table.name, row_of(table, key), columns, output, told, weight=weight)


def row_of(table: Table, key: tuple[Any, ...]) -> dict[str, Any]:
    """Return a key by column."""
    return dict(zip(table.key, key, strict=True))


def _spot(table: Table, written: LastOutput | None) -> str | None:
    return f"{table.topic}/{written.partition}/{written.offset}" if written else None


def without_untold(correct: Values, told: Values) -> Values:
    """Return the values, with each untold value replaced by the correct one."""
    return tuple(one if value is UNTOLD else value for one, value in zip(correct, told, strict=True))


def joined(origin: tuple[Any, ...]) -> str:
    """Return the place of a record, as in mismatches."""
    return "/".join(map(str, origin))
