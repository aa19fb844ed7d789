"""The whole sink, with a real broker, a real Postgres and a real Spark: whatever happens on the way, every record of
every topic is landed exactly once."""

import itertools
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured, Refused, Retriable
from onefold.processor.io.admin import connect
from onefold.spark_sink.contracts import load_domain
from onefold.spark_sink.errors import Rewind
from onefold.spark_sink.kafka.topics import KafkaTopics
from onefold.spark_sink.query_config import LINE_BYTES_MAX, QueryConfig
from onefold.spark_sink.spark.query import SinkQuery
from onefold.spark_sink.supervisor import QuerySupervisor
from tests.support.coded import raises
from tests.support.made_up_domain import MadeUp
from tests.support.proxy import Loss, PostgresProxy
from tests.support.sink import LANDED_IN_S
from tests.support.waiting import eventually

Reader = psycopg.Connection[Any]
MakeQuery = Callable[..., SinkQuery]


class Crash(BaseException):
    """What a fault point throws."""


pytestmark = pytest.mark.usefixtures("made_up_topics")


@pytest.mark.long  # 15 s
def test_records_that_cannot_be_landed_are_kept_with_the_reason(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """Whatever is in the topic, in parts or whole: the committed records around it are written, and it is kept with its bytes."""
    good = made_up.encode(made_up.notes, {"id": 5000, "text": "x"})
    nul = made_up.encode(made_up.notes, {"id": 5001, "text": "a\0b"})
    refused = made_up.encode(made_up.readings, {"key": 99, "version": 1, "label": "", "amount": 13})
    bad: list[tuple[str, int, bytes | None]] = [
        (made_up.notes, 0, b""),
        (made_up.notes, 0, b"{}"),
        (made_up.notes, 1, None),
        (made_up.notes, 0, b"\xc3\x01" + b"\0" * 8 + good[10:]),  # another contract
        (made_up.notes, 1, good[:-1]),  # cut off
        (made_up.notes, 1, good[:10] + b"\x02\x7f"),  # a text of -64 characters
        (made_up.notes, 0, good[:10] + b"\x02" + b"\xfe\xff\xff\xff\x0f" + b"x"),  # a text of two thousand million
        (made_up.notes, 0, nul),
        (made_up.notes, 0, good[:-1] + b"\xff"),  # no UTF-8
        (made_up.readings, 0, refused),  # the table's own CHECK
    ]
    for times, line_bytes_max in enumerate((500, LINE_BYTES_MAX), 1):
        made_up.send(range(20 * times, 20 * times + 10))
        made_up.send_raw(bad)
        made_up.send(range(1000, 1010), commit=False)
        made_up.send(range(20 * times + 10, 20 * times + 20))
        one = query(line_bytes_max=line_bytes_max)
        until_landed(one)
        one.stop()
        made_up.check(reader)
        kept = reader.execute(
            'SELECT value, reason FROM onefold.rejected ORDER BY topic, partition, "offset"'
        ).fetchall()
        reasons = {bytes(value or b""): reason for value, reason in kept}
        assert sorted(times * [value or b"" for _, _, value in bad]) == sorted(bytes(value or b"") for value, _ in kept)
        assert "not an Avro single object" in reasons[b"{}"]
        assert f"the body is no {made_up.name}.Notes" in reasons[good[:-1]]
        assert "NUL" in reasons[nul]
        assert "UTF-8" in reasons[good[:-1] + b"\xff"]
        assert "readings_amount_check" in reasons[refused]


@pytest.mark.long  # 10 s
def test_batches_start_no_more_often_than_asked_for(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """However often records come."""
    committed: list[float] = []

    def step(name: str) -> None:
        if name == "sink.after_commit":
            committed.append(time.monotonic())

    one = query(step=step, interval_s=1.0)
    for _ in range(6):
        made_up.send(range(made_up.sent, made_up.sent + 1))
        until_landed(one)
    assert len(committed) >= 6
    assert len(committed) <= committed[-1] - committed[0] + 2
    made_up.check(reader)


# Of whole batches: `test_sink_trades.py`, with sums.
@pytest.mark.promise("rows-with-offsets")
@pytest.mark.long  # 15 s
def test_a_crash_in_a_part_of_a_batch_changes_nothing(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """The same sink crashes at each step once, part after part, and goes on by itself behind the last part that landed."""
    waiting = ["sink.before_cas", "sink.after_copy", "sink.before_commit"]
    crashed_in_this_batch: list[str] = []

    def step(name: str) -> None:
        if name == "sink.before_cas" and len(crashed_in_this_batch) == 1:
            crashed_in_this_batch.append("second try")  # let it through
        elif waiting and name == waiting[0] and not crashed_in_this_batch:
            crashed_in_this_batch.append(waiting.pop(0))
            raise Crash(name)
        elif name == "sink.after_commit":
            crashed_in_this_batch.clear()

    one = query(line_bytes_max=300, step=step, max_offsets=40)
    made_up.send(range(30))
    until_landed(one)
    while waiting:
        made_up.send(range(made_up.sent, made_up.sent + 5))
        until_landed(one)
    made_up.check(reader)


@pytest.mark.promise("rows-with-offsets")
@pytest.mark.long  # 8 s
def test_a_lost_commit_changes_nothing(
    made_up: MadeUp,
    query: MakeQuery,
    until_landed: Callable[..., None],
    reader: Reader,
    postgres_proxy: PostgresProxy,
) -> None:
    """Its request is lost, or its answer."""
    waiting: list[Loss] = []

    def step(name: str) -> None:
        if name == "sink.before_commit" and waiting:
            postgres_proxy.lose_next_commit(waiting.pop())

    one = query(postgres_dsn=postgres_proxy.dsn, step=step)
    losses: tuple[Loss, ...] = ("request", "answer")
    for loss in losses:
        waiting.append(loss)
        made_up.send(range(made_up.sent, made_up.sent + 20))
        until_landed(one)
        assert postgres_proxy.lost.is_set()
        made_up.check(reader)


@pytest.mark.promise("headers-of-others")
def test_what_the_next_pipeline_puts_into_an_output_is_no_row(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader, client: dict[str, str]
) -> None:
    """A copy or a replay, whatever it holds; also at the end of a partition. Other headers change nothing."""
    one = query()
    made_up.send(range(6))
    until_landed(one)
    producer = Producer(client)
    place, signature = f"{made_up.notes}/0/0".encode(), ("onefold-pipeline", b"cluster/next/life")
    value = made_up.encode(made_up.notes, {"id": 0, "text": "again"})
    for mine in ([("onefold-source", place), ("onefold-timestamp", b"1")], [("onefold-replays", place)]):
        for copied in (value, b"no note", None):
            producer.produce(made_up.notes, copied, b"k", 1, headers=[*mine, signature])
    other = made_up.encode(made_up.notes, {"id": 100, "text": "other headers"})
    producer.produce(made_up.notes, other, b"k", 0, headers=[("onefold-source", b"in/0/7"), ("trace", None)])
    assert producer.flush(20) == 0
    until_landed(one)
    notes = reader.execute(f"SELECT id, landings FROM {made_up.name}.notes ORDER BY id").fetchall()
    assert notes == [*((number, 1) for number in range(6)), (100, 1)]
    assert reader.execute("SELECT count(*) FROM onefold.rejected").fetchone() == (0,)


@pytest.mark.promise("lost-checkpoints")
def test_the_checkpoint_may_be_damaged_at_any_moment(
    made_up: MadeUp, query: MakeQuery, plan: QueryConfig, until_landed: Callable[..., None], reader: Reader
) -> None:
    """Deleted or garbled, between batches and in the middle of one: the truth is in Postgres."""
    hits, turns = iter(range(1000)), itertools.cycle(("deleted", "garbled"))
    ruined: list[str] = []

    def ruin(damage: str) -> None:
        for home in plan.checkpoint_root.glob(f"{plan.writer}.*/{made_up.name}/*"):
            if damage == "deleted":
                shutil.rmtree(home, ignore_errors=True)
            else:
                for file in home.glob("offsets/*"):
                    file.write_text("v1\nnot json", encoding="utf-8")

    def step(name: str) -> None:
        if name == "sink.before_merge" and next(hits) % 3 == 1:
            ruined.append(next(turns))
            ruin(ruined[-1])

    one = query(max_offsets=20, step=step)
    made_up.send(range(60))
    until_landed(one)
    for damage, start in (("deleted", 60), ("garbled", 70)):
        ruin(damage)
        made_up.send(range(start, start + 10))
        until_landed(one)
    made_up.check(reader)
    assert set(ruined) == {"deleted", "garbled"}


@pytest.mark.promise("two-sinks")
@pytest.mark.long  # 12 s
def test_two_sinks_at_once_land_everything_once(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """With batches of different sizes, so that they overlap in every possible way."""
    pair = query(writer="one", max_offsets=30), query(writer="two", max_offsets=70, line_bytes_max=500)
    made_up.send(range(100))
    until_landed(*pair)
    made_up.send(range(100, 150))
    until_landed(*pair)
    made_up.check(reader)


def test_a_sink_that_is_stopped_in_the_middle_of_a_batch_lands_nothing_of_it(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """Stopping closes the connection, which must not commit what the batch has done so far."""
    entered, go = threading.Event(), threading.Event()

    def step(name: str) -> None:
        if name == "sink.after_cas" and not entered.is_set():
            entered.set()
            go.wait(20)

    made_up.send(range(20))
    one = query(step=step)
    one.start()
    assert entered.wait(LANDED_IN_S)
    stopping = threading.Thread(target=one.stop)
    stopping.start()
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onefold-sink test' AND datname = %s"
    name = [reader.info.dbname]
    eventually(lambda: reader.execute(sessions, name).fetchone() == (0,), 20, "the connection is closed")
    go.set()
    stopping.join(30)
    assert reader.execute("SELECT sum(next_offset) FROM onefold.ledger").fetchone() == (0,)
    until_landed(one)
    made_up.check(reader)


def test_postgres_rewound_to_an_old_backup_is_filled_up_again(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """The database goes back under a running sink, positions and rows together: the sink goes back too. A batch notices, or,
    where the topics are quiet, the supervisor's audit.
    """
    one = query()
    made_up.send(range(20))
    until_landed(one)
    reader.execute(f"CREATE TABLE old AS TABLE onefold.ledger; CREATE TABLE notes AS TABLE {made_up.name}.notes")

    def rewind() -> None:
        reader.execute(
            f"BEGIN; DELETE FROM onefold.ledger; INSERT INTO onefold.ledger TABLE old;"
            f"DELETE FROM {made_up.name}.notes; INSERT INTO {made_up.name}.notes TABLE notes; COMMIT"
        )

    made_up.send(range(20, 30))
    until_landed(one)
    rewind()
    made_up.send(range(30, 40))
    assert isinstance(eventually(one.failure, LANDED_IN_S, "the batch notices"), Rewind)
    until_landed(one)
    made_up.check(reader)
    rewind()
    until_landed(one)
    made_up.check(reader)


def test_a_partition_that_is_added_is_landed_from_its_start(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader, client: dict[str, str]
) -> None:
    one = query()
    made_up.send(range(10))
    until_landed(one)
    admin = connect(client)
    for future in admin.create_partitions([NewPartitions(topic, 3) for topic in made_up.topics]).values():
        future.result()
    eventually(lambda: len(admin.list_topics(made_up.notes).topics[made_up.notes].partitions) == 3, 20, "3 partitions")
    made_up.send(range(10, 40), partitions=3)
    until_landed(one)
    made_up.check(reader)


@pytest.mark.promise("recreated-topics")
def test_a_topic_that_was_made_anew_is_refused(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """While the sink is down: the new topic is even longer than what was landed, so no offset looks wrong."""
    one = query()
    made_up.send(range(10))
    until_landed(one)
    one.stop()
    made_up.make_anew()
    made_up.send(range(100, 140))
    with raises(Refused, Code.TOPIC_RECREATED):
        one.start()


@pytest.mark.promise("recreated-topics")
def test_a_topic_that_is_made_anew_under_a_running_sink_is_refused(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    one = query()
    made_up.send(range(10))
    until_landed(one)
    made_up.make_anew()
    made_up.send(range(100, 140))
    with raises(Refused, Code.TOPIC_RECREATED):
        until_landed(one)
    assert reader.execute(f"SELECT count(*) FROM {made_up.name}.notes WHERE id >= 100").fetchone() == (0,)


def test_a_log_that_is_not_what_was_landed_is_refused(
    made_up: MadeUp, query: MakeQuery, until_landed: Callable[..., None], reader: Reader
) -> None:
    """The ledger is changed instead of the log: what matters is that they differ."""
    one = query()
    made_up.send(range(10))
    until_landed(one)
    one.stop()
    reader.execute("CREATE TABLE right_ledger AS TABLE onefold.ledger")
    for tamper, sentence in (
        ("last_fingerprint = last_fingerprint + 1", "is not the one that was written"),
        ("last_offset = next_offset - 1", "is not the one that was written"),  # where only a marker is
        ("next_offset = next_offset + 1000", "Kafka lost records"),
        ("topic_id = 'another'", "was deleted and recreated"),
    ):
        reader.execute("BEGIN; DELETE FROM onefold.ledger; INSERT INTO onefold.ledger TABLE right_ledger; COMMIT")
        reader.execute(f"UPDATE onefold.ledger SET {tamper} WHERE topic = '{made_up.notes}' AND partition = 1")
        with pytest.raises(Refused, match=sentence):
            one.start()


def test_a_topic_that_is_missing_is_waited_for_with_the_reason(
    made_up: MadeUp, query: MakeQuery, plan: QueryConfig, database: str
) -> None:
    with (
        raises(Retriable, Code.KAFKA_SILENT, "127.0.0.1:1"),
        closing(KafkaTopics("127.0.0.1:1", {}, patience_s=0.5)) as topics,
    ):
        topics.reach([made_up.notes])
    two = query(postgres_dsn="host=127.0.0.1 port=1 dbname=x")
    with raises(Retriable, Code.POSTGRES_SILENT):
        two.start()
    with raises(Retriable, Code.GAVE_UP):
        _tick_until_it_gives_up(QuerySupervisor(two, 0.0, time.monotonic))


def test_a_merge_that_does_not_work_is_named(made_up: MadeUp, query: MakeQuery, plan: QueryConfig) -> None:
    path = plan.sql_root / f"merge/{made_up.notes}.sql"
    path.write_text(path.read_text(encoding="utf-8").replace("landings + 1", "landing + 1"), encoding="utf-8")
    domain = load_domain(made_up.name, plan.sql_root.parent / "avro", plan.sql_root)
    with raises(Misconfigured, Code.SQL_WRONG, f"merge/{made_up.notes}.sql"):
        query(domain=domain).start()


def _tick_until_it_gives_up(supervisor: QuerySupervisor) -> None:
    eventually(lambda: supervisor.tick(), 20, "it gives up")
