"""What a model of a pipeline gives the judge: which rows there must be, and what else."""

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
    """The rows of one table in a model: a dict that notes the keys whose rows are set or removed.

    With it `verify` reads inputs and outputs side by side. Of a model with plain dicts it reads the output records first, and
    holds them in memory.
    """

    __slots__ = ("before", "changed")

    def __init__(self, rows: Mapping[Key, Row] = MappingProxyType({})) -> None:
        super().__init__(rows)
        #: The keys, since they were taken from here; and what their rows were before, None where there was none.
        self.changed: list[Key] = []
        self.before: dict[Key, Row | None] = {}

    def _note(self, key: Key) -> None:
        self.changed.append(key)
        self.before.setdefault(key, self.get(key))

    def __setitem__(self, key: Key, row: Row) -> None:
        self.changed.append(key)  # as `_note`: a call takes as long as all the rest
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
        """Set rows, as of a dict."""
        for key, row in dict(*rows, **named).items():
            self[key] = row

    def setdefault(self, key: Key, row: Any = None) -> Any:
        """The row; it is set if there is none."""
        if key not in self:
            self[key] = row
        return self[key]

    def pop(self, key: Key, *default: Any) -> Any:
        """Remove the row, and return it."""
        if key in self:
            self._note(key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[Key, Row]:
        """Remove the row that was set last, and return its key and itself."""
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
    """What a checkpoint has, of a class whose `__init__` may want anything."""
    found = kind.__new__(kind)
    dict.update(found, rows)
    found.changed, found.before = [], {}
    for name, value in attributes.items():
        setattr(found, name, value)
    return found


class RowModel(Protocol):
    """What a domain's rows must be. One with an attribute `record` is given there each input record that it takes next, with the
    time at which it was sent and the headers of its sender.
    """

    @property
    def rows(self) -> Mapping[str, Mapping[tuple[Any, ...], tuple[tuple[Any, ...], Source]]]:
        """`rows[table][key]`: the values by column, and the source that last changed them."""

    def key(self, value: dict[str, Any], source: Source, /) -> str:
        """The text of the state key of a well-formed value."""

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take one value; False when it changes nothing. Raises `Inadmissible` when a rule forbids it."""

    def settle(self) -> None:
        """Bring `rows` up to date with all that was applied. Output records of a table whose rows change only here are not
        compared one by one: for that, rows must be right as soon as their input was applied.
        """


class TickingModel(RowModel, Protocol):
    """What is right in a domain with ticks."""

    def tick(self, at_ms: int, source: Source) -> bool:
        """Take one tick, which is for the keys of its partition alone: those whose values had a source in it. False when it
        changes nothing. Raises `Inadmissible`, before it changes anything, when a rule forbids it.

        Args:
            at_ms: the time, in milliseconds since 1970. In one partition it only goes up.
            source: of the tick.
        """


class DeletingModel(RowModel, Protocol):
    """What is right in a domain whose tombstones are events."""

    def delete(self, key: str, source: Source) -> bool:
        """Take the tombstone of a state key. False when it changes nothing. Raises `Inadmissible` when a rule forbids it."""


class Feeding(RowModel, Protocol):
    """A model of a pipeline that feeds itself, or that has queues."""

    def feeds(self) -> Iterable[tuple[str, Fields] | tuple[str, Fields, str]]:
        """What the value that was applied last makes the pipeline write into inputs of its own and into its queues: topic, all
        fields, and for a queue the Kafka key, where it is not the state key. It is asked for after values that changed something.
        """


class Making(RowModel, Protocol):
    """A model of a pipeline whose workers make objects in a store."""

    def unmade(self) -> str:
        """What was asked for and is not reported to be made, in one sentence; "" when all is."""

    def judge_made(self, store: ObjectReader) -> tuple[list[Check], list[Finding]]:
        """What was compared in the object store, and what is wrong there."""

    def follow_made(self, store: ObjectReader) -> Callable[[], Iterable[Finding]]:
        """What says, whenever it is asked, what is wrong with the objects that were reported since. An error of the store may
        come out of it; then it is asked again.
        """
