"""An explanation as a value: what the command prints, the page shows, and a program gets as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from onefold.operate.landings import Landing
from onefold.operate.reading import Stored
from onefold.operate.transactions import Folded


@dataclass(frozen=True)
class Shown:
    """A record for people.

    Attributes:
        where: its topic, partition and offset.
        at_ms: its timestamp, in milliseconds since 1970; None: it is not there.
        key: as a text, None when it has none.
        value: decoded, as JSON has it; None when it cannot be.
        raw: its bytes as a text, where they cannot be decoded.
        problem: why there is no record, or no value.
        trace: its header `traceparent`, by which tracing systems know the event.
    """

    where: str
    at_ms: int | None = None
    key: str | None = None
    value: Any = None
    raw: str | None = None
    problem: str | None = None
    trace: str | None = None


@dataclass(frozen=True)
class Cause:
    """An input record, and how it led to the record before it: "caused by" or "a copy of"."""

    how: str
    record: Shown
    stored: Stored | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Step:
    """An output record of the row.

    Attributes:
        changed: (before, after) of the fields that differ from the record before it; None where that was not found.
        others: further input records of the same key that it stands for: of several in one transaction, only the last
            becomes a record, and names its event alone.
        others_whole: whether these are all of them.
        folded: by which transaction of the processor.
        landed: by which batch of the sink.
        unknown: why these two are not known, a sentence each.
    """

    output: Shown
    causes: list[Cause]
    changed: dict[str, tuple[Any, Any]] | None
    others: list[str] = field(default_factory=list)
    others_whole: bool = True
    folded: Folded | None = None
    landed: Landed | None = None
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Landed:
    """The batch that landed an output record.

    Attributes:
        writer: the sink.
        at: when it was committed.
        first_offset, next_offset: of the record's partition it landed the offsets from the one to before the other.
    """

    writer: str
    at: str
    first_offset: int
    next_offset: int

    @staticmethod
    def of(found: Landing) -> Landed:
        """The same, as JSON has it."""
        return Landed(found.writer, found.at.isoformat(), found.first_offset, found.next_offset)


@dataclass(frozen=True)
class Batch:
    """The sink's transaction.

    Attributes:
        writer: the sink that landed it; None: not known any more.
        at: when it was committed; None: not known.
        exact: whether `at` is of this very row.
        next_offset: up to where the row's partition has landed.
        last_at, last_writer: of the last batch of the partition, which landed something else.
    """

    writer: str | None
    at: str | None
    exact: bool
    next_offset: int
    last_at: str | None = None
    last_writer: str | None = None


@dataclass(frozen=True)
class History:
    """Where the records of the row were looked for: from the origin back to `start`; `whole`: nothing older is there. `by`: the
    fields that tell them from others; none: the key of the record.
    """

    where: str
    start: int
    whole: bool
    by: list[str]


@dataclass
class Explanation:
    """All that is known of a row.

    Attributes:
        row: values as Postgres writes them; None: there is none.
        origin: topic/partition/offset.
        accumulated: columns that a merge makes of what the row had before, so of one record or of several.
        columns: per column a sentence: by which record it became what it is, or why that is not known.
        notes: what else has to be said, a sentence each.
        records_read, bytes_read: of Kafka, for all of it.
    """

    table: str
    key: dict[str, str | None]
    row: dict[str, str | None] | None
    origin: str | None
    accumulated: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    output: Shown | None = None
    causes: list[Cause] = field(default_factory=list)
    folded: Folded | None = None
    batch: Batch | None = None
    history: list[Step] = field(default_factory=list)
    looked: History | None = None
    notes: list[str] = field(default_factory=list)
    records_read: int = 0
    bytes_read: int = 0
    seconds: float = 0.0

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        found = {name: _data(value) for name, value in vars(self).items()}
        return found | {"seconds": round(self.seconds, 3)}

    def say_what_columns_are(self, fields: Mapping[str, Any], others: Mapping[str, Collection[str]]) -> None:
        """Fill in `columns`, by the history.

        Args:
            fields: of the output record that the row came from.
            others: per other topic that feeds the table the names of its fields.
        """
        for name in self.row or {}:
            if name in ("topic", "partition", "offset"):
                continue
            self.columns[name] = self._column(name, fields, [topic for topic in others if name in others[topic]])

    def _column(self, name: str, fields: Mapping[str, Any], others: list[str]) -> str:
        """`others`: the other topics that feed the table and have a field of that name."""
        if name in self.accumulated:
            return "the merge makes it of what the row had and what a batch has: of one record or of several records"
        if name not in fields:
            if others:
                return f"a field of {_listed(others)}, which feeds the table too and is not looked through here"
            return "not a field of the record: the merge or the table computes it"
        said, stored = fields[name], (self.row or {})[name]
        made = self._made_by(name, others)
        if type(said) is int and stored != str(said):
            return f"{made}; the record says {said}: the merge computes the value, or the row was changed by hand"
        return made

    def _made_by(self, name: str, others: list[str]) -> str:
        step = self._last_to_change(name)
        if step is None:
            return "older than what was looked through"
        # Records of such a row may lie in several partitions, or topics; those of the origin's alone are known.
        limit = f", as far as {self.looked.where} tells" if self.looked and (others or self.accumulated) else ""
        return f"{_by(step)}{limit}{f'; {_listed(others)} has that field too' if others else ''}"

    def _last_to_change(self, name: str) -> Step | None:
        for step in self.history:
            if step.changed is None:
                break
            if any(path == name or path.startswith(f"{name}.") for path in step.changed):
                return step
        if self.looked is not None and self.looked.whole and self.history and self.history[-1].changed is None:
            return self.history[-1]
        return None


def _listed(topics: list[str]) -> str:
    return " or ".join(topics)


def _by(step: Step) -> str:
    source = step.causes[0].record.where if step.causes else "a record that is not known"
    others = "" if not step.others and step.others_whole else ", or an event of its key shortly before"
    return f"{source}{others}, by {step.output.where}"


def _data(value: Any) -> Any:
    if isinstance(value, list):
        return [_data(part) for part in value]
    if hasattr(value, "_asdict"):
        return str(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: _data(part) for name, part in vars(value).items() if name != "stored"}
    return value
