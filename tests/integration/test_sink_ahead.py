"""What is read while a batch is landed, and what is not; with a real broker, a real Postgres and a real Spark."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.landing import batches
from onefold.spark_sink.spark import checkpoint, reduce
from onefold.spark_sink.spark.query import SinkQuery
from onefold.spark_sink.spark.rows import SparkRows
from tests.support.coded import raises
from tests.support.made_up_domain import MadeUp

Reader = psycopg.Connection[Any]
MakeQuery = Callable[..., SinkQuery]

STOP_TIMEOUT = "spark.sql.streaming.stopTimeout"

pytestmark = pytest.mark.usefixtures("made_up_topics")


def test_the_next_batch_is_read_while_a_small_one_is_landed(
    made_up: MadeUp,
    query: MakeQuery,
    until_landed: Callable[..., None],
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first transaction waits for it; and what has not landed yet is not missed in Postgres."""
    original = SparkRows.to_arrow
    staged: list[Any] = []
    displaced: list[Any] = []
    both = threading.Event()

    def noted(*arguments: Any) -> Any:
        staged.append(original(*arguments))
        if len(staged) == 2:
            both.set()
        return staged[-1]

    def step(name: str) -> None:
        if name == "sink.before_commit" and not displaced:
            # below the 15 s after which PostgreSQL ends a session that idles in a transaction
            displaced.append(one.displaced() if both.wait(10) else "nothing was read meanwhile")

    monkeypatch.setattr(SparkRows, "to_arrow", noted)
    made_up.send(range(100))
    one = query(max_offsets=30, step=step)
    until_landed(one)
    assert displaced == [None]
    made_up.check(reader)


def test_no_batch_is_read_before_a_large_one_has_landed(
    made_up: MadeUp,
    query: MakeQuery,
    until_landed: Callable[..., None],
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backlog goes in larger batches then."""
    original, begun = checkpoint.ends, threading.Event()
    early: list[Any] = []

    def ends(*arguments: Any) -> Any:
        begun.set()
        return original(*arguments)

    def step(name: str) -> None:
        if name == "sink.before_commit" and not early:
            begun.clear()
            made_up.send(range(60, 100))
            early.append(begun.wait(3))  # the next batch is there, and would begin in a fraction of that

    monkeypatch.setattr(checkpoint, "ends", ends)
    monkeypatch.setattr(batches, "AHEAD_OFFSETS", 0)
    made_up.send(range(60))
    until_landed(query(max_offsets=1000, step=step))
    assert early == [False]
    made_up.check(reader)


def test_behind_a_batch_as_large_as_may_be_the_next_is_read_while_it_is_landed(
    made_up: MadeUp,
    query: MakeQuery,
    until_landed: Callable[..., None],
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could not become larger by waiting."""
    original = SparkRows.to_arrow
    staged: list[Any] = []
    both = threading.Event()
    waited: list[bool] = []

    def noted(*arguments: Any) -> Any:
        staged.append(original(*arguments))
        if len(staged) == 2:
            both.set()
        return staged[-1]

    def step(name: str) -> None:
        if name == "sink.before_commit" and not waited:
            # below the 15 s after which PostgreSQL ends a session that idles in a transaction
            waited.append(both.wait(10))

    monkeypatch.setattr(SparkRows, "to_arrow", noted)
    monkeypatch.setattr(batches, "AHEAD_OFFSETS", 0)
    made_up.send(range(60))
    until_landed(query(max_offsets=30, step=step))
    assert waited == [True]
    made_up.check(reader)


def test_a_batch_that_does_not_land_is_noticed_although_no_other_comes(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """Spark has gone on, and has nothing to go on with: it is the query that has to say so."""
    failures = iter([True])

    def step(name: str) -> None:
        if name == "sink.before_commit" and next(failures, False):
            raise SystemExit(1)

    made_up.send(range(10))
    until_landed(query(step=step))
    assert next(failures, None) is None
    made_up.check(reader)


def test_two_threads_reduce_a_batch_of_their_own_each(spark: Any, checkout: Path) -> None:
    """A part of one batch is reduced again while the next one is reduced: there is one name for both."""
    domain = load_domain("trades", checkout / "avro", checkout / "sql")
    reduced = reduce.reducer(domain, {**domain.targets, **reduce.targets(spark, domain, checkout / "sql")})
    named: list[object] = []
    second = threading.Event()

    class Frame:
        """Is named, and lets somebody else be named before it is looked up."""

        def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802 - PySpark's own name
            named.append(self)
            second.wait(0.5) if len(named) == 1 else second.set()

        @property
        def sparkSession(self) -> Any:  # noqa: N802 - PySpark's own name
            return SimpleNamespace(sql=lambda statement: named[-1])

    frames = [Frame(), Frame()]
    found: dict[Any, Any] = {}
    threads = [threading.Thread(target=lambda one=one: found.update({one: reduced(one)})) for one in frames]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert found == {one: one for one in frames}


def test_a_query_that_spark_does_not_end_is_ended_later(
    made_up: MadeUp,
    query: MakeQuery,
    until_landed: Callable[..., None],
    reader: Reader,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark's own default is to wait for ever. The sink says so in a sentence, and goes on trying."""
    original, entered, go = SparkRows.to_arrow, threading.Event(), threading.Event()

    def stuck(*arguments: Any) -> Any:
        entered.set()
        go.wait(60)
        return original(*arguments)

    monkeypatch.setattr(SparkRows, "to_arrow", stuck)
    made_up.send(range(10))
    one = query()
    one.start()
    assert entered.wait(60)
    ours = spark.conf.get(STOP_TIMEOUT)
    assert ours != "0ms", "this is for ever"
    spark.conf.set(STOP_TIMEOUT, "1s")
    try:
        with raises(Retriable, Code.SPARK_QUERY):
            one.start()
    finally:
        go.set()
        spark.conf.set(STOP_TIMEOUT, str(ours))
    until_landed(one)
    made_up.check(reader)
