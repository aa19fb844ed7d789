"""Rows that PostgreSQL refuses: which one is to blame, what becomes of the others, and when the table is wrong. On a real
PostgreSQL, without Spark."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import psycopg
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from onefold.cli import shown_status
from onefold.cli.commands import status
from onefold.operate.settings import load
from onefold.spark_sink.contracts import Target, load_domain
from onefold.spark_sink.decisions import Seen
from onefold.spark_sink.errors import Stopped, Verdict, verdict
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.batches import Batches
from onefold.spark_sink.landing.isolate import REFUSED_MAX, Bound
from onefold.spark_sink.landing.ledger import LastRecord, OffsetRange, Partition
from onefold.spark_sink.landing.protocols import Reach, Record
from onefold.spark_sink.landing.stage import Stage, copy_as_attempt, open_stage
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.postgres.connection import connect
from onefold.spark_sink.threads import Threads
from onefold.telemetry import SET_ASIDE
from tests.support.landing import ID, SENT_MS, Sink
from tests.support.made_up_domain import MadeUp, write_domain
from tests.support.migrated import migrate_all
from tests.support.told import Kept

Reader = psycopg.Connection[Any]
DEADLINE_S = 20.0


class Kafka:
    """Topics whose records are there up to an offset."""

    def __init__(self, until: int = 1_000_000_000) -> None:
        self._until = until

    def ids(self, topics: list[str]) -> dict[str, str]:
        return dict.fromkeys(topics, ID)

    def reach(self, topics: list[str]) -> dict[Partition, Reach]:
        return {(topic, 0): Reach(0, self._until) for topic in topics}

    def record_from(self, topic: str, partition: int, offset: int) -> Record | None:
        here = offset if offset < self._until else offset + 1
        return Record(here, None, f"value {here}".encode(), 0)

    def fingerprint_at(self, topic: str, partition: int, last: LastRecord) -> int | None:
        return last.fingerprint

    def is_compacted(self, topic: str) -> bool:
        return False


class Rows:
    """Rows as Spark would give them."""

    def __init__(self, table: pa.Table, dsn: str) -> None:
        self._table, self._dsn = table, dsn

    @contextmanager
    def held(self, offsets: int) -> Iterator[Self]:
        yield self

    def seen(self) -> Mapping[Partition, Sequence[Seen]]:
        raise NotImplementedError

    def decided(self, ranges: Sequence[OffsetRange]) -> Self:
        raise NotImplementedError

    def trimmed(self, start_offsets: dict[Partition, int], offsets: int) -> "Rows":
        rows = self._table.to_pylist()
        left = [row for row in rows if row["offset"] >= start_offsets.get((row["topic"], row["partition"]), 1 << 62)]
        return Rows(pa.Table.from_pylist(left, schema=self._table.schema), self._dsn)

    def to_arrow(self) -> pa.Table:
        return self._table

    def copy_by_executors(self, stage: Stage) -> pa.Table:
        return pa.Table.from_batches(copy_as_attempt(self._table.to_batches(), stage, self._dsn, "task"))


class Pipeline:
    """Notes of the made-up domain as rows: (id, text), at the offset of their place from 100 on, or (partition, offset, ms)."""

    def __init__(self, sink: Sink, plan: Plan, dsn: str, reader: Reader, kafka: Kafka | None = None) -> None:
        self.sink, self.dsn, self.reader = sink, dsn, reader
        self.told = Kept()
        self.plan = replace(plan, telemetry=self.told)
        self.kafka = kafka or Kafka()
        self.bound = Bound()
        self.next = {(topic, partition): 100 for topic in plan.domain.contracts for partition in (0, 1)}
        for key in self.next:
            ledger.open_partition(sink.connection, plan.domain.name, key, 100, ID, "one")

    def lands(
        self, *rows: tuple[str, str], topic: str = "", partition: int = 0, late_ms: int = 0
    ) -> BaseException | None:
        """One batch of one partition; what it fails with. `rows`: their own cells as CSV, and the target ("": the topic)."""
        return self.lands_table(self.table(*rows, topic=topic, partition=partition, late_ms=late_ms))

    def table(self, *rows: tuple[str, str], topic: str = "", partition: int = 0, late_ms: int = 0) -> pa.Table:
        """`late_ms`: so much later than their offsets say they were written."""
        topic = topic or self.sink.topic
        first = self.next[topic, partition]
        made = [
            {
                "target": target or topic,
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "fingerprint": offset,
                "at_ms": SENT_MS + offset + late_ms,
                "line": f"{cells},{topic},{partition},{offset}\n",
            }
            for offset, (cells, target) in enumerate(rows, first)
        ]
        return pa.Table.from_pylist(made, schema=self.sink.table(100).schema)

    def lands_table(self, table: pa.Table) -> BaseException | None:
        ends = dict(self.next)
        for row in table.to_pylist():
            key = row["topic"], row["partition"]
            ends[key] = max(ends[key], row["offset"] + 1)
        one = Batches(
            self.plan, self.sink.connection, self.sink.connection, self.kafka, self.sink.stage, self.next,
            dict.fromkeys(self.plan.domain.contracts, ID), lambda number: ends, Threads(), None, self.bound,
        )  # fmt: skip
        with suppress(RuntimeError):
            one.on_batch(Rows(table, self.dsn), 0)
        one.close()
        if str(one.failure) == "nothing is landed any more":
            self.next = ends
            return None
        return one.failure

    def becomes_role(self) -> None:
        """The sink's session is of a role that is no superuser from now on."""
        name = self.plan.domain.name
        self.reader.execute(
            f"CREATE ROLE {name}; GRANT ALL ON SCHEMA {name}, onefold, onefold_stage TO {name};"
            f"GRANT ALL ON ALL TABLES IN SCHEMA {name}, onefold TO {name}"
        )
        self.superuser = self.sink.connection  # whose stage is in use: the role may not drop it
        self.sink.connection = connect(self.dsn, "one")
        self.sink.connection.execute(f"SET ROLE {name}")
        self.sink.stage = open_stage(self.sink.connection, self.plan.domain.targets)

    def notes(self) -> list[tuple[Any, ...]]:
        return self.reader.execute(f"SELECT id, text FROM {self.plan.domain.name}.notes ORDER BY id").fetchall()

    def rejected(self) -> list[tuple[Any, ...]]:
        asked = 'SELECT partition, "offset", reason FROM onefold.rejected ORDER BY topic, partition, "offset"'
        return self.reader.execute(asked).fetchall()

    def places(self) -> list[tuple[int, int]]:
        return [row[:2] for row in self.rejected()]


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> MadeUp:
    """One domain for all tests here, which make its tables anew."""
    root, name = tmp_path_factory.mktemp("domain"), f"t{uuid.uuid4().hex[:10]}"
    write_domain(root, checkout, name)
    return MadeUp(name, root, "127.0.0.1:9")


@pytest.fixture(scope="module")
def migrated(made_up: MadeUp, module_database: str) -> Plan:
    """A plan of that domain, whose database is there."""
    migrate_all(module_database, made_up.root / "sql")
    return Plan(
        domain=load_domain(made_up.name, made_up.root / "avro", made_up.root / "sql"),
        bootstrap_servers="127.0.0.1:9", kafka_options={}, java_options={},
        postgres_dsn=module_database, writer="test", sql_root=made_up.root / "sql",
        checkpoint_root=made_up.root, notes=made_up.root, step=lambda name: None,
    )  # fmt: skip


@pytest.fixture
def reader(module_database: str) -> Iterator[Reader]:
    with psycopg.connect(module_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def pipeline(migrated: Plan, made_up: MadeUp, reader: Reader) -> Iterator[Pipeline]:
    """With empty tables, and nothing landed."""
    reader.execute(f"DROP SCHEMA {made_up.name} CASCADE")
    reader.execute((made_up.root / f"sql/schema/{made_up.name}.01.sql").read_bytes())
    reader.execute("TRUNCATE onefold.ledger, onefold.rejected, onefold.batch")
    one = Pipeline(Sink(migrated.postgres_dsn, migrated), migrated, migrated.postgres_dsn, reader)
    yield one
    one.sink.connection.close()
    if reader.execute("SELECT to_regrole(%s)", [made_up.name]).fetchone() != (None,):
        reader.execute(f"DROP OWNED BY {made_up.name}; DROP ROLE {made_up.name}")


def note(number: int, text: str = "x") -> tuple[str, str]:
    return f'{number},"{text}"', ""


def raising(state: str) -> str:
    return f"RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}';"


def trigger(body: str, kind: str = "BEFORE INSERT OR UPDATE") -> str:
    """For rows with the id 101."""
    return (
        f"CREATE FUNCTION {{name}}.look() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ DECLARE n integer; BEGIN IF NEW.id = 101 THEN {body} END IF; RETURN NEW; END $$;"
        f"CREATE TRIGGER look {kind} ON {{name}}.notes FOR EACH ROW EXECUTE FUNCTION {{name}}.look();"
    )


LATER = "CREATE CONSTRAINT TRIGGER look AFTER INSERT ON {name}.notes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
ONE_ROW = {
    "54000 index entry": ("CREATE INDEX ON {name}.notes (text)", "54000"),
    "P0001 trigger": (trigger("RAISE EXCEPTION 'not this one';"), "P0001"),
    "P0002 trigger": (trigger("SELECT 1 INTO STRICT n FROM pg_class WHERE oid = 0;"), "P0002"),
    "P0004 assert": (trigger("ASSERT false;"), "P0004"),
    "20000 case": (trigger("CASE NEW.id WHEN 1 THEN n := 1; END CASE;"), "20000"),
    "22012 division": (trigger("n := 1 / (NEW.id - 101);"), "22012"),
    "2201E logarithm": (trigger("n := ln(101 - NEW.id);"), "2201E"),
    "0A000 raised": (trigger(raising("0A000")), "0A000"),
    "42501 raised": (trigger(raising("42501")), "42501"),
    "42704 raised": (trigger(raising("42704")), "42704"),
    "55000 raised": (trigger(raising("55000")), "55000"),
    "38000 raised": (trigger(raising("38000")), "38000"),
    "XX000 raised": (trigger(raising("XX000")), "XX000"),
    "own state": (trigger(raising("MY001")), "MY001"),
    "42P01 dynamic": (trigger("EXECUTE 'INSERT INTO nowhere_' || NEW.id || ' SELECT 1';"), "42P01"),
    "42501 policy": (
        ("ALTER TABLE {name}.notes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
        "CREATE POLICY look ON {name}.notes USING (true) WITH CHECK (id <> 101)"),
        "42501",
    ),
    "44000 check option": (
        ("ALTER TABLE {name}.notes RENAME TO stored;"
        "CREATE VIEW {name}.notes AS SELECT * FROM {name}.stored WHERE id <> 101 WITH CHECK OPTION"),
        "44000",
    ),
    "23514 check": ("ALTER TABLE {name}.notes ADD CHECK (id <> 101)", "23514"),
    "23503 reference": (
        ("CREATE TABLE {name}.known (id bigint PRIMARY KEY); INSERT INTO {name}.known SELECT generate_series(100, 200);"
        "DELETE FROM {name}.known WHERE id = 101;"
        "ALTER TABLE {name}.notes ADD FOREIGN KEY (id) REFERENCES {name}.known"),
        "23503",
    ),
    "23514 no partition": (
        ("ALTER TABLE {name}.notes RENAME TO old; CREATE TABLE {name}.notes (LIKE {name}.old INCLUDING ALL)"
        " PARTITION BY RANGE (id); CREATE TABLE {name}.low PARTITION OF {name}.notes FOR VALUES FROM (0) TO (101);"
        "CREATE TABLE {name}.high PARTITION OF {name}.notes FOR VALUES FROM (102) TO (1000)"),
        "23514",
    ),
    "23503 deferred reference": (
        ("CREATE TABLE {name}.known (id bigint PRIMARY KEY); INSERT INTO {name}.known SELECT generate_series(100, 200);"
        "DELETE FROM {name}.known WHERE id = 101;"
        "ALTER TABLE {name}.notes ADD FOREIGN KEY (id) REFERENCES {name}.known DEFERRABLE INITIALLY DEFERRED"),
        "23503",
    ),
    "P0001 deferred trigger": (
        trigger("RAISE EXCEPTION 'too late';").replace(
            "CREATE TRIGGER look BEFORE INSERT OR UPDATE ON {name}.notes FOR EACH ROW", LATER
        ),
        "P0001",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("made", "state"), ONE_ROW.values(), ids=ONE_ROW)
def test_the_row_to_blame_is_set_aside_and_the_others_land(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, made: str, state: str
) -> None:
    """Whatever SQLSTATE PostgreSQL gives to it."""
    reader.execute(made.format(name=made_up.name))
    if "POLICY" in made:  # which binds no superuser
        pipeline.becomes_role()
    random = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(3_000))
    rows = [note(number, random if number == 101 else "x") for number in range(100, 105)]
    assert pipeline.lands(*rows) is None
    assert [row[0] for row in pipeline.notes()] == [100, 102, 103, 104]
    assert pipeline.places() == [(0, 101)]
    assert pipeline.rejected()[0][2].startswith("Postgres refused the row: ")
    error = _error(reader, made_up.name, random)
    assert error is None or error.sqlstate == state


def _error(reader: Reader, name: str, text: str) -> psycopg.Error | None:
    """What PostgreSQL says of the row itself; None where a role may do what the sink's may not."""
    try:
        reader.execute(
            f'INSERT INTO {name}.notes (id, text, topic, partition, "offset") VALUES (101, %s, %s, 0, 0)', [text, ""]
        )
    except psycopg.Error as error:
        return error
    return None


@pytest.mark.parametrize("offsets", [1_000_000, 0], ids=["driver", "executors"])
def test_a_value_that_no_column_holds_is_found_in_the_copy(pipeline: Pipeline, offsets: int) -> None:
    pipeline.plan = replace(pipeline.plan, driver_staging_offsets=offsets)
    assert pipeline.lands(note(100), ("no number,x", ""), note(102), ("9223372036854775808,x", "")) is None
    assert [row[0] for row in pipeline.notes()] == [100, 102]
    assert pipeline.places() == [(0, 101), (0, 103)]


# --- rows that conflict only with each other


@pytest.mark.parametrize("cuts", [[6], [1, 5], [3, 3], [2, 2, 2], [1, 1, 1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize(
    "made",
    [
        "CREATE UNIQUE INDEX ON {name}.notes (text)",
        "ALTER TABLE {name}.notes ADD UNIQUE (text) DEFERRABLE INITIALLY DEFERRED",
        "ALTER TABLE {name}.notes ADD EXCLUDE (text WITH =) DEFERRABLE INITIALLY DEFERRED",
    ],
    ids=["unique", "deferred unique", "deferred exclusion"],
)
def test_the_outcome_does_not_depend_on_how_batches_are_cut(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, made: str, cuts: list[int]
) -> None:
    """The first of those that conflict stays, and each later one is set aside."""
    reader.execute(made.format(name=made_up.name))
    rows = [note(100, "a"), note(101, "b"), note(102, "a"), note(103, "c"), note(104, "b"), note(105, "a")]
    for cut in cuts:
        assert pipeline.lands(*rows[:cut]) is None
        rows = rows[cut:]
    assert pipeline.notes() == [(100, "a"), (101, "b"), (103, "c")]
    assert pipeline.places() == [(0, 102), (0, 104), (0, 105)]


def test_between_partitions_who_was_written_first_stays(pipeline: Pipeline, made_up: MadeUp, reader: Reader) -> None:
    """In a partition the offsets say it, whatever times producers gave."""
    reader.execute(f"CREATE UNIQUE INDEX ON {made_up.name}.notes (text)")
    left = pipeline.table(note(1, "a"), note(2, "b"), late_ms=5)
    right = pipeline.table(note(3, "a"), note(4, "c"), note(5, "c"), partition=1)
    times = pa.array([SENT_MS + 200, SENT_MS + 150, SENT_MS], pa.int64())
    right = right.set_column(right.schema.get_field_index("at_ms"), "at_ms", times)
    assert pipeline.lands_table(pa.concat_tables([right, left])) is None
    assert pipeline.notes() == [(1, "a"), (2, "b"), (4, "c")]
    assert pipeline.places() == [(1, 100), (1, 102)]


def test_rows_that_one_statement_may_not_have_together_land_one_after_the_other(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    """21000: the merge of the notes does not say which of two rows for one key counts."""
    assert pipeline.lands(note(7, "a"), note(8, "b"), note(7, "c")) is None
    held = reader.execute(f"SELECT id, landings FROM {made_up.name}.notes ORDER BY id").fetchall()
    assert (held, pipeline.places()) == ([(7, 2), (8, 1)], [])


def test_tables_of_one_batch_hold_each_other_to_their_constraints(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    """A deferred reference holds where the row that it names is in the batch, also where its table is merged later."""
    reader.execute(
        f"ALTER TABLE {made_up.name}.notes ADD FOREIGN KEY (id) REFERENCES {made_up.name}.readings DEFERRABLE INITIALLY DEFERRED"
    )
    readings = f"{made_up.name}.readings"
    parents = pipeline.table(("1,1,x,1", ""), ("2,1,x,13", ""), ("3,1,x,1", ""), topic=readings)
    children = pipeline.table(note(1), note(2), note(3), note(4), late_ms=10)
    assert pipeline.lands_table(pa.concat_tables([children, parents])) is None
    assert [row[0] for row in pipeline.notes()] == [1, 3]
    assert [row[:2] for row in pipeline.rejected()] == [(0, 101), (0, 103), (0, 101)]
    assert reader.execute(f"SELECT key FROM {readings} ORDER BY key").fetchall() == [(1,), (3,)]


def test_what_another_sink_has_landed_of_the_batch_is_not_merged_again(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD CHECK (id <> 103)")
    assert pipeline.sink.land(100, 102)
    assert pipeline.lands(*[note(number) for number in range(100, 105)]) is None
    held = reader.execute(f"SELECT id, landings FROM {made_up.name}.notes ORDER BY id").fetchall()
    assert (held, pipeline.places()) == ([(100, 1), (101, 1), (102, 1), (104, 1)], [(0, 103)])


def test_its_bytes_are_kept_where_kafka_still_has_them(pipeline: Pipeline, made_up: MadeUp, reader: Reader) -> None:
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD CHECK (id NOT IN (101, 104))")
    pipeline.kafka = Kafka(until=103)
    with capture_logs() as logged:
        assert (
            pipeline.lands(
                *[note(number) for number in range(100, 106)], (f'{made_up.name},"no note",\\x78', "onefold.rejected")
            )
            is None
        )
    kept = reader.execute('SELECT value FROM onefold.rejected ORDER BY "offset"').fetchall()
    assert [bytes(row[0]) for row in kept] == [b"value 101", b"", b"x"]
    assert pipeline.told.counted[SET_ASIDE] == 3
    (line,) = (line["event"] for line in logged if "set aside" in line["event"])
    assert "3 output records were set aside in onefold.rejected" in line
    assert "violates check constraint" in line


# --- the table is wrong, and not the rows


def test_a_column_that_no_row_fills_stops_the_pipeline_in_seconds(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    """30,000 rows: nothing moves, and PostgreSQL's sentence is said; when the table is mended all of them land."""
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD COLUMN owner text NOT NULL")
    rows = [note(number) for number in range(30_000)]
    failure = pipeline.lands(*rows)
    assert isinstance(failure, Stopped)
    assert "refuses more than 300 of 30,000 rows in one batch" in str(failure)
    assert 'null value in column "owner"' in str(failure)
    assert (pipeline.notes(), pipeline.rejected(), pipeline.told.counted[SET_ASIDE]) == ([], [], 0)
    reader.execute(f"ALTER TABLE {made_up.name}.notes ALTER COLUMN owner DROP NOT NULL")
    assert pipeline.lands(*rows) is None
    assert len(pipeline.notes()) == 30_000


def test_so_many_rows_as_the_bound_has_are_set_aside(pipeline: Pipeline, made_up: MadeUp, reader: Reader) -> None:
    """In a batch of less than ten times as many they count for the next batches, too; a batch with few of them ends that."""
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD CHECK (text <> 'bad')")
    bad = [note(number, "bad") for number in range(REFUSED_MAX)]
    good = [note(number) for number in range(1_000, 1_500)]
    assert pipeline.lands(*bad, *good) is None
    assert len(pipeline.rejected()) == REFUSED_MAX
    assert isinstance(pipeline.lands(*bad[:1]), Stopped)
    assert isinstance(pipeline.lands(*bad[:1]), Stopped), "a start gives it no other hundred"
    assert pipeline.lands(*bad[:1], *good[:20]) is None
    assert pipeline.lands(*bad[:1]) is None


def test_a_wrong_table_is_found_in_batches_of_a_few_rows(pipeline: Pipeline, made_up: MadeUp, reader: Reader) -> None:
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD COLUMN owner text NOT NULL")
    failures = [pipeline.lands(*[note(number) for number in range(30)]) for _ in range(4)]
    assert failures[:3] == [None] * 3
    assert isinstance(failures[3], Stopped)
    assert "after 90 in the batches before" in str(failures[3])
    assert len(pipeline.rejected()) == 90


@pytest.mark.parametrize(
    "made",
    [
        trigger("EXECUTE 'INSERT INTO nowhere SELECT 1';").replace("NEW.id = 101", "true"),
        trigger("PERFORM nowhere(1);").replace("NEW.id = 101", "true"),
    ],
    ids=["42P01", "42883"],
)
def test_a_trigger_that_fails_at_every_row_is_no_rows_fault(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, made: str
) -> None:
    reader.execute(made.format(name=made_up.name))
    failure = pipeline.lands(note(1), note(2))
    assert isinstance(failure, Stopped)
    assert "refuses every row of a batch" in str(failure)
    assert (pipeline.notes(), pipeline.rejected()) == ([], [])


@pytest.mark.parametrize(
    ("broken", "state"),
    [
        ("ALTER TABLE {name}.notes DROP COLUMN text", "42703"),
        ("DROP TABLE {name}.notes", "42P01"),
        ("ALTER TABLE {name}.notes DROP CONSTRAINT notes_pkey", "42P10"),
    ],
)
def test_a_merge_that_does_not_fit_the_table_is_no_rows_fault(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, broken: str, state: str
) -> None:
    """The error itself ends the query; its next start names the merge."""
    reader.execute(broken.format(name=made_up.name))
    failure = pipeline.lands(note(1))
    assert isinstance(failure, psycopg.Error)
    assert (failure.sqlstate, pipeline.rejected()) == (state, [])


def test_a_privilege_that_is_missing_is_no_rows_fault(pipeline: Pipeline, made_up: MadeUp, reader: Reader) -> None:
    pipeline.becomes_role()
    reader.execute(f"REVOKE INSERT ON {made_up.name}.notes FROM {made_up.name}")
    failure = pipeline.lands(note(1))
    assert isinstance(failure, psycopg.errors.InsufficientPrivilege)
    assert pipeline.rejected() == []


def test_a_row_that_stands_for_a_batch_is_never_set_aside(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: dict[str, Target] = dict(pipeline.plan.domain.targets)
    targets[pipeline.sink.topic] = replace(targets[pipeline.sink.topic], reduced=True)
    pipeline.sink.stage = replace(pipeline.sink.stage, targets=targets)
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD CHECK (id <> 101)")
    failure = pipeline.lands(note(100), note(101))
    assert isinstance(failure, Stopped)
    assert f"refuses what sql/reduce/{pipeline.sink.topic}.sql makes of a batch" in str(failure)
    assert (pipeline.notes(), pipeline.rejected()) == ([], [])


def test_of_a_batch_with_rows_that_stand_for_it_only_single_rows_are_set_aside(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    readings = f"{made_up.name}.readings"
    targets: dict[str, Target] = dict(pipeline.plan.domain.targets)
    targets[readings] = replace(targets[readings], reduced=True)
    pipeline.sink.stage = replace(pipeline.sink.stage, targets=targets)
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD CHECK (id <> 101)")
    assert pipeline.lands(note(100), note(101), ("1,1,x,1", readings)) is None
    assert pipeline.places() == [(0, 101)]
    assert reader.execute(f"SELECT key FROM {readings}").fetchall() == [(1,)]


# --- what passes


@pytest.mark.parametrize("state", ["40001", "40P01", "25006", "53100", "53200", "55P03", "57014", "58030", "08006"])
def test_what_passes_is_tried_again_and_blames_no_row(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, state: str
) -> None:
    """Also where a trigger says it."""
    reader.execute(trigger(raising(state)).format(name=made_up.name))
    failure = pipeline.lands(note(101))
    assert isinstance(failure, psycopg.Error)
    assert (failure.sqlstate, verdict(failure), pipeline.rejected()) == (state, Verdict.RETRY, [])
    reader.execute(f"DROP TRIGGER look ON {made_up.name}.notes")
    assert pipeline.lands(note(101)) is None


def test_what_fails_once_while_rows_are_looked_at_blames_none(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An internal error of the server, as a statement meets that reads what another one changes."""
    raised: list[str] = []
    execute: Callable[..., Any] = type(pipeline.sink.connection).execute

    def fails(connection: Any, query: Any, *rest: Any, **more: Any) -> Any:
        if (
            connection is pipeline.sink.connection
            and "INTO " + made_up.name in _text(query, connection)
            and len(raised) < 3
        ):
            raised.append("")
            raise psycopg.errors.InternalError_("tuple concurrently updated")
        return execute(connection, query, *rest, **more)

    monkeypatch.setattr(type(pipeline.sink.connection), "execute", fails)
    assert pipeline.lands(note(101)) is None
    assert (len(raised), pipeline.rejected(), pipeline.notes()) == (3, [], [(101, "x")])


def _text(query: Any, connection: Any) -> str:
    return query if isinstance(query, str) else query.as_string(connection)


def test_what_is_set_aside_is_in_the_status(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """How many, and why the newest was."""
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD CHECK (id <> 101)")
    assert pipeline.lands(note(101), note(102)) is None
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path))
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", pipeline.dsn)
    found = {**status.describe(load()), "set_aside": status._set_aside(load())}
    (line,) = [each for each in shown_status.lines(tmp_path, found) if each.startswith("set aside")]
    assert " ".join(line.split()).startswith(
        f"set aside of {made_up.name} 1 output record in onefold.rejected, the newest because of: Postgres refused the row"
    )
