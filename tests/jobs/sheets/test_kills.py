"""Real workers over a real queue, Postgres and store, killed at random moments; each job is delivered three times, out of order.
At the end all snapshots are thrown away, and made once more.

With KILLS=200 in the environment there are as many; the suite has a few.
"""

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from onefold.jobs import topics
from onefold.jobs.objects.store import Store
from onefold.jobs.protocols import Job
from onefold.processor.core.topology import Topology
from onefold.processor.io import contracts
from onefold.processor.io.avro_encoder import encoder
from onefold.verify.objects import open_store as open_judged
from onefold.workloads.sheet_snapshots import Line, Made, judged
from tests.support.command_line import Onefold
from tests.support.objects import StorePlace
from tests.support.sheets import QUEUE, SheetLog, prepared
from tests.support.waiting import eventually

KILLS = int(os.environ.get("KILLS", "5"))
SHEETS, WORKERS = 4, 3
# So many that workers are at it while all kills come; and edits in each that no chunk stays as it is.
SNAPSHOTS = max(6, KILLS)
EDITS = 20
# Some chunks, so that a job has checkpoints to go on from.
ROWS, COLUMNS = 1_500, 8

Placed = tuple[int, int]


def made_up(dsn: str, number: int, dice: random.Random) -> SheetLog:
    """A sheet that begins with an import, and the edits between its snapshots."""
    log = SheetLog(dsn, f"sheet-{number}")
    log.take_in({(row, col): Decimal(row) for row in range(1, ROWS) for col in range(1, COLUMNS)})
    for _ in range(SNAPSHOTS):
        for _ in range(EDITS):
            log.edit((dice.randrange(1, ROWS), dice.randrange(1, COLUMNS)), Decimal(dice.randrange(10**6)))
        log.ask()
    return log


def put_three_times(client: dict[str, str], jobs: list[Job], dice: random.Random) -> None:
    """Each job twice as whoever puts it back, in any order, and then once as the fold puts it."""
    contract = contracts.load()[QUEUE]
    encode = encoder(contract.schema, contract.prefix)
    producer = Producer({**client, "partitioner": "murmur2_random"})
    again = [*jobs, *jobs]
    dice.shuffle(again)
    for job in again:
        key, value = topics.encode(job)
        producer.produce(topics.again_of(QUEUE), value, key)
    for job in jobs:
        producer.produce(QUEUE, encode({"log_id": job.log_id, **job.place._asdict()}), job.log_id.encode())
    assert producer.flush(30) == 0


class Workers:
    """Processes of `onefold work sheets`, which are started again when they are killed."""

    def __init__(self, onefold: Onefold) -> None:
        self._onefold = onefold
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._running = [self._one(number) for number in range(WORKERS)]

    def kill(self, number: int) -> None:
        self._running[number].kill()
        self._running[number].wait(10)
        self._running[number] = self._one(number)

    def stop(self) -> list[int]:
        for process in self._running:
            process.terminate()
        return [process.wait(60) for process in self._running]

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait(10)

    def _one(self, number: int) -> "subprocess.Popen[bytes]":
        return self._onefold.start("work", "sheets", "--instance", str(number))


def command_line(client: dict[str, str], dsn: str, place: StorePlace, folder: Path) -> Onefold:
    (folder / "home").mkdir()
    onefold = Onefold(folder / "home")
    onefold.environment |= {
        "ONEFOLD_BOOTSTRAP_SERVERS": client["bootstrap.servers"],
        "ONEFOLD_POSTGRES_DSN": dsn,
        "ONEFOLD_OBJECTS": place.url,
        "ONEFOLD_OBJECTS_ENDPOINT": place.endpoint or "",
        "ONEFOLD_JOB_TIMEOUT_S": "3",
    }
    return onefold


@contextmanager
def workers(onefold: Onefold) -> Iterator[Workers]:
    made = Workers(onefold)
    try:
        yield made
    finally:
        made.end()


def lines(log: SheetLog) -> dict[int, Line]:
    """The log as the judge has it."""
    found = {}
    for _, entry, _, kind, _, row, col, number, text, _, object_id, _ in log.rows:
        content = ("n", number) if number is not None else ("t", text)
        found[entry] = Line(kind, (row or 0, col or 0), content, object_id or "")
    return found


def made_by(rows: list[Any]) -> dict[tuple[str, int], Made]:
    return {(log_id, entry): Made(segment, result["root"], result) for log_id, segment, entry, result, _ in rows}


def snapshots(store: Store) -> dict[str, bytes]:
    return {name: store.get(name) for name in store.ids("snapshots/")}


@pytest.mark.parametrize(
    "store_place", ["folder", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.matrix])], indirect=True
)
def test_snapshots_are_made_in_order_whatever_is_killed(
    fresh_domain: Callable[..., Topology],
    client: dict[str, str],
    jobs_database: str,
    store_place: StorePlace,
    tmp_path: Path,
) -> None:
    """Every one of them, one set of objects, and nothing besides; and again the same, byte for byte."""
    fresh_domain("sheets")
    dsn = prepared(jobs_database)
    dice = random.Random(KILLS)
    store = store_place.open()
    logs = [made_up(dsn, number, dice) for number in range(SHEETS)]
    for log in logs:
        log.land(store)
    jobs = [job for log in logs for job in log.jobs]
    onefold = command_line(client, dsn, store_place, tmp_path)

    with psycopg.connect(dsn, autocommit=True) as connection, workers(onefold) as crew:

        def done() -> list[Any]:
            asked = "SELECT log_id, segment, entry, result, done_at FROM onefold.done WHERE queue = %s ORDER BY done_at"
            return connection.execute(asked, (QUEUE,)).fetchall()

        def steps() -> Any:
            """Changes with every claim, every checkpoint, and every job that is done."""
            asked = (
                "SELECT (SELECT count(*) FROM onefold.done), (SELECT coalesce(sum(increment), 0) FROM onefold.pending)"
            )
            return connection.execute(asked).fetchone()

        def moved(seen: Any) -> bool:
            return bool(steps() != seen)

        def all_done() -> list[Any]:
            eventually(
                lambda: len(done()) == len(jobs), 240 + len(jobs), f"of {len(jobs)} snapshots {len(done())} are made"
            )
            left = "SELECT count(*) FROM onefold.pending"
            eventually(lambda: connection.execute(left).fetchone() == (0,), 30, "nothing is pending")
            rows = done()
            for log in logs:
                assert [entry for log_id, _, entry, *_ in rows if log_id == log.sheet] == list(log.model), "in order"
            return rows

        crew.start()
        eventually(lambda: topics.again_of(QUEUE) in known(client), 60, "the workers have made their topics")
        put_three_times(client, jobs, dice)
        for _ in range(KILLS):
            seen = steps()
            eventually(partial(moved, seen), 60, "somebody is at work")
            crew.kill(dice.randrange(WORKERS))
        made = made_by(all_done())
        judge = open_judged(store_place.url, store_place.endpoint)
        assert judged({log.sheet: lines(log) for log in logs}, made, judge)[1] == []

        before = snapshots(store)
        for name in before:
            store.delete(name)
        told = onefold("jobs", "requeue", "sheets", "--since", "2020-01-01")
        assert f"{QUEUE}: {len(jobs)} were requeued" in told
        all_done()
        assert snapshots(store) == before
        assert f"{QUEUE}: nothing is missing" in onefold("jobs", "requeue", "sheets", "--since", "2020-01-01")
        assert crew.stop() == [0] * WORKERS


def known(client: dict[str, str]) -> set[str]:
    return set(Producer(client).list_topics(timeout=10).topics)
