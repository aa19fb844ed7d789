"""From where tables are filled: the output topics or the decision log, and never both. On a real Postgres, without Spark."""

from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from onefold.error_codes import Code
from onefold.processor.core.decision import Kind, Proposal, Range
from onefold.processor.core.decision_log import Body
from onefold.processor.core.values import Counts
from onefold.processor.io.proposals import AvroProposals
from onefold.spark_sink.contracts import ENGINE_SQL
from onefold.spark_sink.decisions import Decided, Decisions, Seen, decide, log_of, place
from onefold.spark_sink.errors import Refused, Rewind
from onefold.spark_sink.landing import identity, ledger
from onefold.spark_sink.landing import land as landing
from onefold.spark_sink.landing.batches import _Writes
from onefold.spark_sink.landing.isolate import Bound, Sifted
from onefold.spark_sink.landing.ledger import Batch, LastRecord, OffsetRange, Partition
from onefold.spark_sink.landing.protocols import Reach, Record
from onefold.spark_sink.landing.stage import DriverStaged
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.postgres.connection import transaction
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from tests.support.coded import raises
from tests.support.landing import ID, Landed, Sink, once
from tests.support.migrated import migrate_all
from tests.support.refused import Rows

Reader = psycopg.Connection[Any]
OPEN = Proposal(0, 1, {"in": Range("id", 0, 0)}, "a", kind=Kind.OPEN)


class Kafka:
    """A decision log with the offsets [start, end), and perhaps a record."""

    def __init__(self, start: int = 0, end: int = 10, value: bytes | None = None) -> None:
        self._reach = Reach(start, end)
        self._value = value

    def ids(self, topics: list[str]) -> dict[str, str]:
        return dict.fromkeys(topics, "log-1")

    def reach(self, topics: list[str]) -> dict[Partition, Reach]:
        return {(topics[0], 0): self._reach, (topics[0], 1): self._reach}

    def record_from(self, topic: str, partition: int, offset: int) -> Record | None:
        return Record(offset, None, self._value, 0)

    def fingerprint_at(self, topic: str, partition: int, last: LastRecord) -> int | None:
        raise AssertionError("of a log its id and its reach are asked, and single records")

    def is_compacted(self, topic: str) -> bool:
        return False


@pytest.fixture
def choose(sink: Sink, plan: Plan) -> Any:
    def one(decided: bool, kafka: Kafka | None = None) -> None:
        identity.choose_source(sink.connection, plan.domain.name, "one", kafka or Kafka(), decided)

    return one


def version(reader: Reader) -> int:
    ((number,),) = reader.execute("SELECT number FROM onefold.version").fetchall()
    return int(number)


def test_a_ledger_that_holds_nothing_takes_either(choose: Any, plan: Plan, reader: Reader) -> None:
    """From the first decision log on an older sink refuses the database: it would land everything once more."""
    choose(False)
    assert version(reader) == 1
    choose(True)
    choose(True)
    log = log_of(plan.domain.name)
    rows = reader.execute("SELECT topic, partition, next_offset, topic_id, decided FROM onefold.ledger ORDER BY 2")
    assert rows.fetchall() == [(log, 0, 0, "log-1", None), (log, 1, 0, "log-1", None)]
    assert version(reader) == 2
    assert migrate(plan.postgres_dsn, ENGINE, ENGINE_SQL) == []
    with raises(Refused, Code.TABLES_OF_OTHER_TOPICS) as refusal:
        choose(False)
    assert refusal.value.exit_code == 3


def test_tables_that_hold_records_of_output_topics_stay_with_those(
    choose: Any, sink: Sink, landed: Landed, reader: Reader
) -> None:
    sink.land(100, 103)
    with raises(Refused, Code.TABLES_OF_OTHER_TOPICS) as refusal:
        choose(True)
    assert refusal.value.exit_code == 3
    assert version(reader) == 1
    sink.land(103, 105)
    assert landed() == once(100, 105)


def test_a_sink_that_landed_the_output_topics_meanwhile_goes_back(
    choose: Any, sink: Sink, plan: Plan, reader: Reader
) -> None:
    """It was started before, had landed nothing, and knows nothing of what the other one has begun with."""
    choose(True)
    with raises(Rewind, Code.POSITIONS_MOVED):
        sink.land(100, 103)
    ledger.open_partition(sink.connection, plan.domain.name, (sink.topic, 0), 100, ID, "one")
    with raises(Rewind, Code.POSITIONS_MOVED):
        sink.land(100, 103)


def test_a_log_whose_beginning_is_gone_is_refused(choose: Any, reader: Reader) -> None:
    with raises(Refused, Code.RECORDS_DELETED, "offset 3"):
        choose(True, Kafka(start=3))
    assert version(reader) == 1


def decisions(log: str, before: Decided, start: int, *proposals: Proposal | None) -> Decisions:
    seen = [Seen(start + n, n, 1, proposal) for n, proposal in enumerate(proposals)]
    return decide(log, 0, "log-1", before, range(start, start + len(seen)), seen)


def batch(log: str, found: Decisions) -> Batch:
    part = OffsetRange(log, 0, found.start, found.end, "log-1", decisions=found)
    return Batch(log.partition(".")[0], "one", (part,))


def step(version: int, at: int) -> Proposal:
    return Proposal(0, version, {"in": Range("id", at, at + 1)}, "a")


def test_what_is_decided_is_stored_with_the_offset_and_compared(choose: Any, sink: Sink, plan: Plan) -> None:
    """A batch that was decided from something else than what Postgres holds lands nothing."""
    choose(True)
    log = log_of(plan.domain.name)
    first = decisions(log, None, 0, OPEN, step(1, 0), step(1, 0))
    assert ledger.advance(sink.connection, batch(log, first)) == {(log, 0): 0}
    held = ledger.positions(sink.connection, plan.domain.name)[log, 0]
    assert (held.next_offset, held.decided) == (3, first.after)

    other = {**(first.after or {}), "version": 1}
    with raises(Rewind, Code.POSITIONS_MOVED):
        ledger.advance(sink.connection, batch(log, decisions(log, other, 3, step(1, 1))))
    overlapping = decisions(log, None, 0, OPEN, step(1, 7), step(1, 0), step(2, 1))
    with raises(Rewind, Code.POSITIONS_MOVED):
        ledger.advance(sink.connection, batch(log, replace(overlapping, before=None, positions=(None,) * 3)))
    nothing = decisions(log, first.after, 3, None)
    assert ledger.advance(sink.connection, batch(log, nothing)) == {(log, 0): 3}
    assert ledger.positions(sink.connection, plan.domain.name)[log, 0].decided == first.after


def test_a_part_that_another_sink_has_landed_is_left_out_by_its_offsets_in_the_log(
    choose: Any, sink: Sink, plan: Plan, reader: Reader
) -> None:
    """And not by the places that rows have."""
    choose(True)
    log = log_of(plan.domain.name)
    one = decisions(log, None, 0, OPEN, step(1, 0))
    both = decisions(log, None, 0, OPEN, step(1, 0), step(2, 1))
    rows = sink.table(place(1), place(1, 1), place(2))
    lines = [line.replace(f'"{sink.topic}",', f'"{log}",') for line in rows["line"].to_pylist()]
    relabelled = changed(changed(rows, "topic", [log] * 3), "line", lines)
    for found, count in ((one, 2), (both, 3)):
        staged = DriverStaged(sink.stage, relabelled.slice(0, count))
        assert landing.land(sink.connection, batch(log, found), staged, plan.domain.targets, lambda name: None)
    held = reader.execute(f"SELECT id, landings FROM {plan.domain.name}.notes ORDER BY id").fetchall()
    assert held == [(place(1), 1), (place(1, 1), 1), (place(2), 1)]


def test_a_write_that_postgres_refuses_is_kept_by_itself(choose: Any, sink: Sink, plan: Plan) -> None:
    """Its value is that of the write, and its place tells it from the others of the decision."""
    writes: Any = [(sink.topic, None, None, b"first", None), (sink.topic, None, None, b"second", None)]
    body = Body(Counts(), [], AvroProposals().encode_writes(writes))
    kafka = Kafka(value=AvroProposals().encode(step(1, 0)._replace(body=body)))
    lines = sink.table(place(1), place(1, 1))
    broken = changed(lines, "line", [lines["line"][0].as_py(), f'no number,"","x",0,{place(1, 1)}\n'])
    sifted = Sifted("s", sink.stage, Rows(broken, ""), plan.domain.targets, _Writes(kafka), Bound())
    with transaction(sink.connection):
        sifted.fill(sink.connection)
        kept = sink.connection.execute(sql.Composed([sifted.relation("onefold.rejected")])).fetchall()
    assert [(row[2], row[5]) for row in kept] == [(b"second", place(1, 1))]
    assert sifted.written == 1


def test_an_old_database_is_migrated_in_place(sink: Sink, plan: Plan, reader: Reader) -> None:
    """Rows that are there stay, and have decided nothing."""
    reader.execute("ALTER TABLE onefold.ledger DROP COLUMN decided")
    reader.execute("DELETE FROM onefold.applied WHERE file = 'onefold.08.decided.sql'")
    assert migrate_all(plan.postgres_dsn, plan.sql_root) == ["onefold.08.decided.sql"]
    assert ledger.positions(sink.connection, plan.domain.name)[sink.topic, 0].decided is None


def changed(rows: pa.Table, column: str, values: list[Any]) -> pa.Table:
    """With other values in one column."""
    return rows.set_column(rows.schema.get_field_index(column), column, [values])
