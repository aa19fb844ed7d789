"""Fakes for the ends of the sink: Spark's frames, conditions on columns, rows, and the writing of batches."""

from __future__ import annotations

import json
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.spark_sink.contracts import Target
from onefold.spark_sink.landing import batch_history, batches, known_schemas, ledger
from onefold.spark_sink.landing.batches import Batches
from onefold.spark_sink.landing.isolate import Bound
from onefold.spark_sink.landing.ledger import BatchRange, Contents, LastRecord, LedgerPosition, OffsetRange, Partition
from onefold.spark_sink.landing.staging_tables import StagingTables
from onefold.spark_sink.spark import checkpoint
from onefold.spark_sink.threads import Threads
from tests.support.told import Kept

Record = tuple[str, int, int]

TOPIC = "made_up.notes"
LEFT, RIGHT = (TOPIC, 0), (TOPIC, 1)
IDS = {TOPIC: "id-1"}
ANSWER_S = 10.0
BYTES = 10  # of the line of every record


class Condition:
    """Fake of `functions.col` and `functions.lit`: an expression with a value for each record."""

    def __init__(self, value: Callable[[dict[str, Any]], Any]) -> None:
        self.value = value

    def _with(self, other: object, operation: Callable[[Any, Any], Any]) -> Condition:
        right = other.value if isinstance(other, Condition) else lambda record: other
        return Condition(lambda record: operation(self.value(record), right(record)))

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]  # as in PySpark's own columns
        return self._with(other, operator.eq)

    def __lt__(self, other: object) -> Condition:
        return self._with(other, operator.lt)

    def __ge__(self, other: object) -> Condition:
        return self._with(other, operator.ge)

    def __gt__(self, other: object) -> Condition:
        return self._with(other, operator.gt)

    def __and__(self, other: object) -> Condition:
        return self._with(other, operator.and_)

    def __or__(self, other: object) -> Condition:
        return self._with(other, operator.or_)


# Replacement of pyspark.sql.functions.
columns = SimpleNamespace(
    col=lambda name: Condition(lambda record: record[name]), lit=lambda value: Condition(lambda record: value)
)


class Frame:
    """A batch of records. `kept`: present number of persists. `coalesced`: requested numbers of tasks."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)
        self.kept = 0
        self.coalesced: list[int] = []

    def where(self, condition: Condition) -> Frame:
        names = "topic", "partition", "offset"
        return Frame(*(one for one in self.records if condition.value(dict(zip(names, one, strict=True)))))

    def coalesce(self, tasks: int) -> Frame:
        self.coalesced.append(tasks)
        return self

    def persist(self) -> Frame:
        self.kept += 1
        return self

    def unpersist(self) -> None:
        self.kept -= 1

    def toArrow(self) -> list[Record]:  # noqa: N802 - PySpark's own name
        return self.records


class Rows:
    """A batch of records to stage unchanged. `kept`: present number of holders. `reread`: whether the batch is read more than
    once."""

    def __init__(self, *records: Record) -> None:
        self.records = list(records)
        self.kept = 0
        self.reread = False

    @contextmanager
    def held(self, offsets: int, reread: bool) -> Iterator[Rows]:
        self.kept += 1
        self.reread = reread
        try:
            yield self
        finally:
            self.kept -= 1

    def within(self, spans: Mapping[Partition, range], offsets: int) -> Rows:
        return Rows(*(one for one in self.records if one[2] in spans.get(one[:2], ())))

    def only(self, records: Sequence[tuple[str, int, int]]) -> Rows:
        return Rows(*(one for one in self.records if one in records))

    def bytes(self) -> int:
        return BYTES * len(self.records)

    def reduced_places(self) -> Any:
        """No test needs this query."""
        raise NotImplementedError

    def to_arrow(self) -> list[Record]:
        return self.records


class Staged:
    """Recorder of the staged records."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.bytes = BYTES * len(records)
        self.last_records = {
            (topic, partition): LastRecord(offset, offset) for topic, partition, offset in sorted(records)
        }
        self.contents: dict[Partition, Contents] = {}
        self.targets, self.counts = [TOPIC], {TOPIC: len(records)}
        self.rejected = 0

    def set_aside(self) -> list[Any]:
        return []


class World:
    """Environment of a query's batches. `outcomes`: error of each attempt to write, or None; afterwards all attempts succeed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.outcomes = folder, list[Exception | None]()
        self.tried: list[tuple[tuple[OffsetRange, ...], Any]] = []
        self.stored: dict[Partition, LedgerPosition] = {}
        self.ids = dict(IDS)
        self.connection = SimpleNamespace(closed=False)
        self.reader = SimpleNamespace(closed=False)
        self.told = Kept()
        self.bound, self.targets = Bound(), {TOPIC: Target(TOPIC, (), ())}
        self.go, self.landing = threading.Event(), threading.Event()
        self.go.set()
        self.staged: list[list[Record]] = []
        self.set_aside: list[Any] = []
        self.pruned: list[int] = []  # number of attempts to write before each pruning
        (folder / "offsets").mkdir()
        monkeypatch.setattr(batches, "land", self._land)
        monkeypatch.setattr(batches, "Staged", self._staged)
        monkeypatch.setattr(batches, "Sifted", self._sifted)
        monkeypatch.setattr(ledger, "positions", lambda connection, sink: self.stored)
        monkeypatch.setattr(known_schemas, "refuse_newer", lambda connection, domain: None)
        monkeypatch.setattr(known_schemas, "refuse_written", lambda domain, set_aside, records: None)
        monkeypatch.setattr(batch_history, "prune", lambda connection, sink: self.pruned.append(len(self.tried)))

    def _sifted(self, *arguments: Any) -> Any:
        self.set_aside.append(arguments)
        sifted = Staged(arguments[2].records)
        return SimpleNamespace(
            **vars(sifted) | {"rejected": 1},
            set_aside=sifted.set_aside,
            written=2,
            counted={TOPIC: 5},
            refused={TOPIC: 1},
            reason="because",
        )

    def batches(
        self,
        *,
        start: dict[Partition, int] | None = None,
        max_offsets: int = 1000,
        line_bytes_max: int = 1_000_000_000,
    ) -> Batches:
        plan = SimpleNamespace(
            domain=SimpleNamespace(name="made_up"),
            writer="me",
            step=lambda name: None,
            line_bytes_max=line_bytes_max,
            unknown_contracts=False,
            max_offsets=max_offsets,
            telemetry=self.told,
            clock=lambda: 7.0,
        )
        stage = StagingTables(self.targets)
        topics = SimpleNamespace(ids=lambda names: self.ids)
        start = {LEFT: 0, RIGHT: 0} if start is None else start
        ends = partial(checkpoint.ends, self.folder)
        made: Callable[..., Batches] = Batches
        return made(plan, self.connection, self.reader, topics, stage, start, dict(IDS), ends, Threads(), self.bound)

    def offsets(self, number: int, ends: dict[Partition, int]) -> None:
        """Write Spark's record of a batch, which precedes the batch."""
        noted: dict[str, dict[int, int]] = {}
        for (topic, partition), end in ends.items():
            noted.setdefault(topic, {})[partition] = end
        (self.folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(noted)}", encoding="utf-8")

    def _staged(self, stage: StagingTables, rows: Any) -> Any:
        self.staged.append(rows)
        return Staged(rows)

    def _land(self, connection: Any, batch: BatchRange, staged: Any, targets: Any, step: Any, merged: Any) -> bool:
        self.landing.set()
        assert self.go.wait(ANSWER_S)
        self.tried.append((batch.ranges, staged))
        if self.outcomes and (outcome := self.outcomes.pop(0)):
            raise outcome
        merged(3)
        return True


def run(world: World, one: Batches, number: int, ends: dict[Partition, int], rows: Rows) -> None:
    """Pass a batch on, as Spark does."""
    world.offsets(number, ends)
    one.on_batch(rows, number)


def ended(one: Batches) -> BaseException | None:
    """Error of the batches; None if all were written."""
    one.close()
    failure = one.failure
    return None if str(failure) == "the writer has ended" else failure
