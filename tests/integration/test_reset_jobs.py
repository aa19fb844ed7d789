"""Starting a pipeline over whose jobs are done by workers, on a real broker, a real PostgreSQL and a store: killed at every step,
refused while a worker lives, and with the same tables and snapshots at the end.
"""

import json
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from onefold.cli.commands.reset import jobs_of
from onefold.cli.main import run
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, UNAVAILABLE
from onefold.jobs import topics
from onefold.jobs.apps.sheets.effects import FINISHED, snapshots
from onefold.jobs.context import Context
from onefold.jobs.objects import open_store
from onefold.jobs.objects.store import Store
from onefold.jobs.pending import PostgresPending
from onefold.jobs.protocols import Job
from onefold.jobs.worker import Limits, Worker
from onefold.operate.reset.reset import STEPS, Reset
from onefold.operate.reset.session import Session
from onefold.processor.core.errors import Retriable
from onefold.processor.core.stored import RESETTING
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import ask_topic_ids, connect, existing
from onefold.verify.verifier import verify
from onefold.workloads import sheets
from tests.support.coded import code_of, raises
from tests.support.command_line import Onefold
from tests.support.dying import dies
from tests.support.migrated import migrate_all
from tests.support.processes import drained, instance, judge, nobody_in, records, send
from tests.support.rooms import ROOT
from tests.support.sheets import SheetLog
from tests.support.simulated_jobs import SimulatedQueue
from tests.support.sink import SinkHere, supervised
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
QUEUES = (sheets.JOBS, sheets.OBJECTS)
# Before the queues' rows and objects are removed, after that, and when workers' groups and reports are gone too.
AROUND_JOBS = ("tables", "jobs", "inputs")
OLD_REPORT = {"sheet_id": "sheet-1", "segment": 0, "entry": 101, "root": "snapshots/old", "cells": 1, "size": 1}
# Of two sheets, which only edits make: their entries have one order, also when they are folded again.
EDITS = [one for one in sheets.generate(1, 600, sheets=2) if one.topic == sheets.EDITS]


class Site:
    """The sheets, with a store."""

    def __init__(self, topology: Topology, client: dict[str, str], dsn: str, folder: Path) -> None:
        self.topology, self.client, self.dsn, self.folder = topology, client, dsn, folder
        self.objects = (folder / "objects").as_uri()
        servers = {"bootstrap_servers": client["bootstrap.servers"], "postgres_dsn": dsn}
        self.options: dict[str, Any] = {**servers, "home": str(folder), "objects": self.objects}

    @property
    def store(self) -> Store:
        return open_store(self.objects)

    def reset(self, *, inputs: bool = False) -> Reset:
        settings = Settings(**self.options)
        return Reset("sheets", settings, inputs=inputs, jobs=jobs_of("sheets", settings))

    def fold(self) -> None:
        with instance(self.topology, self.client, self.folder / "log"):
            drained(self.topology, self.client)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query).fetchall()

    def work(self) -> None:
        """What workers of before leave behind, of each kind."""
        for queue in QUEUES:
            topics.create(connect(self.client), queue)
        producer = Producer({**self.client, "partitioner": "murmur2_random"})
        producer.produce(FINISHED, json.dumps({**OLD_REPORT, "chunks": 1, "shared": 0}).encode(), b"sheet-1")
        producer.produce(topics.again_of(sheets.JOBS), b"{}", b"sheet-1")
        assert producer.flush(20) == 0
        with psycopg.connect(self.dsn) as connection:
            for queue in (*QUEUES, "orders.mails"):
                connection.execute(
                    "INSERT INTO onefold.pending VALUES (%s, 's', 0, 1, '{}') ON CONFLICT DO NOTHING", (queue,)
                )
                connection.execute(
                    "INSERT INTO onefold.done VALUES (%s, 's', 0, 2, '{}', 0, now()) ON CONFLICT DO NOTHING", (queue,)
                )
        self.store.put("snapshots/old", b"{}")
        self.store.put("payloads/kept", b'[1,1,"n","1"]\n')
        for queue in QUEUES:
            with closing(self.group(queue)) as consumer:
                consumer.commit(offsets=[TopicPartition(queue, 0, 1)], asynchronous=False)

    def cut_resets(self) -> None:
        """As a failover would, or somebody who takes a reset for dead."""
        mine = "FROM pg_stat_activity WHERE application_name = 'onefold-reset sheets' AND datname = current_database()"
        self.rows(f"SELECT pg_terminate_backend(pid) {mine}")
        eventually(lambda: not self.rows(f"SELECT pid {mine}"), 20, "the session has ended")

    def everything(self) -> Any:
        """What a reset deletes, as it is now."""
        admin = connect(self.client)  # answers nobody when it is gone
        ids = ask_topic_ids(admin, [topic for topic in existing(admin) if topic.startswith("sheets.")])()
        groups = sorted(one.group_id for one in admin.list_consumer_groups().result().valid)
        rows = [self.rows(f"SELECT queue FROM onefold.{table} ORDER BY 1") for table in ("pending", "done")]
        return ids, groups, rows, [*self.store.ids()]

    def group(self, queue: str) -> Consumer:
        return Consumer({**self.client, "group.id": topics.group_of(queue), "enable.auto.commit": False})

    def left(self) -> set[str]:
        """What is there of that."""
        there = existing(connect(self.client))
        found = {f"records of {topic}" for topic in (FINISHED,) if topic in there and records(self.client, topic)}
        found |= {
            topic for queue in QUEUES for topic in (topics.again_of(queue), topics.dead_of(queue)) if topic in there
        }
        for table in ("pending", "done"):
            found |= {f"{table} {queue}" for (queue,) in self.rows(f"SELECT queue FROM onefold.{table}")}
        admin = connect(self.client)  # answers nobody when it is gone
        groups = {one.group_id for one in admin.list_consumer_groups().result().valid}
        found |= groups & {topics.group_of(queue) for queue in QUEUES}
        return found | {*self.store.ids()} | {f"mark of {mark.name}" for mark in self.store.marks()}


#: What belongs to another pipeline, and what clients have uploaded.
STAYS = {"pending orders.mails", "done orders.mails", "payloads/kept"}


@pytest.fixture
def site(
    fresh_domain: MakeDomain, client: dict[str, str], database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Site:
    nobody_in(client, "onefold-sheets", *map(topics.group_of, QUEUES))
    made = Site(fresh_domain("sheets"), client, database, tmp_path)
    for name, value in made.options.items():
        monkeypatch.setenv(f"ONEFOLD_{name.upper()}", value)
    migrate_all(database, ROOT / "sql")
    send(client, EDITS)
    return made


@contextmanager
def worker(site: Site, name: str = "home") -> Iterator["subprocess.Popen[bytes]"]:
    (site.folder / name).mkdir()
    onefold = Onefold(site.folder / name)
    onefold.environment |= {
        "ONEFOLD_BOOTSTRAP_SERVERS": site.client["bootstrap.servers"],
        "ONEFOLD_POSTGRES_DSN": site.dsn,
        "ONEFOLD_OBJECTS": site.objects,
    }
    process = onefold.start("work", "sheets")
    try:
        yield process
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(10)


@pytest.mark.promise("resets-with-jobs")
@pytest.mark.parametrize(
    "steps", [AROUND_JOBS, pytest.param(STEPS, marks=pytest.mark.matrix)], ids=["around jobs", "all"]
)
def test_a_reset_with_jobs_that_is_killed_at_every_step_is_ended_by_another_one(
    site: Site, steps: Sequence[str]
) -> None:
    """Nothing of what workers have left is there then, of any kind; and a stale report is in no new row. All steps without
    jobs, and that nobody begins between the two, are in test_reset.py.
    """
    site.fold()
    for step in steps:
        site.work()
        assert len(site.left()) == len(STAYS) + 1 + 4 + 4 + 2 + 1
        dies("reset", "sheets", site.options, step)
        site.reset().run()
        assert site.left() == STAYS, step
        site.fold()
        assert judge(site.topology, site.client).counts.accepted == len(EDITS)


@pytest.mark.long  # 20 s
@pytest.mark.promise("resets-wait-for-workers")
def test_it_is_refused_while_a_worker_runs_or_is_frozen(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka has given it up by then, and PostgreSQL has not."""
    site.fold()

    def sessions() -> set[str]:
        of_workers = "application_name LIKE 'onefold-worker %' AND datname = current_database()"
        return {name for (name,) in site.rows(f"SELECT application_name FROM pg_stat_activity WHERE {of_workers}")}

    def members(queue: str) -> list[Any]:
        group = topics.group_of(queue)
        admin = connect(site.client)  # answers nobody when it is gone
        return list(admin.describe_consumer_groups([group])[group].result().members or ())

    with worker(site) as process:
        eventually(lambda: all(map(members, QUEUES)), 60, "it works")
        (name,) = sessions() - {"onefold-worker snapshots"}  # the effect's, once it has a job
        assert run(["reset", "sheets", "--yes"]) == REFUSED
        assert code_of(capsys.readouterr().err, name) is Code.STILL_RUNNING
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: not any(map(members, QUEUES)), 30, "Kafka has given it up")
        assert run(["reset", "sheets", "--yes"]) == REFUSED
        assert code_of(capsys.readouterr().err, name) is Code.STILL_RUNNING
        with raises(UserError, Code.STILL_RUNNING, "sheets"):
            site.reset().run()
        process.send_signal(signal.SIGCONT)
    assert run(["reset", "sheets", "--yes"]) == 0


@pytest.mark.promise("resets-wait-for-workers")
def test_a_worker_that_sleeps_through_a_reset_leaves_nothing_in_the_new_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session was cut, and it does not know: it has made a snapshot, and is about to write the root and to say so."""
    log = SheetLog(site.dsn, "sheet-1")
    for row in range(1, 101):
        log.edit((row, 1), Decimal(row))
    queue = SimulatedQueue(lambda: 0.0, random.Random(1), lambda seconds: None)
    queue.put(log.ask())
    log.land()
    with closing(PostgresPending(site.dsn, "1", "sheets")) as pending:
        context = Context("sheets", site.dsn, site.client, lambda: site.store, site.folder).held_by(pending.still)
        effect = snapshots(context)
        finish = effect.finish

        def sleeps(job: Job, state: Any) -> dict[str, Any]:
            assert [*site.store.ids("snapshots/")], "it has come that far"
            of_workers = "application_name LIKE 'onefold-w%' AND datname = current_database()"
            site.rows(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {of_workers}")
            site.reset().run()
            return finish(job, state)

        monkeypatch.setattr(effect, "finish", sleeps)
        with pytest.raises(psycopg.Error):
            Worker(queue, pending, effect, Limits(), clock=lambda: 0.0, dice=lambda: 0.5).work(0.0)
    assert records(site.client, FINISHED) == []
    assert [*site.store.ids()] == []
    for table in ("pending", "done"):
        assert site.rows(f"SELECT queue FROM onefold.{table}") == []


@pytest.mark.long  # 19 s
@pytest.mark.promise("resets-that-slept")
def test_a_reset_that_has_lost_its_session_deletes_nothing_more(site: Site) -> None:
    """Another one may have come to its end since, and everything be of the new run."""
    site.fold()
    for step in STEPS[:-1]:
        site.work()
        seen: list[Any] = []

        def cut(name: str, step: str = step, seen: list[Any] = seen) -> None:
            if name == step:
                site.cut_resets()
                seen.append(site.everything())

        with pytest.raises(UserError, match=r"session in PostgreSQL has ended|PostgreSQL did not do it"):
            site.reset().run(cut)
        assert [site.everything()] == seen, step
        site.reset().run()
        assert site.left() == STAYS, step


@pytest.mark.promise("resets-that-slept")
def test_a_reset_that_has_lost_its_session_marks_no_progress(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor of the new run would end for it."""
    site.fold()
    empty = Reset._empty_tables

    def cut(reset: Reset, session: Session, *, really: bool = True) -> None:
        empty(reset, session, really=really)
        site.cut_resets()

    monkeypatch.setattr(Reset, "_empty_tables", cut)
    with pytest.raises(UserError, match="session in PostgreSQL has ended"):
        site.reset().run()
    values = [record.value for record in records(site.client, site.topology.changelog)]
    assert values
    assert json.dumps(RESETTING).encode() not in values


class Slow(Producer):
    """What it sends is not there in time."""

    def flush(self, timeout: float = -1) -> int:
        return 1


def test_a_reset_whose_mark_kafka_does_not_take_deletes_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session would be asked before Kafka has the record, so that the answer says nothing."""
    site.fold()
    site.work()
    before = site.everything()
    with monkeypatch.context() as patched:
        patched.setattr("onefold.kafka_client.producer", Slow)
        with raises(UserError, Code.TOPIC_UNWRITABLE) as raised:
            site.reset().run()
    assert raised.value.exit_code == UNAVAILABLE
    assert site.everything() == before
    site.reset().run()
    assert site.left() == STAYS


def test_no_worker_begins_beside_a_reset(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """At none of its steps; and the plan that is asked for has what is deleted then. Another reset takes it for no worker."""
    site.work()
    reset = site.reset()
    plan = reset.plan()
    assert plan.jobs == dict.fromkeys(QUEUES, (1, 1))
    assert {FINISHED, *(topics.again_of(queue) for queue in QUEUES)} <= plan.topics.keys()
    assert [*plan.inputs] == [sheets.EDITS, sheets.UPLOADS]
    assert plan.effects == ["all 1 objects below snapshots/ in the store: the worker makes the snapshots again"]

    def tried(step: str) -> None:
        with raises(Retriable, Code.RESET_INCOMPLETE, "sheets"):
            PostgresPending(site.dsn, "1", "sheets")
        if step == "topics":
            assert run(["reset", "sheets", "--yes"]) == REFUSED
            assert code_of(capsys.readouterr().err, "sheets") is Code.COMMAND_RUNNING

    reset.run(tried)
    PostgresPending(site.dsn, "1", "sheets").close()


def test_with_the_inputs_uploads_are_left_to_the_sweep(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing names them any more; but a client may be about to."""
    site.work()
    assert run(["reset", "sheets", "--inputs", "--yes"]) == 0
    told = capsys.readouterr().out
    assert "  of sheets.jobs all jobs, 1 pending and 1 done, and the consumer group of its workers\n" in told
    assert "  the claim to all 1 objects below payloads/ in the store: `onefold sheets sweep` finds them then\n" in told
    assert "sheets starts over: run its processors, its workers and a sink, then `onefold verify sheets`." in told
    assert site.left() == {*STAYS, "mark of payloads/kept"}
    assert records(site.client, sheets.EDITS) == []


@pytest.mark.long  # 40 s
@pytest.mark.promise("resets-with-jobs")
def test_afterwards_tables_and_snapshots_are_the_same(site: Site, sink_here: SinkHere) -> None:
    """From Kafka through Spark to PostgreSQL and the store, before and after; verify says valid both times."""
    found = []
    for name in ("first", "second"):
        with instance(site.topology, site.client, site.folder / "log"), worker(site, f"home-{name}"):
            sink = sink_here("sheets")
            landed = supervised(sink, lambda: valid(site))
            eventually(landed, 180, "all is landed, and all snapshots are made")
            sink.query.stop()
        found.append(
            (
                site.rows(
                    "SELECT sheet_id, entry, segment, kind, cell, number, text, formula FROM sheets.entries ORDER BY 1, 2"
                ),
                site.rows("SELECT sheet_id, entries, edits, asked, finished, root FROM sheets.sheets ORDER BY 1"),
                site.rows("SELECT sheet_id, entry, root, cells, size, chunks FROM sheets.snapshots ORDER BY 1, 2"),
                {name: site.store.get(name) for name in site.store.ids()},
            )
        )
        eventually(lambda: run(["reset", "sheets", "--yes"]) == 0, 60, "all sessions have ended, and it starts over")
        assert site.rows("SELECT count(*) FROM sheets.entries") == [(0,)]
        assert site.left() == set()
    assert found[0] == found[1]
    assert len(found[0][2]) > 3, "snapshots were made"


def valid(site: Site) -> bool:
    """Whether a verdict is; it is invalid at no time."""
    verdict = verify("sheets", client=site.client, dsn=site.dsn, timeout_s=0, objects=site.objects)
    assert verdict.outcome != "invalid", verdict.findings[:3]
    return verdict.outcome == "valid"
