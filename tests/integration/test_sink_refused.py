"""Rows that PostgreSQL refuses: which one is to blame, what becomes of the others, and when the table is wrong. On a real
PostgreSQL, without Spark."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from onefold.cli import shown_status
from onefold.cli.commands import status
from onefold.config.settings import load
from onefold.processor.core.errors import Refused
from onefold.spark_sink.errors import ErrorReaction, Stopped, verdict
from onefold.spark_sink.landing.isolate import REFUSED_MAX
from onefold.spark_sink.landing.protocols import KafkaRecord
from onefold.spark_sink.query_config import QueryConfig
from onefold.telemetry import SET_ASIDE
from tests.support.landing import SENT_MS
from tests.support.made_up_domain import MadeUp
from tests.support.refused import ONE_ROW, Kafka, Pipeline, domain_in, emptied, note, plan_of, raising, trigger

Reader = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> MadeUp:
    """One domain for all tests here, which make its tables anew."""
    return domain_in(tmp_path_factory.mktemp("domain"), checkout)


@pytest.fixture(scope="module")
def migrated(made_up: MadeUp, module_database: str) -> QueryConfig:
    """A plan of that domain, whose database is there."""
    return plan_of(made_up, module_database)


@pytest.fixture
def reader(module_database: str) -> Iterator[Reader]:
    with psycopg.connect(module_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def pipeline(migrated: QueryConfig, made_up: MadeUp, reader: Reader) -> Iterator[Pipeline]:
    """With empty tables, and nothing landed."""
    one = emptied(migrated, made_up, reader)
    yield one
    one.sink.connection.close()
    if reader.execute("SELECT to_regrole(%s)", [made_up.name]).fetchone() != (None,):
        reader.execute(f"DROP OWNED BY {made_up.name}; DROP ROLE {made_up.name}")


@pytest.mark.promise("refused-rows")
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


class Watching(Kafka):
    """Notes when the sink's session began its last statement, each time that a record is read."""

    def __init__(self, reader: Reader, session: int) -> None:
        super().__init__()
        self._reader, self._session = reader, session
        self.seen: list[Any] = []

    def record_from(self, topic: str, partition: int, offset: int) -> KafkaRecord | None:
        asked = "SELECT query_start FROM pg_stat_activity WHERE pid = %s"
        self.seen.append(self._reader.execute(asked, [self._session]).fetchone())
        return super().record_from(topic, partition, offset)


def test_the_session_has_a_statement_before_each_refused_record_is_read(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    """Kafka may take its time for many of them, and PostgreSQL ends a session that idles for long in a transaction."""
    reader.execute(trigger(raising("P0001")).format(name=made_up.name))
    pipeline.kafka = kafka = Watching(reader, pipeline.sink.connection.info.backend_pid)
    assert pipeline.lands(note(100), *(note(101) for _ in range(3))) is None
    assert len(set(kafka.seen)) == len(kafka.seen) == 3


class Anew(Kafka):
    """The topics are made anew behind so many questions for their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.old_until = 0, sys.maxsize

    def ids(self, topics: list[str]) -> dict[str, str]:
        self.asked += 1
        return super().ids(topics) if self.asked <= self.old_until else dict.fromkeys(topics, "another")


def test_rows_that_may_have_been_read_again_are_of_the_topics_of_before(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader
) -> None:
    """Spark reads a batch once more where PostgreSQL has refused a row of it, and the topic may be another one by then."""
    pipeline.kafka = kafka = Anew()
    assert pipeline.lands(note(100, "good")) is None
    kafka.old_until = kafka.asked * 2
    reader.execute(f"ALTER TABLE {made_up.name}.notes ADD CHECK (text <> 'bad')")
    error = pipeline.lands(note(101, "bad"), note(102, "good"))
    assert isinstance(error, Refused)
    assert [row[0] for row in pipeline.notes()] == [100]
    assert pipeline.places() == []


def _error(reader: Reader, name: str, text: str) -> psycopg.Error | None:
    """What PostgreSQL says of the row itself; None where a role may do what the sink's may not."""
    try:
        reader.execute(
            f'INSERT INTO {name}.notes (id, text, topic, partition, "offset") VALUES (101, %s, %s, 0, 0)', [text, ""]
        )
    except psycopg.Error as error:
        return error
    return None


def test_a_value_that_no_column_holds_is_found_in_the_copy(pipeline: Pipeline) -> None:
    assert pipeline.lands(note(100), ("no number,x", ""), note(102), ("9223372036854775808,x", "")) is None
    assert [row[0] for row in pipeline.notes()] == [100, 102]
    assert pipeline.places() == [(0, 101), (0, 103)]


# --- rows that conflict only with each other


@pytest.mark.promise("refused-rows")
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
    (line,) = (line["event"] for line in logged if "rejected " in line["event"])
    assert "rejected 3 output records to onefold.rejected" in line
    assert "violates check constraint" in line


# --- the table is wrong, and not the rows


@pytest.mark.promise("wrong-tables")
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


@pytest.mark.promise("wrong-tables")
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


# --- what passes


@pytest.mark.parametrize("state", ["40001", "40P01", "25006", "53100", "53200", "55P03", "57014", "58030", "08006"])
def test_what_passes_is_tried_again_and_blames_no_row(
    pipeline: Pipeline, made_up: MadeUp, reader: Reader, state: str
) -> None:
    """Also where a trigger says it."""
    reader.execute(trigger(raising(state)).format(name=made_up.name))
    failure = pipeline.lands(note(101))
    assert isinstance(failure, psycopg.Error)
    assert (failure.sqlstate, verdict(failure), pipeline.rejected()) == (state, ErrorReaction.RETRY, [])
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
    (line,) = [each for each in shown_status.lines(tmp_path, found) if each.startswith("rejected of")]
    assert " ".join(line.split()).startswith(
        f"rejected of {made_up.name} 1 output record in onefold.rejected, the newest because of: Postgres refused the row"
    )
