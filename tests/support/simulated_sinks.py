"""Sinks on a real PostgreSQL without Spark and Kafka, under a scheduler, with records in memory.

A sink is the product's except at the ends: the real supervisor with the scheduler's clock, the real batches, writer, ledger
and transaction. `SimulatedQuery` replaces Spark's query, `MemoryRows` Spark's rows.

Switch points are the steps of `land` and of the reading. At each, the process may be killed: PostgreSQL ends the sessions,
as for a dead process, and another process starts from PostgreSQL's content.

If two sinks need the same row of the ledger, the second blocks inside PostgreSQL while having the baton. So every actor
reports by `pg_blocking_pids` whether its session is blocked, and then loses the baton (`Scheduler`). The report is exact.
PostgreSQL passes a lock on before the answer to the COMMIT or ROLLBACK. For a terminated session, PostgreSQL frees the
locks before the session leaves `pg_stat_activity`, and a kill waits for that.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import psycopg
import pyarrow as pa

from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.spark_sink.contracts import StagingColumn, Target, load_domain
from onefold.spark_sink.landing import topic_identity
from onefold.spark_sink.landing.batches import Batches
from onefold.spark_sink.landing.ledger import LastRecord, Partition
from onefold.spark_sink.landing.protocols import KafkaRecord, Reach
from onefold.spark_sink.landing.staging_tables import open_stage
from onefold.spark_sink.postgres.connection import Connection, connect
from onefold.spark_sink.query_config import QueryConfig
from onefold.spark_sink.supervisor import QuerySupervisor
from tests.support.scheduler import Scheduler
from tests.support.simulated_topics import NAME, SUMS, TOPIC, MemoryTopic, Topic

BATCH_OFFSETS_MAX = 9
#: A batch with more lines, of one byte each, is written in parts.
LINES_MAX = 6
TICK_S = 0.2
KILL_CHANCE = 0.04
ANSWER_S = 20.0
# Errors of the test itself, not of a simulated fault.
BUGS = (ArithmeticError, AttributeError, LookupError, TypeError)

_SUMS_TABLE = (
    f"CREATE TABLE {NAME}.sums (partition integer PRIMARY KEY, records bigint NOT NULL, offsets bigint NOT NULL)"
)
_SUMS_MERGE = (
    f"INSERT INTO {NAME}.sums AS stored (partition, records, offsets) SELECT partition, records, offsets FROM ",
    """ AS stage ORDER BY partition ON CONFLICT (partition)
    DO UPDATE SET records = stored.records + excluded.records, offsets = stored.offsets + excluded.offsets""",
)


class Killed(BaseException):
    """Raised in a killed process; do not catch on the way."""


class MemoryKafka:
    """Identity, range and records of the topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def ids(self, topics: list[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "id-1")

    def reach(self, topics: list[str]) -> dict[Partition, Reach]:
        return dict(self._topic.reach)

    def record_from(self, topic: str, partition: int, offset: int) -> KafkaRecord | None:
        later = [one for one in self._topic.offsets((topic, partition)) if one >= offset]
        return KafkaRecord(later[0], None, str(later[0]).encode(), 0) if later else None

    def fingerprint_at(self, topic: str, partition: int, last: LastRecord) -> int | None:
        return last.offset if last.offset in self._topic.offsets((topic, partition)) else None

    def is_compacted(self, topic: str) -> bool:
        return False


@dataclass
class World:
    """State shared by all sinks of a run. `counts`: numbers of events."""

    plan: QueryConfig
    scheduler: Scheduler
    observer: "psycopg.Connection[Any]"
    reduced: bool
    topic: Topic = field(default_factory=MemoryTopic)
    counts: dict[str, int] = field(default_factory=lambda: {"kills": 0, "cut": 0, "trimmed": 0, "failures": 0})

    @property
    def targets(self) -> dict[str, Target]:
        if not self.reduced:
            return dict(self.plan.domain.targets)
        columns = (
            StagingColumn("partition", "integer"),
            StagingColumn("records", "bigint"),
            StagingColumn("offsets", "bigint"),
        )
        return {SUMS: Target(SUMS, columns, _SUMS_MERGE, reduced=True)}

    def is_landed(self) -> bool:
        """Whether the ledger is at the end."""
        if not self.topic.finished:
            return False
        rows = self.observer.execute("SELECT topic, partition, next_offset FROM onefold.ledger").fetchall()
        return {(topic, partition): end for topic, partition, end in rows} == {
            key: at.end for key, at in self.topic.reach.items()
        }

    def check(self) -> None:
        """Check that every record was added once, and that the ledger is at the end."""
        assert self.is_landed()
        ordered = {key: self.topic.offsets(key) for key in self.topic.reach}
        if self.reduced:
            found = self.observer.execute(f"SELECT partition, records, offsets FROM {NAME}.sums ORDER BY 1").fetchall()
            assert found == [(key[1], len(offsets), sum(offsets)) for key, offsets in ordered.items()]
        else:
            rows = self.observer.execute(f"SELECT partition, id, landings FROM {NAME}.notes ORDER BY 1, 2").fetchall()
            assert rows == [(key[1], offset, 1) for key, offsets in ordered.items() for offset in offsets]
        self._check_batches()

    def _check_batches(self) -> None:
        """Check the history of batches: each record is in one batch, and each count is right."""
        noted = "SELECT partition, first_offset, next_offset, records FROM onefold.batch ORDER BY 1, 2"
        found = self.observer.execute(noted).fetchall()
        assert all(one[0] != after[0] or one[2] <= after[1] for one, after in pairwise(found))
        offsets = {key[1]: self.topic.offsets(key) for key in self.topic.reach}
        held = [[at for at in offsets[partition] if start <= at < end] for partition, start, end, _ in found]
        assert sum(map(len, held)) == sum(map(len, offsets.values()))
        assert all(one[3] in (None, len(mine)) for one, mine in zip(found, held, strict=True))
        assert any(one[3] for one in found) is not self.reduced or not found


class MemoryRows:
    """Records of a batch as rows like Spark's."""

    def __init__(self, process: "Process", offsets: dict[Partition, list[int]]) -> None:
        self._process = process
        self._offsets = offsets
        self._read = False

    @contextmanager
    def held(self, offsets: int, reread: bool) -> Iterator[Self]:
        self._process.step("reading")
        yield self

    def within(self, spans: Mapping[Partition, range], offsets: int) -> Self:
        self._process.world.counts["trimmed" if self._read else "cut"] += 1
        left = {key: [one for one in found if one in spans.get(key, ())] for key, found in self._offsets.items()}
        return type(self)(self._process, left)

    def only(self, records: Sequence[tuple[str, int, int]]) -> Self:
        raise NotImplementedError

    def bytes(self) -> int:
        return sum(map(len, self._offsets.values()))

    def reduced_places(self) -> pa.Table:
        raise NotImplementedError

    def to_arrow(self) -> pa.Table:
        self._read = True
        rows: list[dict[str, Any]] = []
        for (topic, partition), found in sorted(self._offsets.items()):
            for offset in found:
                row = {"topic": topic, "partition": partition, "offset": offset, "fingerprint": offset, "at_ms": offset}
                line = f'{offset},"note","{topic}",{partition},{offset}\n'
                rows.append(row if self._process.world.reduced else {**row, "target": TOPIC, "line": line})
            if self._process.world.reduced and found:
                rows.append({"target": SUMS, "line": f"{partition},{len(found)},{sum(found)}\n"})
        kinds = [("target", pa.string()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
        kinds += [("fingerprint", pa.int64()), ("at_ms", pa.int64()), ("line", pa.string())]
        return pa.Table.from_pylist(rows, pa.schema(kinds))


class Process:
    """One process of a sink: the query, and all that a kill ends. Its batches use the process as scheduler."""

    def __init__(self, world: World, writer: str) -> None:
        self.world = world
        self.writer = writer
        self.dead = False
        self.pids: list[int] = []

    def start(self, name: str, run: Callable[[], None]) -> None:
        """Start an actor of this process. The writer uses the first session, the reader the second."""
        pids = self.pids[:1] if name.startswith("landing") else self.pids[1:]
        self.world.scheduler.start(f"{self.writer}: {name}", run, partial(self.is_blocked, pids))

    def wait(self, condition: Callable[[], bool]) -> None:
        self.world.scheduler.wait(condition)

    def changed(self) -> None:
        self.world.scheduler.changed()

    def step(self, name: str) -> None:
        """Switch point, at which the process may be killed."""
        self.world.scheduler.switch(name)
        if not self.dead and self.world.scheduler.dice.random() < KILL_CHANCE:
            self.kill()
        if self.dead:
            raise Killed(name)

    def kill(self) -> None:
        """End the sessions as PostgreSQL does after the end of a process."""
        self.world.counts["kills"] += 1
        self.dead = True
        observer, deadline = self.world.observer, time.monotonic() + ANSWER_S
        gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ANY (%s)"
        observer.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ANY (%s)", (self.pids,))
        while observer.execute(gone, (self.pids,)).fetchone() != (True,):
            assert time.monotonic() < deadline, "Postgres does not end a session"

    def is_blocked(self, pids: Sequence[int]) -> bool:
        """Whether a session of these waits for another session."""
        asked = "SELECT bool_or(cardinality(pg_blocking_pids(pid)) > 0) FROM unnest(%s::int[]) AS pid"
        found = self.world.observer.execute(asked, (list(pids),))
        return found.fetchone() == (True,)


class SimulatedQuery:
    """Replacement of Spark's query: an actor that passes batches to the real `Batches`."""

    name = NAME

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._batches: Batches | None = None
        self._connections: list[Connection] = []
        self._reading = False

    @property
    def landed(self) -> int:
        return self._batches.landed if self._batches else 0

    def start(self) -> None:
        self.stop()
        world, process = self._world, self._process
        plan = replace(world.plan, writer=process.writer, step=process.step)
        self._connections = [connect(plan.postgres_dsn, plan.writer) for _ in range(2)]
        process.pids = [connection.info.backend_pid for connection in self._connections]
        stage, kafka = open_stage(self._connections[0], world.targets), MemoryKafka(world.topic)
        start, ids = topic_identity.recognise(self._connections[0], NAME, plan.writer, kafka, plan.reads)
        ends: dict[int, dict[Partition, int]] = {}
        lands, reads = self._connections
        self._batches = batches = Batches(plan, lands, reads, kafka, stage, start, ids, ends.__getitem__, process)
        self._reading = True
        process.start("reading", lambda: self._read(batches, start, ends))

    def failure(self) -> BaseException | None:
        return self._batches.failure if self._batches else Retriable(Code.KAFKA_SILENT, "not started yet")

    def displaced(self) -> BaseException | None:
        return None

    def stop(self) -> None:
        for connection in self._connections:
            connection.close()
        if self._batches is not None:
            self._batches.close()
        self._world.scheduler.wait(lambda: not self._reading)

    def _read(self, batches: Batches, at: dict[Partition, int], ends: dict[int, dict[Partition, int]]) -> None:
        dice, world = self._world.scheduler.dice, self._world
        try:
            while any(at[key] < world.topic.reach[key].end for key in at) or not world.topic.finished:
                reach = world.topic.reach
                if not any(at[key] < reach[key].end for key in at):
                    self._process.step("waiting for records")
                    continue
                end = {key: min(at[key] + dice.randint(0, BATCH_OFFSETS_MAX), reach[key].end) for key in sorted(at)}
                offsets = {key: self._offsets(key, at[key], end[key]) for key in at}
                ends[len(ends)] = end
                batches.on_batch(MemoryRows(self._process, offsets), len(ends) - 1)
                at = end
                self._process.step("between batches")
        except (RuntimeError, Killed):  # as Spark ends a query after a failed batch
            if isinstance(batches.failure, BUGS):
                raise
            self._world.counts["failures"] += 1
        finally:
            self._reading = False

    def _offsets(self, key: Partition, start: int, end: int) -> list[int]:
        return [n for n in self._world.topic.offsets(key) if start <= n < end]


def live(world: World, writer: str) -> None:
    """Run a sink, process after process, until everything is written."""
    while not world.is_landed():
        process = Process(world, writer)
        query = SimulatedQuery(process)
        supervisor = QuerySupervisor(query, float("inf"), world.scheduler.monotonic)
        try:
            while not process.dead and not world.is_landed():
                supervisor.tick()
                world.scheduler.pause(TICK_S)
        finally:
            query.stop()


def plan_of(root: Path, dsn: str) -> QueryConfig:
    """Plan for the invented pipeline. Adds the table of sums to the schema; the tables do not exist yet."""
    with (root / f"sql/schema/{NAME}.01.sql").open("a", encoding="utf-8") as schema:
        schema.write(f"{_SUMS_TABLE};\n")
    return QueryConfig(
        domain=load_domain(NAME, root / "avro", root / "sql"),
        java_options={},
        postgres_dsn=dsn,
        writer="",
        sql_root=root / "sql",
        checkpoint_root=root,
        step=lambda name: None,
        line_bytes_max=LINES_MAX,
    )
