"""An explanation as a value: what the command prints, the page shows, and a program gets as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ShownRecord:
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
    record: ShownRecord


@dataclass(frozen=True)
class Folded:
    """The processor's transaction that processed an input record.

    Attributes:
        task: the partition number of the inputs.
        number: of the transaction, or with replicas of the version.
        at: the progress record in the changelog.
        at_ms: the time of that record, in milliseconds since 1970.
        exact: False: this transaction or one before it, of which the changelog keeps nothing any more.
        state_command: the command that shows the key's state after it, or "".
    """

    task: int
    number: int
    at: str
    at_ms: int
    exact: bool
    state_command: str = ""


@dataclass(frozen=True)
class SinkBatch:
    """The sink's transaction that wrote an output record, with the offsets [first_offset, next_offset) of its partition."""

    writer: str
    at: str
    first_offset: int
    next_offset: int


@dataclass(frozen=True)
class OutputStep:
    """An output record of the row. `changed`: (before, after) of the fields that differ from the record before it; None: that
    record was not found, or cannot be read.
    """

    output: ShownRecord
    causes: list[Cause]
    changed: dict[str, tuple[Any, Any]] | None


@dataclass(frozen=True)
class SearchedRange:
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
        row: values as PostgreSQL writes them; None: there is no such row.
        origin: topic/partition/offset.
        history: the last records of the row, the newest first.
        notes: what else has to be said, a sentence each.
        records_read, bytes_read: of Kafka, for all of it.
    """

    table: str
    key: dict[str, str | None]
    row: dict[str, str | None] | None
    origin: str | None
    output: ShownRecord | None = None
    causes: list[Cause] = field(default_factory=list)
    folded: Folded | None = None
    batch: SinkBatch | None = None
    history: list[OutputStep] = field(default_factory=list)
    looked: SearchedRange | None = None
    notes: list[str] = field(default_factory=list)
    records_read: int = 0
    bytes_read: int = 0
    seconds: float = 0.0

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}
