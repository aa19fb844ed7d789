"""Sums that are added to, on a real broker, Postgres and Spark: an addition must happen once, whatever happens.

Unlike a "greatest wins" merge, an addition forgives nothing: one batch too many, or one too few, and the sums are wrong
for ever. The domain is trades, with its own SQL; the test writes the deltas and adds up for itself.
"""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from onefold.chaos.injection import Injected
from onefold.processor.core.errors import Refused
from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.landing import isolate
from onefold.spark_sink.landing.land import merge
from onefold.spark_sink.spark import reduce
from onefold.spark_sink.spark import rows as spark_rows
from onefold.spark_sink.spark.query import SinkQuery
from tests.support.deltas import TOPIC, Deltas, encode
from tests.support.migrated import migrate_all
from tests.support.noted import noted
from tests.support.sink import LANDED_IN_S, supervising

Reader = psycopg.Connection[Any]
MakeQuery = Callable[..., SinkQuery]
# Before the first change to the database, and after each. At the other steps the transaction is as at one of these.
CHANGES = ("sink.before_cas", "sink.after_cas", "sink.after_copy", "sink.after_merge", "sink.after_commit")


class Crash(BaseException):
    """What a fault point throws."""


@pytest.fixture
def deltas(fresh_domain: Callable[..., Any], bootstrap_servers: str) -> Iterator[Deltas]:
    fresh_domain("trades")
    with closing(Deltas(bootstrap_servers)) as made:
        yield made


@pytest.fixture
def trades_query(query: MakeQuery, checkout: Path) -> MakeQuery:
    """Makes queries for the real domain."""
    root = checkout / "sql"
    return lambda **changes: query(domain=load_domain("trades", checkout / "avro", root), sql_root=root, **changes)


@pytest.fixture
def until_landed(deltas: Deltas, database: str) -> Callable[..., None]:
    return supervising(lambda: deltas.is_landed(database))


@pytest.fixture
def auditor(database: str, checkout: Path) -> Iterator["Auditor"]:
    migrate_all(database, checkout / "sql")
    one = Auditor(database, (checkout / "sql/invariant/trades.levels_add_up.sql").read_bytes())
    yield one
    one.stop()


class Auditor:
    """A reader that never stops: in every snapshot it adds up the levels, and the trades themselves."""

    def __init__(self, dsn: str, question: bytes) -> None:
        self._dsn, self._question = dsn, question
        self._done = threading.Event()
        self.wrong: list[Any] = []
        self.totals: set[Any] = set()
        self.looks = 0
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join(30)

    def _look(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            while not self._done.is_set():
                with connection.transaction():
                    self.wrong += connection.execute(self._question).fetchall()
                    summed = connection.execute(
                        "SELECT risk_type, region, trade_desk, sum(value), count(*) FROM trades.current GROUP BY 1, 2, 3"
                    ).fetchall()
                    leaves = connection.execute(
                        "SELECT risk_type, region, trade_desk, value, trades FROM trades.risk"
                        " WHERE num_nulls(risk_type, region, trade_desk) = 0 AND trades > 0"
                    ).fetchall()
                if set(summed) != set(leaves):
                    self.wrong.append((summed, leaves))
                self.totals.add(frozenset(leaves))
                self.looks += 1


def test_every_level_is_right_by_one_task_and_by_several(
    deltas: Deltas,
    trades_query: MakeQuery,
    until_landed: Callable[..., None],
    reader: Reader,
    client: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values with six digits after the point, moves between leaves, names that need quotes; nothing of what was aborted."""
    ways = spark_rows.ONE_TASK_OFFSETS, 0
    for one_task_offsets in ways:
        monkeypatch.setattr(spark_rows, "ONE_TASK_OFFSETS", one_task_offsets)
        one = trades_query(max_offsets=60)
        deltas.send(50)
        deltas.send(30, commit=False)
        deltas.send_raw(b"no delta")
        deltas.send(50)
        until_landed(one)
        deltas.check(reader)
        deltas.send(20, commit=False)  # a batch of nothing: it has offsets, and no row
        until_landed(one)
        one.stop()
        deltas.check(reader)
    assert reader.execute("SELECT value FROM onefold.rejected").fetchall() == len(ways) * [(b"no delta",)]
    assert reader.execute(
        "SELECT count(*) FROM trades.risk AS r JOIN onefold.ledger AS l USING (topic, partition)"
        ' WHERE r."offset" > l.last_offset'
    ).fetchone() == (0,)
    found = noted(reader, client)
    assert found
    assert all(one.oldest_ms == min(one.times) for one in found), "also of records of which Spark tells only the sum"
    assert {one.records for one in found} <= {None, 1}, "which are not counted; the one that is no delta may lie alone"


def test_of_sums_that_postgres_refuses_the_record_to_blame_is_set_aside(
    deltas: Deltas,
    trades_query: MakeQuery,
    until_landed: Callable[..., None],
    database: str,
    checkout: Path,
    reader: Reader,
) -> None:
    """In all tables that are made of it; what came before and after it counts."""
    migrate_all(database, checkout / "sql")
    reader.execute("ALTER TABLE trades.risk ADD CONSTRAINT bounded CHECK (abs(value) < 50000000000)")
    deltas.send(9)
    too_much = {
        "trade_id": "too much", "version": 1, "traded_at": 10**15, "messages": 1, "value": 10**17,
        "risk_type": "Delta", "region": "AMER", "trade_desk": "FXSpot",
        "previous_value": None, "previous_risk_type": None, "previous_region": None, "previous_trade_desk": None,
    }  # fmt: skip
    deltas.send_raw(encode(too_much))
    deltas.send(9)
    until_landed(trades_query())
    deltas.check(reader)
    (row,) = reader.execute("SELECT topic, partition, value, reason FROM onefold.rejected").fetchall()
    assert row[:3] == (TOPIC, 1, encode(too_much))
    assert 'Postgres refused the row: new row for relation "risk" violates check constraint "bounded"' in row[3]


@pytest.mark.promise("leaves-add-up")
def test_sums_survive_a_crash_at_every_step(
    deltas: Deltas, trades_query: MakeQuery, until_landed: Callable[..., None], reader: Reader, auditor: Auditor
) -> None:
    """One crash after another, a batch lands in between; and a reader finds no snapshot in which levels disagree."""
    waiting, landed = list(CHANGES), threading.Event()

    def step(name: str) -> None:
        if name == "sink.after_commit":
            landed.set()
        if waiting and name == waiting[0] and (landed.is_set() or name != "sink.after_commit"):
            waiting.pop(0)
            raise Crash(name)

    one = trades_query(step=step, max_offsets=40)
    deltas.send(200)
    until_landed(one)
    while waiting:
        deltas.send(10)
        until_landed(one)
    deltas.check(reader)
    auditor.stop()
    assert auditor.wrong == []
    assert auditor.looks > 20
    assert len(auditor.totals) > 3


@pytest.mark.matrix  # of a sink without sums in test_sink_stream.py, and in every order in test_sink_interleaved.py
def test_two_sinks_at_once_add_everything_once(
    deltas: Deltas, trades_query: MakeQuery, until_landed: Callable[..., None], reader: Reader, auditor: Auditor
) -> None:
    """With batches of different sizes, so that they overlap in every possible way."""
    pair = (
        trades_query(writer="one", max_offsets=30),
        trades_query(writer="two", max_offsets=70),
    )
    for count in (300, 100, 50):
        deltas.send(count)
        until_landed(*pair)
        deltas.check(reader)
    auditor.stop()
    assert auditor.wrong == []


@pytest.mark.long  # 21 s
@pytest.mark.promise("failures-on-purpose")
def test_map_and_reduce_may_fail_at_every_other_batch(
    deltas: Deltas, trades_query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """On purpose, as ONEFOLD_FAIL_MAP_PCT and ONEFOLD_FAIL_REDUCE_PCT ask for it: tasks in Spark, and the transaction."""
    turns, failed = itertools.cycle([False, True, False, True]), []

    def map_fails() -> bool:
        failed.append("map") if (fails := next(turns)) else None
        return fails

    def reduce_fails(name: str) -> None:
        if name == "sink.before_commit" and next(turns):
            failed.append("reduce")
            raise Injected

    one = trades_query(map_fails=map_fails, step=reduce_fails, max_offsets=30)
    deltas.send(200)
    until_landed(one)
    deltas.check(reader)
    assert set(failed) == {"map", "reduce"}


# The first rows fail: numbers that a sequence has given are not taken back when the transaction is.
_DEADLOCK = """
CREATE SEQUENCE unlucky;
CREATE FUNCTION fail_now_and_then() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('unlucky') <= {failures} THEN
        RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER unlucky AFTER INSERT ON trades.risk FOR EACH ROW EXECUTE FUNCTION fail_now_and_then();
"""


@pytest.mark.promise("failed-transactions-once")
@pytest.mark.parametrize(
    ("failures", "starts"),
    [(1, 1), pytest.param(2, 2, marks=pytest.mark.long)],  # 9 s
    ids=["one deadlock", "two in a row"],
)
def test_a_transaction_that_failed_by_itself_is_tried_once_more_before_the_query_is_started_anew(
    deltas: Deltas,
    trades_query: MakeQuery,
    until_landed: Callable[..., None],
    reader: Reader,
    checkout: Path,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
    starts: int,
) -> None:
    migrate_all(database, checkout / "sql")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_DEADLOCK.replace("{failures}", str(failures)).encode())
    started: list[SinkQuery] = []
    start = SinkQuery.start

    def noted(query: SinkQuery) -> None:
        started.append(query)
        start(query)

    monkeypatch.setattr(SinkQuery, "start", noted)
    deltas.send(100)
    until_landed(trades_query())
    deltas.check(reader)
    assert len(started) == starts


@pytest.mark.promise("two-sinks")
def test_a_batch_of_which_a_concurrent_sink_landed_a_part_is_reduced_again(
    deltas: Deltas, trades_query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """The slow sink has all in one batch, and finds the first part of it landed when it comes to the ledger."""
    first_landed, all_landed, entries = threading.Event(), threading.Event(), []

    def quick(name: str) -> None:
        if name == "sink.after_commit":
            first_landed.set()
        if name == "sink.before_cas" and first_landed.is_set():
            assert all_landed.wait(LANDED_IN_S)

    def slow(name: str) -> None:
        if name == "sink.before_cas":
            entries.append(name)
            assert first_landed.wait(LANDED_IN_S)
        if name == "sink.after_commit":
            all_landed.set()

    deltas.send(200)
    until_landed(
        trades_query(writer="quick", max_offsets=50, step=quick),
        trades_query(writer="slow", max_offsets=1000, step=slow),
    )
    assert len(entries) == 2, "it entered once with all, and once with the rest"
    deltas.check(reader)


def test_a_table_that_takes_no_sum_stops_the_sink(
    deltas: Deltas,
    trades_query: MakeQuery,
    until_landed: Callable[..., None],
    database: str,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolate, "REFUSED_MAX", 2)
    migrate_all(database, checkout / "sql")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ALTER TABLE trades.risk ADD CHECK (trades < 0)")
        deltas.send(20)
        why = r"refuses more than 2 of 20 records in one batch for trades\.deltas\.risk: new row for relation"
        with pytest.raises(Refused, match=why):
            until_landed(trades_query())
        assert connection.execute("SELECT sum(next_offset) FROM onefold.ledger").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM trades.current").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM onefold.rejected").fetchone() == (0,)


@pytest.mark.promise("two-sinks")
def test_sinks_that_change_the_same_sums_in_any_order_never_deadlock(
    database: str, checkout: Path, reader: Reader, spark: Any
) -> None:
    """They may land different partitions at the same time, and then only these rows make them wait for each other."""
    migrate_all(database, checkout / "sql")
    domain = load_domain("trades", checkout / "avro", checkout / "sql")
    target = reduce.targets(spark, domain, checkout / "sql")["trades.deltas.risk"]
    levels = [(f"r{n}", None if n % 3 else "x", None) for n in range(300)]
    errors: list[Exception] = []

    def add(seed: int) -> None:
        dice = random.Random(seed)
        try:
            with psycopg.connect(database, autocommit=True) as connection:
                for _ in range(15):
                    dice.shuffle(levels_of[seed])
                    _merge(connection, target, [(*level, 1_000_000, 1, TOPIC, 0, 1) for level in levels_of[seed]])
        except psycopg.Error as error:
            errors.append(error)

    levels_of = {seed: list(levels) for seed in range(3)}
    crowd = [threading.Thread(target=add, args=(seed,)) for seed in levels_of]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(60)
    assert errors == []
    found = reader.execute("SELECT DISTINCT value, trades, count(*) OVER () FROM trades.risk").fetchall()
    assert found == [(45, 45, 300)]


def test_a_trade_that_is_told_again_with_its_old_version_stays_as_it_is(
    deltas: Deltas, trades_query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """trades.current is no sum: whatever is landed again, the highest version of a trade holds."""
    deltas.send(50)
    until_landed(trades_query())
    before = reader.execute("SELECT * FROM trades.current ORDER BY 1").fetchall()
    fields = {"trade_id": "t1", "version": 0, "traded_at": 1, "messages": 1, "value": 5, "previous_value": None}
    deltas.send_raw(encode({**fields, "risk_type": "a", "region": "b", "trade_desk": "c"}))
    until_landed(trades_query(writer="again"))
    assert reader.execute("SELECT * FROM trades.current ORDER BY 1").fetchall() == before


def _merge(connection: Any, target: Any, rows: list[tuple[Any, ...]]) -> None:
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.postgres_type)) for column in target.columns
    )
    with connection.transaction():
        connection.execute(sql.SQL("CREATE TEMPORARY TABLE staged ({}) ON COMMIT DROP").format(columns))
        with connection.cursor().copy("COPY staged FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        connection.execute(merge(target, sql.Identifier("staged")))
