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

from onefold.error_codes import Code
from onefold.verify.expect import Table, View, Workload
from onefold.verify.models import TrackedRows
from onefold.verify.record import ReadRecord, Source
from onefold.verify.verdict import CannotTell

#: A row or an input, by field.
Fields = Mapping[str, Any]


class Rows:
    """The rows of one table, as far as the inputs go. `expected` is what the verifier compares with. `record` is the input record
    that is applied: when it was sent, in `timestamp_ms`, and its sender's `headers`.
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
        """What was put for this key last, columns and notes, or None. Changing it changes no row: put it again."""
        found = self.expected.get(key)
        return None if found is None else dict(zip(self._names, found[0], strict=True)) | self._noted.get(key, {})

    def here(self) -> list[dict[str, Any]]:
        """As `get`, what was put for each key in the partition of the input that is applied, or of the tick; in order of the
        keys.
        """
        keys = sorted(key for key, (_, source) in self.expected.items() if source.partition == self.source.partition)
        return [row for key in keys if (row := self.get(*key)) is not None]

    def put(self, fields: Fields) -> None:
        """The row of its key, new or in the place of the one that was there.

        Fields that are no columns are notes: `get` gives them back, such as the ids that were counted already, and nothing
        is compared with them.

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


#: Takes one input, and puts the rows that it changes. What changes none is counted as ignored. Raises
#: `decode.Inadmissible` when a rule forbids the input, before it puts any.
Apply = Callable[[Fields, Mapping[str, Rows]], None]

#: Takes one tick: the milliseconds since 1970, and the tables. It is for the rows of its partition alone, which `Rows.here`
#: gives; for the rest it is as `Apply`.
ApplyTick = Callable[[int, Mapping[str, Rows]], None]

#: Takes the state key that a tombstone deletes, as a text, and the tables; for the rest it is as `Apply`.
ApplyDelete = Callable[[str, Mapping[str, Rows]], None]

#: The field by which inputs belong together, or a function of the input.
Key = str | Callable[[Fields], Any]


class _Made:
    """The `expect.Model` that functions make."""

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
        """As the processor has it: the text of what the topology's `key` gives. Raises `CannotTell` without that field."""
        key = self._key[source.topic]
        if not isinstance(key, str):
            return str(key(value))
        if key not in value:
            raise CannotTell(Code.MODEL_WRONG, f"the model's key {key!r} is no field of the inputs of {source.topic}")
        return str(value[key])

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Whether it changed a row."""
        return self._changes(source, lambda: self._apply[source.topic](value, self._tables))

    def delete(self, key: str, source: Source) -> bool:
        """Whether it changed a row."""
        return self._changes(source, lambda: self._delete[source.topic](key, self._tables))

    def tick(self, at_ms: int, source: Source) -> bool:
        """Whether it changed a row."""
        apply = self._tick
        assert apply is not None, "only a workload with ticks is told them"
        return self._changes(source, lambda: apply(at_ms, self._tables))

    def _changes(self, source: Source, apply: Callable[[], None]) -> bool:
        for rows in self._tables.values():
            rows.source, rows.record, rows.changed = source, self.record, False
        apply()
        return any(rows.changed for rows in self._tables.values())

    def settle(self) -> None:
        """Rows are kept up to date all the time."""


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
    """A workload whose rows `apply` makes.

    Args:
        name: of the pipeline.
        apply: takes an input and puts rows; or one such function for each input topic, by its name.
        inputs: the topics.
        key: the field by which inputs belong together, as in the topology; or a function of the input; or, where topics
            differ in it, one of both for each input topic, by its name.
        tables: what must be compared. Their columns are the fields of their topic's schema, unless they say otherwise.
        views: what must show the same as a table.
        tick: takes a tick and puts rows, where the topology declares one.
        apart: without effect; a model of an earlier version may say it.
        tombstones: what becomes of a null value, as in the topology: "reject", "ignore" or "event".
        delete: with "event", takes the state key that a tombstone deletes, as a text, and puts rows; or one such function for
            each input topic, by its name.
        not_judged: what of the pipeline no table says, each with the reason: output topics and tables, and fields and columns
            as `topic.field` and `table.column`. `onefold check` asks for them, and a verdict lists them.
        on_dead_letter: what becomes of the later events of a key after one was rejected, as in the topology: "pass" or "park".

    Raises:
        ValueError: `apply`, `key` or `delete` names topics, and not just those of `inputs`; or `tombstones` is none of the
            three, or "event" without a `delete`.
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
