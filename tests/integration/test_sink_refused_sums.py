"""Records that a query reduces: the one whose sum PostgreSQL refuses is set aside; and a batch that is too large for the
driver is cut. On a real PostgreSQL, without Spark."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from onefold.spark_sink.errors import Stopped
from onefold.spark_sink.landing import batches
from onefold.spark_sink.landing.isolate import REFUSED_MAX
from onefold.spark_sink.landing.staging_tables import open_stage
from onefold.spark_sink.postgres import connection as sessions
from onefold.spark_sink.postgres.connection import connect
from onefold.spark_sink.query_config import QueryConfig
from tests.support.made_up_domain import MadeUp
from tests.support.refused import OTHER, SUMS, Pipeline, Rows, domain_in, emptied, note, plan_of, summed

Reader = psycopg.Connection[Any]
TOTAL = {"target": SUMS, "line": "total,1\n"}


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> MadeUp:
    return domain_in(tmp_path_factory.mktemp("domain"), checkout)


@pytest.fixture(scope="module")
def migrated(made_up: MadeUp, module_database: str) -> QueryConfig:
    return summed(plan_of(made_up, module_database))


@pytest.fixture
def reader(module_database: str) -> Iterator[Reader]:
    with psycopg.connect(module_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def pipeline(migrated: QueryConfig, made_up: MadeUp, reader: Reader) -> Iterator[Pipeline]:
    """With empty tables, and nothing landed."""
    one = emptied(migrated, made_up, reader)
    reader.execute(f"CREATE TABLE {made_up.name}.sums (key text PRIMARY KEY, total bigint NOT NULL)")
    yield one
    one.sink.connection.close()


DEFERRED = (
    "CREATE FUNCTION {name}.look() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN IF NEW.total >= 100 THEN RAISE EXCEPTION 'too late'; END IF; RETURN NEW; END $$;"
    "CREATE CONSTRAINT TRIGGER look AFTER INSERT OR UPDATE ON {name}.sums DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
    " EXECUTE FUNCTION {name}.look()"
)
#: What PostgreSQL refuses: statements, and the number to blame.
REFUSES = {
    "check": ("ALTER TABLE {name}.sums ADD CHECK (total < 100)", "95"),
    "deferred trigger": (DEFERRED, "95"),
    "overflow": ("SELECT 1", str(2**63 - 1)),
    "narrow column": ("ALTER TABLE {name}.sums ALTER total TYPE smallint", "32767"),
    "no number": ("SELECT 1", "much"),
    "no such number": ("SELECT 1", "9223372036854775808"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "bad"), REFUSES.values(), ids=REFUSES)
def test_the_record_to_blame_is_set_aside_and_the_others_count(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, made: str, bad: str
) -> None:
    reader.execute(made.format(name=made_up.name))
    assert pipeline.lands_table(pipeline.adds(("a", "10"), ("b", "1"), ("a", bad), ("a", "20"), ("c", "3"))) is None
    assert pipeline.sums() == {"a": 30, "b": 1, "c": 3}
    assert pipeline.places() == [(0, 102)]
    assert pipeline.rejected()[0][2].startswith("Postgres refused the row: ")
    assert pipeline.lands_table(pipeline.adds(("a", "5"))) is None
    assert pipeline.sums()["a"] == 35


@pytest.mark.parametrize("cuts", [[6], [1, 5], [3, 3], [2, 2, 2], [1, 1, 1, 1, 1, 1]], ids=str)
def test_where_every_number_adds_the_outcome_does_not_depend_on_how_batches_are_cut(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, cuts: list[int]
) -> None:
    """Each record that PostgreSQL refuses beside those before it, and no other."""
    reader.execute(f"ALTER TABLE {made_up.name}.sums ADD CHECK (total < 100)")
    records = [("a", "60"), ("a", "50"), ("b", "99"), ("a", "30"), ("b", "1"), ("a", "20")]
    for cut in cuts:
        assert pipeline.lands_table(pipeline.adds(*records[:cut])) is None
        records = records[cut:]
    assert pipeline.sums() == {"a": 90, "b": 99}
    assert pipeline.places() == [(0, 101), (0, 104), (0, 105)]


def test_between_partitions_the_record_that_was_written_first_counts(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    reader.execute(f"ALTER TABLE {made_up.name}.sums ADD CHECK (total < 100)")
    left = pipeline.adds(("a", "60"), ("a", "30"), late_ms=5)
    right = pipeline.adds(("a", "50"), ("b", "1"), partition=1)
    assert pipeline.lands_table(pa.concat_tables([left, right])) is None
    assert pipeline.sums() == {"a": 80, "b": 1}
    assert pipeline.places() == [(0, 100)]


def test_rows_that_no_query_reduces_are_set_aside_beside_it(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD CHECK (id <> 101)")
    reader.execute(f"ALTER TABLE {made_up.name}.sums ADD CHECK (total < 100)")
    notes, records = pipeline.table(note(100), note(101), note(102)), pipeline.adds(("a", "1"), ("a", "100"))
    together = pa.concat_tables([notes, records], promote_options="default")
    assert pipeline.lands_table(together) is None
    assert ([row[0] for row in pipeline.notes()], pipeline.sums()) == ([100, 102], {"a": 1})
    assert pipeline.places() == [(0, 101), (0, 101)]


@pytest.mark.parametrize("rule", ["total < 0", "key <> 'a'"])
def test_a_table_that_takes_no_record_stops_the_pipeline(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, rule: str
) -> None:
    """With PostgreSQL's sentence; nothing moves, and all land when the table is mended."""
    reader.execute(f"ALTER TABLE {made_up.name}.sums ADD CONSTRAINT wrong CHECK ({rule})")
    records = [("a", "1")] * (REFUSED_MAX + 50)
    failure = pipeline.lands_table(pipeline.adds(*records))
    assert isinstance(failure, Stopped)
    assert f"refuses more than {REFUSED_MAX} of {len(records)} records" in str(failure)
    assert 'violates check constraint "wrong"' in str(failure)
    assert (pipeline.sums(), pipeline.rejected()) == ({}, [])
    reader.execute(f"ALTER TABLE {made_up.name}.sums DROP CONSTRAINT wrong")
    assert pipeline.lands_table(pipeline.adds(*records)) is None
    assert pipeline.sums() == {"a": len(records)}


def test_rows_that_a_query_makes_of_no_record_stop_the_pipeline(pipeline: Pipeline) -> None:
    failure = pipeline.lands(("a,1", SUMS))
    assert isinstance(failure, Stopped)
    assert f"what sql/reduce/{SUMS}.sql makes of a batch without records" in str(failure)


def test_a_table_that_takes_no_record_of_its_topic_stops_the_pipeline_beside_busier_ones(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    """The records of other topics say nothing of it: 60 of 60 are refused, and then 60 of 60 again."""
    others = replace(pipeline.plan.domain.targets[SUMS], name="others", reads=OTHER)
    pipeline.sink.connection.close()
    pipeline.sink.connection = connect(pipeline.dsn, "one")
    pipeline.sink.stage = open_stage(pipeline.sink.connection, {**pipeline.plan.domain.targets, "others": others})
    reader.execute(f"ALTER TABLE {made_up.name}.sums ADD CHECK (total < 0)")
    records = [*[("a", "1")] * 60, *[(OTHER, "1")] * 1_000]
    assert pipeline.lands_table(pipeline.adds(*records)) is None
    failure = pipeline.lands_table(pipeline.adds(*records))
    assert isinstance(failure, Stopped)
    assert f"refuses 41 of 60 records for {SUMS}, after 60 in the batches before" in str(failure)


def test_a_row_that_a_query_makes_of_no_record_is_no_record_s_fault(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query may give a total where it has no record. The sink rejects no record for that total."""
    of_none = {"target": SUMS, "line": "none,-1\n"}
    made = Rows.to_arrow

    def with_total(rows: Rows) -> pa.Table:
        found = made(rows)
        return pa.concat_tables([found, pa.Table.from_pylist([of_none], schema=found.schema)])

    monkeypatch.setattr(Rows, "to_arrow", with_total)
    reader.execute(f"ALTER TABLE {made_up.name}.sums ADD CHECK (total >= 0)")
    failure = pipeline.lands_table(pipeline.adds(("a", "1"), ("b", "1"), ("c", "1")))
    assert isinstance(failure, Stopped)
    assert f"what sql/reduce/{SUMS}.sql makes of a batch without records" in str(failure)
    assert (pipeline.sums(), pipeline.rejected()) == ({}, [])


def test_what_passes_while_a_total_of_no_record_is_tried_is_tried_again(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a record PostgreSQL refuses the total; without one a serialization failure comes between."""
    made = Rows.to_arrow

    def with_total(rows: Rows) -> pa.Table:
        found = made(rows)
        return pa.concat_tables([found, pa.Table.from_pylist([TOTAL], schema=found.schema)])

    monkeypatch.setattr(Rows, "to_arrow", with_total)
    reader.execute(
        f"CREATE FUNCTION {made_up.name}.look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.key <> 'total' THEN RETURN NEW; END IF;"
        f" IF EXISTS (SELECT FROM {made_up.name}.sums) THEN RAISE check_violation; END IF;"
        f" RAISE serialization_failure; END $$;"
        f"CREATE TRIGGER look BEFORE INSERT ON {made_up.name}.sums FOR EACH ROW EXECUTE FUNCTION {made_up.name}.look()"
    )
    failure = pipeline.lands_table(pipeline.adds(("a", "1")))
    assert isinstance(failure, psycopg.errors.SerializationFailure)
    assert (pipeline.sums(), pipeline.rejected()) == ({}, [])


def test_a_total_of_no_record_that_postgres_takes_is_added_once(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look whether a record is to blame changes nothing."""
    made = Rows.to_arrow

    def with_total(rows: Rows) -> pa.Table:
        found = made(rows)
        empty = not any(found["line"].is_null().to_pylist())
        return pa.concat_tables([found, pa.Table.from_pylist([TOTAL] if empty else [], schema=found.schema)])

    monkeypatch.setattr(Rows, "to_arrow", with_total)
    reader.execute(f"ALTER TABLE {made_up.name}.sums ADD CHECK (total < 100)")
    assert pipeline.lands_table(pipeline.adds(("a", "1"), ("a", "100"), ("b", "1"))) is None
    assert pipeline.sums() == {"a": 1, "b": 1}
    assert pipeline.places() == [(0, 101)]


def test_a_session_does_not_idle_while_a_part_is_reduced_again(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may be busy with other batches for longer than the server lets a session idle inside a transaction."""
    only = Rows.only

    def slow(rows: Rows, records: Sequence[tuple[str, int, int]]) -> Rows:
        threading.Event().wait(0.5)
        return only(rows, records)

    monkeypatch.setattr(Rows, "only", slow)
    monkeypatch.setattr(sessions, "_ASK_EVERY_S", 0.05)
    pipeline.sink.connection.execute("SET idle_in_transaction_session_timeout = '250ms'")
    reader.execute(f"ALTER TABLE {made_up.name}.sums ADD CHECK (total < 100)")
    assert pipeline.lands_table(pipeline.adds(("a", "1"), ("a", "100"))) is None
    assert (pipeline.sums(), pipeline.places()) == ({"a": 1}, [(0, 101)])


def test_what_another_sink_has_landed_of_the_batch_is_not_added_again(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    reader.execute(f"ALTER TABLE {made_up.name}.sums ADD CHECK (total < 100)")
    records = [("a", "1"), ("a", "2"), ("a", "100"), ("a", "4")]
    before = dict(pipeline.next)
    assert pipeline.lands_table(pipeline.adds(*records[:2])) is None
    pipeline.next = before
    assert pipeline.lands_table(pipeline.adds(*records)) is None
    assert (pipeline.sums(), pipeline.places()) == ({"a": 7}, [(0, 102)])


# --- a batch that is too large to be looked at in one piece


def test_a_large_batch_that_is_reduced_is_looked_at_in_parts(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a transaction of its own, which is noted; a part that PostgreSQL takes counts although a later one stops."""
    monkeypatch.setattr(batches, "REDUCED_OFFSETS", 200)
    reader.execute(f"ALTER TABLE {made_up.name}.sums ADD CONSTRAINT few CHECK (total < 1000)")
    good, bad = [("a", "1")] * 150, [("b", "1000")] * 150
    failure = pipeline.lands_table(pipeline.adds(*good, *bad))
    assert isinstance(failure, Stopped)
    assert (pipeline.sums(), pipeline.rejected()) == ({"a": 150}, [])
    noted = reader.execute("SELECT first_offset, next_offset FROM onefold.batch ORDER BY 1").fetchall()
    assert noted == [(100, 250)]
    reader.execute(f"ALTER TABLE {made_up.name}.sums DROP CONSTRAINT few")
    assert pipeline.lands_table(pipeline.adds(*good, *bad)) is None
    assert pipeline.sums() == {"a": 150, "b": 150_000}


@pytest.mark.parametrize("bad", ["1001,x", "no number,x"], ids=["merge", "copy"])
def test_the_driver_is_given_no_more_of_a_batch_than_it_has_memory_for(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, bad: str
) -> None:
    """Also where PostgreSQL refuses a row, in the table or already in the copy; the rest of the batch lands."""
    most = 20_000
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD CHECK (id <> 1001)")
    rows = [note(number, "x" * 100) for number in range(1_000)]
    rows[700] = bad, ""
    pipeline.plan = replace(pipeline.plan, line_bytes_max=most)
    assert pipeline.lands(*rows) is None
    assert [row[0] for row in pipeline.notes()] == [number for number in range(1_000) if number != 700]
    assert pipeline.places() == [(0, 800)]
    assert len(pipeline.read) > 1
    assert max(pipeline.read) <= most


def test_a_wrong_table_does_not_slip_through_part_by_part(pipeline: Pipeline, made_up: MadeUp, reader: Reader) -> None:
    """One row of eleven is refused: too few in each part, and too many in the batch. No further start moves it on."""
    name = made_up.name
    reader.execute(f"ALTER TABLE {name}.notes ADD CONSTRAINT wrong CHECK (id % 11 <> 10)")
    rows = [note(number, "x" * 100) for number in range(2_200)]
    pipeline.plan = replace(pipeline.plan, line_bytes_max=20_000)
    failure = pipeline.lands(*rows)
    assert isinstance(failure, Stopped)
    assert f"refuses more than {REFUSED_MAX} of" in str(failure)
    asked = "SELECT next_offset FROM onefold.ledger WHERE topic = %s AND partition = 0"
    ((reached,),) = reader.execute(asked, (made_up.notes,)).fetchall()
    assert 1_000 < reached < 1_500
    assert len(pipeline.rejected()) <= REFUSED_MAX
    pipeline.next[made_up.notes, 0] = reached
    assert isinstance(pipeline.lands(*rows[reached - 100 :]), Stopped)
    assert reader.execute(asked, (made_up.notes,)).fetchall() == [(reached,)]
    reader.execute(f"ALTER TABLE {name}.notes DROP CONSTRAINT wrong")
    assert pipeline.lands(*rows[reached - 100 :]) is None
    assert len(pipeline.notes()) + len(pipeline.rejected()) == len(rows)
    assert (dict(pipeline.bound.rows), dict(pipeline.bound.refused)) == ({}, {})


def test_two_partitions_of_one_offset_each_are_cut_as_well(pipeline: Pipeline, made_up: MadeUp, reader: Reader) -> None:
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD CHECK (id <> 2)")
    pipeline.plan = replace(pipeline.plan, line_bytes_max=1)
    left, right = pipeline.table(note(1)), pipeline.table(note(2), partition=1)
    assert pipeline.lands_table(pa.concat_tables([left, right])) is None
    assert ([row[0] for row in pipeline.notes()], pipeline.places()) == ([1], [(1, 100)])
