"""The bank on a real broker, real processors, Spark and Postgres: money moves while its machines are killed, and somebody looks.

What Jepsen calls the bank test: concurrent readers, who ask in every snapshot whether all the money is there.
"""

import itertools
import random
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from psycopg import sql

from onefold.chaos.load import Load
from onefold.chaos.readers import Readers
from onefold.config.settings import Settings
from onefold.processor.core.topology import Topology
from onefold.processor.io import admin
from onefold.processor.io.admin import lag
from onefold.spark_sink.contracts import load_domain
from onefold.stack.embedded import Infrastructure
from onefold.verify.invariants import broken, invariants
from onefold.verify.verdict import INVALID, VALID
from onefold.verify.verifier import verify
from onefold.workloads import bank
from onefold.workloads.shaping import Shape
from tests.integration.test_sink_merges import _merge
from tests.support.infrastructure import delete_topics
from tests.support.migrated import migrate_all
from tests.support.processes import drained, instance, judge, opened, send
from tests.support.sink import CrashOnce, SinkHere, supervised
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
SHAPE = Shape(keyless=0.02, hostile=0.005)


def test_all_money_is_there_in_every_snapshot_while_processors_and_the_sink_are_killed(
    fresh_domain: MakeDomain,
    client: dict[str, str],
    infrastructure: Infrastructure,
    sink_here: SinkHere,
    database: str,
    checkout: Path,
    tmp_path: Path,
) -> None:
    """Two processors share four partitions; one is killed, and another one joins; the sink crashes in a merge."""
    topology = fresh_domain("bank", 4)
    migrate_all(database, checkout / "sql")
    settings = Settings(bootstrap_servers=infrastructure.bootstrap_servers, postgres_dsn=database)
    with (
        Readers("bank", settings) as readers,
        instance(topology, client, tmp_path / "b", name="b"),
    ):
        eventually(lambda: len(opened(tmp_path / "b")) == 4, 30, "one processor has all tasks")
        with Load("bank", settings, 7):
            crash = CrashOnce("sink.after_merge", 4)
            sink = sink_here("bank", step=crash)
            with instance(topology, client, tmp_path / "a", name="a") as killed:
                eventually(lambda: len(opened(tmp_path / "a")) == 2, 30, "both processors have tasks")
                eventually(supervised(sink, lambda: crash.crashed), 120, "the sink has crashed")
                killed.kill()
                eventually(lambda: opened(tmp_path / "b").total() == 6, 30, "the other one has gone on")
            with instance(topology, client, tmp_path / "c", name="c"):
                eventually(lambda: opened(tmp_path / "c"), 30, "a third one has joined")
                eventually(supervised(sink, lambda: sink.running and sink.query.landed > 0), 90, "the sink goes on")
        drained(topology, client, 60)
        verdict = verify("bank", client=client, dsn=database, timeout_s=90)
    assert (verdict.outcome, verdict.findings) == (VALID, []), verdict.reason
    assert readers.said == []
    assert readers.looks > 20
    judge(topology, client)
    with psycopg.connect(database) as connection:
        money = connection.execute("SELECT total = opened, in_flight, total > 0 FROM bank.summary").fetchone()
        assert money == (True, 0, True)
        statuses = connection.execute("SELECT DISTINCT status FROM bank.transfers ORDER BY 1").fetchall()
        assert statuses == [("deposited",), ("returned",)]
        # Any other account may have nothing, and be as it was.
        richest = "SELECT account FROM bank.accounts ORDER BY balance DESC LIMIT 1"
        connection.execute(f"UPDATE bank.accounts SET balance = -balance WHERE account = ({richest})".encode())
    verdict = verify("bank", client=client, dsn=database, timeout_s=30)
    assert verdict.outcome == INVALID
    assert {found.where for found in verdict.findings if found.kind == "broken invariant"} == {
        "bank.no_debt",
        "bank.total",
    }


# --- landing, without Spark: every order in which partitions may land


Row = tuple[Any, ...]
#: The ledgers of two accounts that pay each other and one that is closed, each in its own partition: all that a task writes.
LEDGERS: dict[int, list[Row]] = {
    0: [
        (1, 1, "open", None, None, None, 10, 10, 10, False),
        (1, 2, "withdraw", 1, 1, 2, -4, 6, 10, False),
        (1, 3, "withdraw", 1, 2, 3, -5, 1, 10, False),
        (1, 4, "deposit", 2, 1, 1, 3, 4, 10, False),
        (1, 5, "return", 1, 2, 3, 5, 9, 10, False),
    ],
    1: [
        (2, 1, "open", None, None, None, 2, 2, 2, False),
        (2, 2, "deposit", 1, 1, 2, 4, 6, 2, False),
        (2, 3, "withdraw", 2, 1, 1, -3, 3, 2, False),
    ],
    2: [(3, 1, "open", None, None, None, 0, 0, 0, False), (3, 2, "close", None, None, None, 0, 0, 0, True)],
}


def batches(dice: random.Random) -> list[list[Row]]:
    """The lines cut into batches: each partition in order, and otherwise as it comes."""
    left = {partition: list(enumerate(lines)) for partition, lines in LEDGERS.items()}
    made = []
    while any(left.values()):
        batch: list[Row] = []
        for partition in left:
            count = dice.randrange(len(left[partition]) + 1)
            batch += [(*line, "bank.entries", partition, at) for at, line in left[partition][:count]]
            left[partition] = left[partition][count:]
        dice.shuffle(batch)
        made.append(batch)
    return [batch for batch in made if batch]


def tables(reader: "psycopg.Connection[Any]") -> list[list[Row]]:
    names = ("entries", "accounts", "transfers")
    asked = [sql.SQL("SELECT * FROM {} ORDER BY 1, 2").format(sql.Identifier("bank", name)) for name in names]
    return [reader.execute(query).fetchall() for query in asked]


def test_in_whatever_order_partitions_land_the_rules_hold_after_every_batch(
    database: str, reader: "psycopg.Connection[Any]", checkout: Path
) -> None:
    migrate_all(database, checkout / "sql")
    merge = load_domain("bank", checkout / "avro", checkout / "sql").targets["bank.entries"]
    rules, ahead = invariants("bank"), 0
    outcomes = []
    for seed in range(60):
        reader.execute("TRUNCATE bank.entries, bank.accounts, bank.transfers")
        landed = batches(random.Random(seed))
        for batch in itertools.chain(landed, landed[-1:]):
            _merge(reader, merge, batch)
            assert list(map(str, broken(reader, rules))) == [], f"seed {seed}"
            ahead += (reader.execute("SELECT in_flight FROM bank.summary").fetchone() or (0,))[0] < 0
        outcomes.append(tables(reader))
        assert outcomes[-1] == outcomes[0], f"seed {seed}"
    assert ahead > 10, "deposits have landed before their withdrawals"
    assert reader.execute("SELECT * FROM bank.summary").fetchall() == [(12, 0, 12, 12, 0)]


@pytest.mark.parametrize(
    "line",
    [(2, 3, "deposit", 1, 1, 2, 4, 10, 2, False), (1, 4, "return", 1, 1, 2, 4, 8, 10, False)],
    ids=["deposited twice", "deposited and returned"],
)
def test_a_transfer_that_settles_twice_breaks_the_total(
    database: str, reader: "psycopg.Connection[Any]", checkout: Path, line: Row
) -> None:
    migrate_all(database, checkout / "sql")
    merge = load_domain("bank", checkout / "avro", checkout / "sql").targets["bank.entries"]
    lines = [*LEDGERS[0][:3], *LEDGERS[1][:2], line]
    _merge(reader, merge, [(*each, "bank.entries", 0, at) for at, each in enumerate(lines)])
    assert [each.name for each in broken(reader, invariants("bank"))] == ["bank.total"]


# --- what the engine owes a pipeline that feeds itself


@pytest.mark.long  # 20 s; with tables and readers tests/chaos/test_replicas.py
def test_replicas_move_money_once_whichever_of_them_is_killed(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """A deposit is a decided output, which is published before it is the input of another task."""
    topology = fresh_domain("bank", 4)
    inputs = list(bank.generate(3, 1_200, shape=SHAPE, accounts=20))
    with ExitStack() as stack:

        def start(log: str) -> "subprocess.Popen[bytes]":
            options: dict[str, Any] = {"replicas": 2, "publishes_after_s": 0.1}
            started = instance(topology, client, tmp_path / log, name=log[0], **options)
            return stack.enter_context(started)

        running = [start("a0"), start("b0")]
        for number in range(6):
            logs = [sorted(tmp_path.glob(f"{name}*"), key=lambda path: int(path.name[1:]))[-1] for name in "ab"]
            eventually(partial(all_opened, logs), 30, "both have all tasks")
            send(client, inputs[200 * number : 200 * (number + 1)])
            running[number % 2].kill()
            running[number % 2].wait(10)
            running[number % 2] = start(f"{'ab'[number % 2]}{number + 1}")
        drained(topology, client, 60)
    judge(topology, client)


def all_opened(logs: list[Path]) -> bool:
    """Whether each of the instances has opened all four tasks."""
    return all(len(opened(log)) == 4 for log in logs)


def test_a_processor_makes_the_topic_that_only_its_pipeline_writes(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """Whoever writes the inputs makes those; with as many partitions as these it makes the other one."""
    topology = fresh_domain("bank", 3)
    kafka = AdminClient({**client})
    delete_topics(kafka, topology.fed)
    with instance(topology, client, tmp_path / "log"):
        eventually(lambda: len(opened(tmp_path / "log")) == 3, 30, "it has all tasks")
        assert len(kafka.list_topics().topics["bank.deposits"].partitions) == 3
        send(client, list(bank.generate(1, 300, shape=SHAPE, accounts=20)))
        drained(topology, client)
    judge(topology, client)


def test_what_was_just_written_into_the_queue_is_no_drained_queue(
    fresh_domain: MakeDomain, client: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two questions of one look at the lag, a deposit is queued."""
    topology = fresh_domain("bank", 1)
    assert lag(topology, client) == 0
    reached = admin._reached

    def meanwhile(*asked: Any) -> Any:
        producer = Producer(client)
        producer.produce("bank.deposits", b"queued")
        assert producer.flush(30) == 0
        # A partition that was made a moment ago may say for another moment that it is empty.
        eventually(lambda: admin.stable_end(asked[0], "bank.deposits", 0) == 1, 10, "the deposit can be read")
        return reached(*asked)

    monkeypatch.setattr(admin, "_reached", meanwhile)
    assert lag(topology, client) == 1
