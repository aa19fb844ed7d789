"""A model in a few lines: what one input makes of the rows. The rest of a workload comes from the contracts.

    def apply(scan, tables):
        places = tables["parcels.places"]
        held = places.get(scan["parcel"])
        if held is None or scan["at"] > held["at"]:
            places.put(scan)

Inputs come as dicts, in the order of their partition, checked against their contract. Rows are dicts as well. A model that
has to hold tens of millions of rows, or that adds all of them up at the end, is a class of its own: see `expect.Model`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from onefold.proof.expect import Source, Table, View, Workload
from onefold.proof.verdict import CannotTell

#: A row or an input, by field.
Fields = Mapping[str, Any]


class Rows:
    """The rows of one table, as far as the inputs go. `expected` is what the judge compares with."""

    def __init__(self, table: Table) -> None:
        self.expected: dict[tuple[Any, ...], tuple[tuple[Any, ...], Source]] = {}
        self._table = table
        self._names = tuple(column.name for column in table.columns)
        self.source = Source("", 0, 0)
        self.changed = False

    def get(self, *key: Any) -> dict[str, Any] | None:
        """The row of this key by column, or None."""
        found = self.expected.get(key)
        return None if found is None else dict(zip(self._names, found[0], strict=True))

    def put(self, fields: Fields) -> None:
        """The row of its key, new or in the place of the one that was there. Fields that are no columns are left out."""
        try:
            row = tuple(fields[name] for name in self._names)
        except KeyError as name:
            raise CannotTell(f"the model gives no {name} for a row of {self._table.name}") from None
        self.expected[tuple(fields[name] for name in self._table.key)] = row, self.source
        self.changed = True


#: Takes one input, and puts the rows that it changes. What changes none is counted as ignored. Raises
#: `decode.Inadmissible` when a rule forbids the input, before it puts any.
Apply = Callable[[Fields, Mapping[str, Rows]], None]


class _Made:
    """The `expect.Model` that a function makes."""

    def __init__(self, apply: Apply, key: str | Callable[[Fields], Any], tables: tuple[Table, ...]) -> None:
        self._apply = apply
        self._key = (lambda value: value[key]) if isinstance(key, str) else key
        self._tables = {table.name: Rows(table) for table in tables}
        self.rows = {name: rows.expected for name, rows in self._tables.items()}

    def key(self, value: dict[str, Any]) -> str:
        """As the processor has it: the text of what the topology's `key` gives."""
        return str(self._key(value))

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Whether it changed a row."""
        for rows in self._tables.values():
            rows.source, rows.changed = source, False
        self._apply(value, self._tables)
        return any(rows.changed for rows in self._tables.values())

    def settle(self) -> None:
        """Rows are kept up to date all the time."""


def model(
    name: str,
    apply: Apply,
    *,
    inputs: tuple[str, ...],
    key: str | Callable[[Fields], Any],
    tables: tuple[Table, ...],
    views: tuple[View, ...] = (),
) -> Workload:
    """A workload whose rows `apply` makes.

    Args:
        name: of the pipeline.
        apply: takes an input and puts rows.
        inputs: the topics.
        key: the field by which inputs belong together, as in the topology; or a function of the input.
        tables: what must be compared. Their columns are the fields of their topic's contract, unless they say otherwise.
        views: what must show the same as a table.
    """
    return Workload(name, inputs, tables, lambda: _Made(apply, key, tables), views)
