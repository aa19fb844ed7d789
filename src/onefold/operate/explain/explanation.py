"""The explanation of a row as a value, for the command, the page and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ShownRecord:
    """A record for display.

    Attributes:
        where: topic, partition and offset.
        at_ms: the timestamp, in milliseconds since 1970; None: the record is missing.
        key: as text; None: the record has no key.
        value: the decoded value for JSON; None: undecodable.
        raw: the bytes of an undecodable value, as text.
        problem: why the record or the value is missing.
        trace: the header `traceparent`, the id of the event in tracing systems.
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
    """An input record, and its relation to the previous record: "caused by" or "a copy of"."""

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
        exact: False: this transaction or an earlier one, because compaction has removed earlier progress records.
        state_command: the command that shows the key's state after the transaction, or "".
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
    """An output record of the row. `changed`: (before, after) for each field that differs from the previous record of the row;
    None: the previous record was not found, or is undecodable.
    """

    output: ShownRecord
    causes: list[Cause]
    changed: dict[str, tuple[Any, Any]] | None


@dataclass(frozen=True)
class SearchedRange:
    """The range that was searched for records of the row: from the origin back to `start`. `whole`: the range reaches the
    beginning of the partition. `by`: the fields that identify the row; empty: the record key.
    """

    where: str
    start: int
    whole: bool
    by: list[str]


@dataclass
class Explanation:
    """The explanation of a row.

    Attributes:
        row: values as PostgreSQL prints them; None: the row does not exist.
        origin: topic/partition/offset.
        history: the last records of the row, newest first.
        notes: further remarks, a sentence each.
        records_read, bytes_read: of Kafka, in total.
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
        """The explanation as JSON data."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}
