"""What is noted of each batch: with it or not at all, once, and never so much that it matters."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onefold.spark_sink.landing import batch_history, ledger
from onefold.spark_sink.landing import land as landing
from onefold.spark_sink.landing.ledger import BatchRange
from onefold.spark_sink.landing.staging_tables import Staged
from onefold.spark_sink.postgres.connection import transaction
from onefold.spark_sink.query_config import QueryConfig
from tests.support.landing import ID, SENT_MS, Landed, Sink, once
from tests.support.made_up_domain import MadeUp
from tests.support.noted import noted as noted_beside_the_log
from tests.support.waiting import eventually

Reader = psycopg.Connection[Any]
NOTED = "SELECT first_offset, next_offset, records, oldest_ms - %s, writer FROM onefold.batch ORDER BY 1"
MANY = """
INSERT INTO onefold.batch
SELECT %s, topic, 0, 'id', number, number + 1, 1, NULL, 'test', now() - make_interval(secs => 1000 - number)
FROM unnest(ARRAY['a', 'b']) AS topic, generate_series(0, %s) AS number
"""


def noted(reader: Reader) -> list[tuple[Any, ...]]:
    return reader.execute(NOTED, (SENT_MS,)).fetchall()


def test_each_batch_is_noted_with_what_it_landed(sink: Sink, other_sink: Sink, reader: Reader) -> None:
    sink.land(100, 104)
    other_sink.land(104, 106)
    assert noted(reader) == [(100, 104, 4, 100, "one"), (104, 106, 2, 104, "two")]
    found = reader.execute(
        "SELECT DISTINCT topic, partition, topic_id, now() - landed_at FROM onefold.batch"
    ).fetchone()
    assert found is not None
    assert found[:3] == (sink.topic, 0, ID)
    assert timedelta(0) <= found[3] < timedelta(minutes=1)


def test_it_is_noted_when_all_is_merged(sink: Sink, reader: Reader) -> None:
    """A merge may take long, and what it writes is there for nobody before."""
    merged_at = []

    def step(name: str) -> None:
        if name == "sink.after_merge":
            merged_at.append(reader.execute("SELECT clock_timestamp()").fetchone())

    sink.land(100, 101, step)
    assert reader.execute("SELECT landed_at > %s FROM onefold.batch", merged_at[0]).fetchone() == (True,)


def test_a_batch_that_does_not_land_is_not_noted(sink: Sink, reader: Reader) -> None:
    class Crash(BaseException):
        pass

    def crash(name: str) -> None:
        if name == "sink.before_commit":
            raise Crash

    with pytest.raises(Crash):
        sink.land(100, 104, crash)
    assert noted(reader) == []
    sink.land(100, 104)
    assert not sink.land(101, 103)
    assert noted(reader) == [(100, 104, 4, 100, "one")]


def test_of_what_another_sink_has_landed_a_part_only_the_rest_is_noted(sink: Sink, reader: Reader) -> None:
    """How many of its records are new was not counted, and the oldest may be one that is not."""
    sink.land(100, 104)
    sink.land(100, 108)
    assert noted(reader) == [(100, 104, 4, 100, "one"), (104, 108, None, None, "one")]


def test_offsets_without_a_record_are_not_noted(sink: Sink, plan: QueryConfig, reader: Reader, landed: Landed) -> None:
    """Transactions that somebody else writes may come for ever, with a marker each."""
    empty = _but(sink.batch(100, 109), last_record=None, contents=None)
    assert landing.land(sink.connection, empty, sink.rows(), plan.domain.targets, lambda name: None)
    assert landed() == (109, [])
    assert noted(reader) == []


def test_a_sink_of_before_may_land_beside(
    sink: Sink, other_sink: Sink, plan: QueryConfig, reader: Reader, landed: Landed
) -> None:
    """It moves the ledger, and notes nothing: what it landed is a gap, and not a part of the next batch."""
    sink.land(100, 102)
    unnoted, rows = _but(other_sink.batch(102, 105), contents=None), other_sink.rows(*range(102, 105))
    assert landing.land(other_sink.connection, unnoted, rows, plan.domain.targets, lambda name: None)
    sink.land(105, 106)
    assert landed() == once(100, 106)
    assert [row[:2] for row in noted(reader)] == [(100, 102), (105, 106)]


def test_a_ledger_that_was_set_back_does_not_stop_the_sink(sink: Sink, reader: Reader, landed: Landed) -> None:
    sink.land(100, 104)
    sink.land(104, 106)
    reader.execute("UPDATE onefold.ledger SET next_offset = 100, last_offset = NULL, last_fingerprint = NULL")
    sink.land(100, 103)
    assert noted(reader) == [(100, 103, 3, 100, "one"), (104, 106, 2, 104, "one")]
    assert landed()[0] == 103


def test_what_a_topic_of_before_has_landed_is_another(sink: Sink, plan: QueryConfig, reader: Reader) -> None:
    sink.land(100, 104)
    reader.execute(
        "UPDATE onefold.ledger SET next_offset = 100, topic_id = 'anew', last_offset = NULL, last_fingerprint = NULL"
    )
    batch = sink.batch(100, 102, topic_id="anew")
    assert landing.land(sink.connection, batch, sink.rows(100, 101), plan.domain.targets, lambda name: None)
    kept = reader.execute("SELECT topic_id, next_offset FROM onefold.batch ORDER BY 1").fetchall()
    assert kept == [("anew", 102), (ID, 104)]


def test_the_newest_are_kept_and_the_oldest_go(sink: Sink, reader: Reader) -> None:
    """Of each sink by itself, and not all at once."""
    for name in ("mine", "another"):
        reader.execute(MANY, (name, 9))
    counted = "SELECT count(*), min(first_offset) FROM onefold.batch WHERE sink = %s"
    for left in [(12, 4), (6, 7), (6, 7)]:
        batch_history.prune(sink.connection, "mine", kept=6, most=8)
        assert reader.execute(counted, ("mine",)).fetchone() == left
    assert reader.execute(counted, ("another",)).fetchone() == (20, 0)
    batch_history.prune(sink.connection, "nobody", kept=6)


def test_two_sinks_that_delete_at_once_wait_for_nothing(sink: Sink, other_sink: Sink, reader: Reader) -> None:
    reader.execute(MANY, ("mine", 9))
    other_sink.connection.execute("BEGIN")
    batch_history.prune(other_sink.connection, "mine", kept=6)
    sink.connection.execute("SET lock_timeout = 0")
    done = threading.Thread(target=batch_history.prune, args=(sink.connection, "mine", 6))
    done.start()
    eventually(lambda: not done.is_alive(), 20, "the other one is through")
    other_sink.connection.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM onefold.batch").fetchone() == (6,)


def test_that_old_rows_cannot_be_deleted_stops_nobody(sink: Sink, reader: Reader, landed: Landed) -> None:
    """Somebody who looks may hold the table, or the rows; and a connection that is gone is noticed by the next batch."""
    reader.execute("ALTER TABLE onefold.batch RENAME TO gone")
    batch_history.prune(sink.connection, "mine")
    reader.execute("ALTER TABLE onefold.gone RENAME TO batch")
    assert sink.land(100, 102)
    assert landed() == once(100, 102)
    sink.connection.close()
    batch_history.prune(sink.connection, "mine")


def test_a_reader_may_see_it_and_not_write(sink: Sink, reader: Reader) -> None:
    sink.land(100, 102)
    reader.execute("SET ROLE onefold_reader")
    assert len(noted(reader)) == 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        reader.execute("DELETE FROM onefold.batch")


def test_who_forgets_a_sink_forgets_its_batches(sink: Sink, plan: QueryConfig, reader: Reader) -> None:
    """As a reset does: the topics that come then begin at 0 again. Also where no sink has made the table yet."""
    sink.land(100, 102)
    reader.execute(MANY, ("another", 0))
    with transaction(sink.connection):
        ledger.forget(sink.connection, plan.domain.name)
    assert reader.execute("SELECT DISTINCT sink FROM onefold.batch").fetchall() == [("another",)]
    reader.execute("DROP TABLE onefold.batch")
    with transaction(sink.connection):
        ledger.forget(sink.connection, plan.domain.name)


def test_what_a_rebuild_brings_along_is_noted(sink: Sink, plan: QueryConfig, reader: Reader) -> None:
    """What came since of the same topic, and all of one that was made anew. Also where no sink has made the table yet."""
    name = plan.domain.name
    for partition in (1, 2):
        ledger.open_partition(sink.connection, name, (sink.topic, partition), 5, ID, "one")
    before = ledger.positions(sink.connection, name)
    reader.execute("UPDATE onefold.ledger SET next_offset = next_offset + 2 WHERE partition < 2")
    reader.execute("UPDATE onefold.ledger SET topic_id = 'anew' WHERE partition = 1")
    for _ in range(2):
        batch_history.add_rebuilt(sink.connection, name, before)
        assert reader.execute(
            "SELECT partition, topic_id, first_offset, next_offset, records, writer FROM onefold.batch ORDER BY 1"
        ).fetchall() == [
            (0, ID, 100, 102, None, batch_history.REBUILD),
            (1, "anew", 0, 7, None, batch_history.REBUILD),
        ]
    reader.execute("DROP TABLE onefold.batch")
    batch_history.add_rebuilt(sink.connection, name, before)


def test_two_targets_of_one_partition_are_counted_together(sink: Sink) -> None:
    made = Staged(sink.stage, sink.table(100, 101, 105))
    assert made.contents == {(sink.topic, 0): ledger.Contents(3, SENT_MS + 100)}


@pytest.mark.usefixtures("made_up_topics")
def test_spark_says_how_many_and_of_when(
    made_up: MadeUp,
    query: Callable[..., Any],
    until_landed: Callable[..., None],
    client: dict[str, str],
    reader: Reader,
) -> None:
    """Whole and in parts, and what was set aside included."""
    made_up.send(range(20))
    one = query()
    until_landed(one)
    one.stop()
    made_up.send(range(20, 40))
    made_up.send_raw([(f"{made_up.name}.notes", 0, b"no contract")])
    until_landed(query(line_bytes_max=1_000))
    found = noted_beside_the_log(reader, client)
    assert len(found) >= 8, "two topics of two partitions, and two batches"
    assert [(one.records, one.oldest_ms) for one in found] == [(len(one.times), min(one.times)) for one in found]
    assert sum(one.records or 0 for one in found) == 2 * 40 + 1


def _but(batch: BatchRange, **changes: Any) -> BatchRange:
    return replace(batch, ranges=tuple(replace(part, **changes) for part in batch.ranges))
