"""A verification model from functions: the rows that result from one input. The schemas determine the rest of a workload.

    def apply(scan, tables):
        places = tables["parcels.places"]
        held = places.get(scan["parcel"])
        if held is None or scan["at"] > held["at"]:
            places.put(scan)

Inputs are dicts, checked against their schema, in the order of their partition. Rows are dicts, too. A model with tens of
millions of rows, or with sums at the end, is a class of its own: see `models.RowModel`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from onefold.error_codes import Code
from onefold.verify.expect import Table, View, Workload
from onefold.verify.models import TrackedRows
from onefold.verify.record import ReadRecord, Source
from onefold.verify.verdict import CannotTell

#: A row or an input, by field.
Fields = Mapping[str, Any]


class Rows:
    """The rows of one table after the inputs so far. `expected` has the rows for the comparison. `record` is the present input
    record, with its timestamp in `timestamp_ms` and the sender's `headers`.
    """

    def __init__(self, table: Table) -> None:
        self.expected = TrackedRows()
        self._noted: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._table = table
        self._names = tuple(column.name for column in table.columns)
        self.source = Source("", 0, 0)
        self.record: ReadRecord | None = None
        self.changed = False

    def get(self, *key: Any) -> dict[str, Any] | None:
        """Return the row of a key as last put, with columns and notes; or None. A change of the dict changes no row: call `put`
        again.
        """
        found = self.expected.get(key)
        return None if found is None else dict(zip(self._names, found[0], strict=True)) | self._noted.get(key, {})

    def here(self) -> list[dict[str, Any]]:
        """Return all rows in the partition of the present input or tick, as `get` does, in the order of the keys. A row is in
        the partition of its last change.
        """
        keys = sorted(key for key, (_, source) in self.expected.items() if source.partition == self.source.partition)
        return [row for key in keys if (row := self.get(*key)) is not None]

    def put(self, fields: Fields) -> None:
        """Set the row of its key.

        Fields without a column are notes, such as ids counted already: `get` returns the notes, and the verifier does not
        compare notes.

        Raises:
            CannotTell: a column is missing.
        """
        try:
            row = tuple(fields[name] for name in self._names)
        except KeyError as name:
            raise CannotTell(Code.MODEL_WRONG, f"the model gives no {name} for a row of {self._table.name}") from None
        key = tuple(fields[name] for name in self._table.key)
        self.expected[key] = row, self.source
        if len(fields) > len(self._names):
            self._noted[key] = {name: value for name, value in fields.items() if name not in self._names}
        else:
            self._noted.pop(key, None)
        self.changed = True


#: Takes one input, and puts the changed rows. An input without a changed row counts as ignored. Raises `decode.Inadmissible`
#: before any change if a rule forbids the input.
Apply = Callable[[Fields, Mapping[str, Rows]], None]

#: Takes one tick: the milliseconds since 1970, and the tables. A tick may change only the rows of its partition, as returned by
#: `Rows.here`. The rest is as in `Apply`.
ApplyTick = Callable[[int, Mapping[str, Rows]], None]

#: Takes the state key of a tombstone, as text, and the tables. The rest is as in `Apply`.
ApplyDelete = Callable[[str, Mapping[str, Rows]], None]

#: The field with the state key of an input, or a function of the input.
Key = str | Callable[[Fields], Any]


class _Made:
    """A `models.RowModel` from functions."""

    def __init__(
        self,
        apply: Mapping[str, Apply],
        delete: Mapping[str, ApplyDelete],
        tick: ApplyTick | None,
        key: Mapping[str, Key],
        tables: tuple[Table, ...],
    ) -> None:
        self._apply = apply
        self._delete = delete
        self._tick = tick
        self._key = key
        self._tables = {table.name: Rows(table) for table in tables}
        self.rows = {name: rows.expected for name, rows in self._tables.items()}
        self.record: ReadRecord | None = None

    def key(self, value: dict[str, Any], source: Source) -> str:
        """Return the state key, as the processor computes it: the text of the topology's `key`. Raises `CannotTell` for a
        missing field.
        """
        key = self._key[source.topic]
        if not isinstance(key, str):
            return str(key(value))
        if key not in value:
            raise CannotTell(Code.MODEL_WRONG, f"the model's key {key!r} is no field of the inputs of {source.topic}")
        return str(value[key])

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Apply an input. Return whether a row changed."""
        return self._changes(source, lambda: self._apply[source.topic](value, self._tables))

    def delete(self, key: str, source: Source) -> bool:
        """Apply a tombstone. Return whether a row changed."""
        return self._changes(source, lambda: self._delete[source.topic](key, self._tables))

    def tick(self, at_ms: int, source: Source) -> bool:
        """Apply a tick. Return whether a row changed."""
        apply = self._tick
        assert apply is not None, "only a workload with ticks is told them"
        return self._changes(source, lambda: apply(at_ms, self._tables))

    def _changes(self, source: Source, apply: Callable[[], None]) -> bool:
        for rows in self._tables.values():
            rows.source, rows.record, rows.changed = source, self.record, False
        apply()
        return any(rows.changed for rows in self._tables.values())

    def settle(self) -> None:
        """Do nothing: rows are always up to date."""


def model(
    name: str,
    apply: Apply | Mapping[str, Apply],
    *,
    inputs: tuple[str, ...],
    key: Key | Mapping[str, Key],
    tables: tuple[Table, ...],
    views: tuple[View, ...] = (),
    tick: ApplyTick | None = None,
    apart: bool = False,
    tombstones: str = "reject",
    delete: ApplyDelete | Mapping[str, ApplyDelete] | None = None,
    not_judged: Mapping[str, str] | None = None,
    on_dead_letter: str = "pass",
) -> Workload:
    """Make a workload with the rows from `apply`.

    Args:
        name: of the pipeline.
        apply: takes an input and puts rows; or a dict with a function for each input topic.
        inputs: the topics.
        key: the field with the state key, as in the topology, or a function of the input; or a dict with a field or a function
            for each input topic.
        tables: the tables to compare. Columns are the fields of the topic's schema, unless the table names its columns.
        views: the views that must show the content of a table.
        tick: takes a tick and puts rows, if the topology declares a tick.
        apart: without effect; accepted with a warning, for models of earlier versions.
        tombstones: the handling of a null value, as in the topology: "reject", "ignore" or "event".
        delete: for "event", takes the state key of a tombstone, as text, and puts rows; or a dict with a function for each
            input topic.
        not_judged: everything without a comparison, each with the reason: output topics and tables, and fields and columns as
            `topic.field` and `table.column`. `onefold check` reports missing names, and a verdict lists the names.
        on_dead_letter: the handling of later events of a key after a rejected one, as in the topology: "pass" or "park".

    Raises:
        ValueError: the topics in `apply`, `key` or `delete` are not exactly `inputs`, or `tombstones` or `on_dead_letter` has
            an unknown value. The error is also raised for "event" without `delete`, and for `delete` without "event".
    """
    applies = apply if isinstance(apply, Mapping) else dict.fromkeys(inputs, apply)
    keys = key if isinstance(key, Mapping) else dict.fromkeys(inputs, key)
    if (delete is not None) != (tombstones == "event"):
        raise ValueError(f"the model of {name} has a delete if, and only if, it has tombstones='event'")
    deletes = delete if isinstance(delete, Mapping) else {} if delete is None else dict.fromkeys(inputs, delete)
    for what, given in (("apply", set(applies)), ("key", set(keys)), ("delete", set(deletes or inputs))):
        if given != set(inputs):
            raise ValueError(
                f"the model of {name} reads {', '.join(inputs)}, and its {what} is for"
                f" {', '.join(sorted(given)) or 'none of them'}: give one for each, or one for all"
            )
    return Workload(
        name,
        inputs,
        tables,
        lambda: _Made(applies, deletes, tick, keys, tables),
        views,
        ticks=tick is not None,
        apart=apart,
        tombstones=tombstones,
        not_judged=not_judged or {},
        on_dead_letter=on_dead_letter,
    )
