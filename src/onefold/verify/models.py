"""The interfaces of verification models: the expected rows, feedback records, jobs and objects of a pipeline."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from onefold.verify.feedback import Fields
from onefold.verify.objects import ObjectReader
from onefold.verify.record import Source
from onefold.verify.verdict import Check, Finding

Key = tuple[Any, ...]
Row = tuple[tuple[Any, ...], Source]


class TrackedRows(dict[Key, Row]):
    """The rows of one table in a model: a dict that notes the keys of set and removed rows.

    With `TrackedRows`, `verify` reads inputs and outputs side by side. For a model with plain dicts, `verify` first reads all
    output records, and holds these in memory.
    """

    __slots__ = ("before", "changed")

    def __init__(self, rows: Mapping[Key, Row] = MappingProxyType({})) -> None:
        super().__init__(rows)
        #: The keys of changed rows, until the caller clears them; and the rows before, None for a new row.
        self.changed: list[Key] = []
        self.before: dict[Key, Row | None] = {}

    def _note(self, key: Key) -> None:
        self.changed.append(key)
        self.before.setdefault(key, self.get(key))

    def __setitem__(self, key: Key, row: Row) -> None:
        self.changed.append(key)  # `_note`, inlined: a call is expensive
        self.before.setdefault(key, self.get(key))
        super().__setitem__(key, row)

    def __delitem__(self, key: Key) -> None:
        if key in self:
            self._note(key)
        super().__delitem__(key)

    def __ior__(self, rows: Any, /) -> Any:  # type: ignore[misc]  # the operator `|` gives a dict
        self.update(rows)
        return self

    def update(self, *rows: Any, **named: Any) -> None:
        """Set rows, as `dict.update` does."""
        for key, row in dict(*rows, **named).items():
            self[key] = row

    def setdefault(self, key: Key, row: Any = None) -> Any:
        """Return the row of the key. A missing row is set first."""
        if key not in self:
            self[key] = row
        return self[key]

    def pop(self, key: Key, *default: Any) -> Any:
        """Remove the row and return it."""
        if key in self:
            self._note(key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[Key, Row]:
        """Remove the row that was set last. Return its key and the row."""
        if self:
            self._note(next(reversed(self)))
        return super().popitem()

    def clear(self) -> None:
        """Remove all rows."""
        for key in self:
            self._note(key)
        super().clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), dict(self), vars(self) if hasattr(self, "__dict__") else {})


def _restored(kind: type[TrackedRows], rows: dict[Key, Row], attributes: dict[str, Any]) -> TrackedRows:
    """Restore rows from a checkpoint, without `__init__`, which may require arguments in a subclass."""
    found = kind.__new__(kind)
    dict.update(found, rows)
    found.changed, found.before = [], {}
    for name, value in attributes.items():
        setattr(found, name, value)
    return found


class RowModel(Protocol):
    """A model of a pipeline's rows. If the model has an attribute `record`, the verifier sets each input record there before
    `apply`, with the sender's timestamp and headers.
    """

    @property
    def rows(self) -> Mapping[str, Mapping[tuple[Any, ...], tuple[tuple[Any, ...], Source]]]:
        """`rows[table][key]`: the values by column, and the source of the last change."""

    def key(self, value: dict[str, Any], source: Source, /) -> str:
        """Return the text of the state key of a well-formed value."""

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Apply a value. Return False if nothing changes. Raises `Inadmissible` if a rule forbids the value."""

    def settle(self) -> None:
        """Bring `rows` up to date with all applied values. The output records of a table with row changes only in `settle` are
        not compared one by one: such a comparison needs correct rows directly after `apply`.
        """


class TickingModel(RowModel, Protocol):
    """A model of a pipeline with ticks."""

    def tick(self, at_ms: int, source: Source) -> bool:
        """Apply a tick, which affects only the keys of its partition: keys with a source in this partition. Return False if
        nothing changes. Raises `Inadmissible` before any change if a rule forbids the tick.

        Args:
            at_ms: the time, in milliseconds since 1970. The time only increases in a partition.
            source: of the tick.
        """


class DeletingModel(RowModel, Protocol):
    """A model of a pipeline with tombstones as events."""

    def delete(self, key: str, source: Source) -> bool:
        """Apply the tombstone of a state key. Return False if nothing changes. Raises `Inadmissible` if a rule forbids the
        tombstone.
        """


class Feeding(RowModel, Protocol):
    """A model of a pipeline with feedback topics or queues."""

    def feeds(self) -> Iterable[tuple[str, Fields] | tuple[str, Fields, str]]:
        """Return the expected records in feedback topics and queues from the last applied value: the topic and all fields. A
        queue record also has its Kafka key, if different from the state key. The verifier calls `feeds` only after a value with
        a change.
        """


class Making(RowModel, Protocol):
    """A model of a pipeline with workers that make objects in a store."""

    def unmade(self) -> str:
        """Return which requested object is not reported as made yet, in one sentence; "" if none."""

    def judge_made(self, store: ObjectReader) -> tuple[list[Check], list[Finding]]:
        """Return the checks of the object store, and the mismatches there."""

    def follow_made(self, store: ObjectReader) -> Callable[[], Iterable[Finding]]:
        """Return a function that lists the mismatches of objects reported since its last call. After an error of the store,
        call the function again.
        """
