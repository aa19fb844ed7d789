"""Laws of the landing transaction, on a real Postgres and without Spark: what is landed, is landed exactly once."""

import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.landing import land as landing
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.ledger import LastRecord, LedgerPosition
from onefold.spark_sink.postgres.connection import transaction
from onefold.spark_sink.query_config import QueryConfig
from tests.support.coded import raises
from tests.support.landing import ID, Landed, Sink, once
from tests.support.migrated import migrate_all
from tests.support.proxy import Loss, PostgresProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("rows-with-offsets")

STEPS = [f"sink.{when}_{what}" for what in ("cas", "copy", "merge", "commit") for when in ("before", "after")]


class Crash(BaseException):
    """What a fault point throws: nobody may catch it on the way."""


def test_a_batch_that_continues_is_landed_with_its_position(sink: Sink, plan: QueryConfig, landed: Landed) -> None:
    assert sink.land(100, 104)
    assert sink.land(104, 106)
    assert landed() == once(100, 106)
    position = ledger.positions(sink.connection, plan.domain.name)[sink.topic, 0]
    assert position == LedgerPosition(106, ID, LastRecord(105, 106))


def test_a_batch_landed_before_is_skipped(sink: Sink, landed: Landed) -> None:
    sink.land(100, 104)
    assert not sink.land(100, 104)
    assert not sink.land(101, 103)
    assert landed() == once(100, 104)


def test_a_batch_that_overlaps_is_trimmed(sink: Sink, landed: Landed) -> None:
    sink.land(100, 104)
    assert sink.land(100, 108)
    assert landed() == once(100, 108)


def test_a_batch_behind_a_hole_is_refused(sink: Sink, landed: Landed) -> None:
    with raises(Rewind, Code.POSITIONS_MOVED, "101", "100"):
        sink.land(101, 104)
    assert landed() == (100, [])


def test_a_batch_of_a_partition_without_a_row_is_refused(sink: Sink, plan: QueryConfig) -> None:
    batch = sink.batch(0, 5, partition=9)
    with raises(Rewind, Code.POSITIONS_MOVED):
        landing.land(sink.connection, batch, sink.rows(), plan.domain.targets, lambda name: None)


def test_a_batch_of_another_topic_of_the_same_name_is_refused(sink: Sink, plan: QueryConfig, landed: Landed) -> None:
    batch = sink.batch(100, 102, topic_id="topic-id-2")
    with raises(Rewind, Code.POSITIONS_MOVED, "topic-id-2"):
        landing.land(sink.connection, batch, sink.rows(100, 101), plan.domain.targets, lambda name: None)
    assert landed() == (100, [])


def test_a_batch_without_rows_moves_the_position_and_keeps_the_last_record(
    sink: Sink, plan: QueryConfig, landed: Landed
) -> None:
    """Aborted records and markers take offsets; the next batch would otherwise not continue."""
    sink.land(100, 102)
    batch = sink.batch(102, 109)
    empty = replace(batch, ranges=(replace(batch.ranges[0], last_record=None),))
    assert landing.land(sink.connection, empty, sink.rows(), plan.domain.targets, lambda name: None)
    assert landed() == (109, once(100, 102)[1])
    assert ledger.positions(sink.connection, plan.domain.name)[sink.topic, 0].last_record == LastRecord(101, 102)


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_has_landed_all_or_nothing(sink: Sink, other_sink: Sink, landed: Landed, step: str) -> None:
    def crash(name: str) -> None:
        if name == step:
            raise Crash

    with pytest.raises(Crash):
        sink.land(100, 104, crash)
    assert landed() == (once(100, 104) if step == "sink.after_commit" else (100, []))
    other_sink.land(100, 104)
    assert landed() == once(100, 104)


def test_two_sinks_that_race_land_everything_once(
    sink: Sink, other_sink: Sink, landed: Landed, reader: "psycopg.Connection[Any]"
) -> None:
    """The second one waits for the first one's row lock, then sees what it committed. With other batch borders."""
    entered, go = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == "sink.after_cas":
            entered.set()
            assert go.wait(20)

    first = threading.Thread(target=sink.land, args=(100, 105, hold))
    first.start()
    assert entered.wait(20)
    outcome: list[bool] = []
    second = threading.Thread(target=lambda: outcome.append(other_sink.land(100, 110)))
    second.start()
    eventually(lambda: _waits_for_a_lock(other_sink.connection.info.backend_pid, reader), 20, "the second sink waits")
    go.set()
    first.join(20)
    second.join(20)
    assert outcome == [True]
    assert landed() == once(100, 110)


def test_sinks_in_a_crowd_land_everything_once(sink: Sink, plan: QueryConfig, database: str, landed: Landed) -> None:
    """Three sinks, each with batches of its own size, none waiting for another: every row once."""

    def work(size: int) -> None:
        one = Sink(database, plan, f"by {size}")
        start = 100
        while start < 160:
            one.land(start, min(start + size, 160))
            start += size
        one.connection.close()

    crowd = [threading.Thread(target=work, args=(size,)) for size in (3, 7, 11)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(30)
    assert landed() == once(100, 160)


@pytest.mark.parametrize("loss", ["request", "answer"])
def test_a_lost_commit_is_resolved_by_entering_again(
    sink: Sink, plan: QueryConfig, landed: Landed, postgres_proxy: PostgresProxy, loss: Loss
) -> None:
    """Whoever lost the connection in COMMIT cannot know; the compare-and-swap does."""
    behind = Sink(postgres_proxy.dsn, plan, "behind the proxy")
    behind.connection.prepare_threshold = None  # the proxy knows a COMMIT by its text

    def lose(name: str) -> None:
        if name == "sink.before_commit":
            postgres_proxy.lose_next_commit(loss)

    with pytest.raises(psycopg.OperationalError):
        behind.land(100, 104, lose)
    assert postgres_proxy.lost.is_set()
    again = Sink(postgres_proxy.dsn, plan, "again")
    assert again.land(100, 104) == (loss == "request")
    assert landed() == once(100, 104)
    again.connection.close()


def test_a_failed_transaction_cannot_pass_for_a_committed_one(sink: Sink, landed: Landed) -> None:
    """Postgres answers COMMIT with ROLLBACK when a statement failed before, and calls it no error."""

    def swallow_an_error() -> None:
        with transaction(sink.connection):
            sink.connection.execute("UPDATE onefold.ledger SET next_offset = 999")
            with suppress(psycopg.errors.DivisionByZero):
                sink.connection.execute("SELECT 1/0")

    with pytest.raises(RuntimeError, match="answered ROLLBACK to COMMIT"):
        swallow_an_error()
    assert landed() == (100, [])


def test_a_frozen_concurrent_sink_is_thrown_out(sink: Sink, other_sink: Sink, landed: Landed) -> None:
    """It holds the row lock and does nothing: Postgres ends its session, the other sink goes on."""
    assert sink.timeout_s("idle_in_transaction_session_timeout") < sink.timeout_s("lock_timeout") < 60
    sink.connection.execute("SET idle_in_transaction_session_timeout = '300ms'")
    frozen = transaction(sink.connection)
    frozen.__enter__()
    assert ledger.advance(sink.connection, sink.batch(100, 104)) is not None
    assert other_sink.land(100, 104)
    with pytest.raises(psycopg.Error):
        frozen.__exit__(None, None, None)
    assert landed() == once(100, 104)


def test_staging_tables_that_an_earlier_version_has_left_are_dropped(
    plan: QueryConfig, database: str, reader: "psycopg.Connection[Any]"
) -> None:
    """Not those of a sink of that version that still runs, by its lock, and nothing else that lies there."""
    migrate_all(database, plan.sql_root)
    for table in ("s2147483647_0", "s2147483647_1", "s7_0", "s7_notes"):
        reader.execute(f"CREATE UNLOGGED TABLE onefold_stage.{table} (id bigint)")
    with psycopg.connect(database, autocommit=True) as running:
        running.execute("SELECT pg_advisory_lock_shared(731642100, 7)")
        Sink(database, plan).connection.close()
        assert _old_stages(reader) == ["s7_0", "s7_notes"]
    Sink(database, plan).connection.close()
    assert _old_stages(reader) == ["s7_notes"]


def _old_stages(reader: "psycopg.Connection[Any]") -> list[str]:
    found = reader.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'onefold_stage' ORDER BY 1").fetchall()
    return [name for (name,) in found]


def _waits_for_a_lock(pid: int, reader: "psycopg.Connection[Any]") -> bool:
    return reader.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() == ("Lock",)
