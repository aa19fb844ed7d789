"""The auditor beside pipelines that do more than fill tables from topics: real processors, workers, a broker and a Postgres.

They feed themselves, have queues, or make objects. What is simple is in test_audit.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from onefold.processor.core.topology import Topology
from onefold.verify.owner import SOURCE_HEADER
from onefold.workloads import bank, sheets
from onefold.workloads.shaping import Input, Shape
from tests.integration.test_sheets import worker
from tests.support.audited import NAMED_WITHIN_S, Audited
from tests.support.merged import land
from tests.support.migrated import migrate_all
from tests.support.processes import drained, instance, records, send
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.postgres]
MakeDomain = Callable[..., Topology]
SHAPE = Shape(keyless=0.02, hostile=0.02)
NEVER_S = 1e9
WAVE = 400


def spoil(audited: Audited, statement: str) -> None:
    with psycopg.connect(audited.dsn, autocommit=True) as connection:
        assert connection.execute(statement.encode()).rowcount == 1


def put(client: dict[str, str], topic: str, key: bytes | None, value: bytes | None, source: bytes | None) -> None:
    """As anybody could who may write there."""
    producer = Producer(client)
    producer.produce(topic, value, key, headers=[(SOURCE_HEADER, source)] if source else [])
    assert producer.flush(30) == 0


@pytest.mark.promise("audit-follows-feedback")
def test_a_pipeline_that_feeds_itself_is_followed(
    fresh_domain: MakeDomain, client: dict[str, str], database: str, checkout: Path, tmp_path: Path
) -> None:
    """Money on its way from one account to another: none is lost, none is made up, and balances are what was landed."""
    topology = fresh_domain("bank")
    migrate_all(database, checkout / "sql")
    inputs = iter(bank.generate(5, 1_600, shape=SHAPE, accounts=12))
    audited = Audited(topology, client, database, tmp_path)

    def fold(**options: Any) -> None:
        with instance(topology, client, tmp_path / "log", **options):
            send(client, [next(inputs) for _ in range(400)])
            drained(topology, client)

    with audited.closing():
        fold()
        land(topology, client, database)
        audited.valid(0)
        for _ in range(2):
            judged = audited.auditor.standing.judged
            fold()
            audited.valid(judged + 200)
            land(topology, client, database)
            audited.valid(judged + 200)

        for statement, kind, table in (
            ("UPDATE bank.accounts SET balance = balance + 1 WHERE account = 1", "different row", "bank.accounts"),
            (
                "DELETE FROM bank.transfers WHERE ctid = (SELECT min(ctid) FROM bank.transfers)",
                "missing row",
                "bank.transfers",
            ),
        ):
            spoil(audited, statement)
            found = audited.named()
            assert (found.kind, found.where) == (kind, table)

        once = records(client, "bank.deposits")[0]
        put(client, "bank.deposits", once.key, once.value, once.header(SOURCE_HEADER))
        put(client, "bank.deposits", once.key, once.value, None)
        with instance(topology, client, tmp_path / "log"):
            drained(topology, client)
        said = audited.audit(lambda standing: len(standing.findings) >= 4, NAMED_WITHIN_S).findings[-2:]
        assert {(one.kind, one.where) for one in said} == {
            ("doubled output", "bank.deposits"),
            ("phantom output", "bank.deposits"),
        }
        fold(version="that_keeps")
        found = audited.named()
    assert (found.kind, found.where, found.text) == ("missing output", "bank.deposits", "it was never written")


@pytest.mark.promise("audit-follows-jobs")
def test_what_workers_make_is_followed(
    fresh_domain: MakeDomain, client: dict[str, str], database: str, checkout: Path, tmp_path: Path
) -> None:
    """Each snapshot is read when it is reported; a job, or a report of what nobody has made, is named."""
    topology = fresh_domain("sheets")
    migrate_all(database, checkout / "sql")
    objects = (tmp_path / "objects").as_uri()
    inputs = iter(sheets.generate(5, 1_200, shape=SHAPE, sheets=2))
    audited = Audited(topology, client, database, tmp_path, objects=objects)
    with audited.closing(), instance(topology, client, tmp_path / "log"):

        def fold(count: int) -> None:
            send(client, [next(inputs) for _ in range(count)])
            drained(topology, client)
            land(topology, client, database)

        def made() -> bool:
            return len(records(client, sheets.FINISHED)) == len(records(client, sheets.JOBS)) > 0

        with worker(client, database, objects, tmp_path):
            for judged in (0, 200):
                fold(400)
                eventually(made, 60, "every snapshot that was asked for is made")
                drained(topology, client)
                land(topology, client, database)
                audited.valid(judged)
        # Nobody makes any more. Two are reported all the same.
        fold(400)
        audited.valid(0)
        asked = {(row[0], row[1]) for row in unreported(database)}
        assert asked
        name, entry = min(asked)
        fields = {"sheet_id": name, "segment": (entry - 1) // 1000, "entry": entry, "root": "snapshots/00"}
        totals = {"cells": 1, "size": 1, "chunks": 1, "shared": 0}
        send(client, [Input(sheets.FINISHED, name.encode(), json.dumps({**fields, **totals}).encode())])
        drained(topology, client)
        found = audited.named()
        assert (found.kind, found.key) == ("missing object", {"sheet_id": name, "entry": entry})

        job = records(client, sheets.JOBS)[0]
        put(client, sheets.JOBS, job.key, job.value, None)
        audited.audit(lambda standing: standing.waiting == 0)
        put(client, sheets.JOBS, job.key, job.value, job.header(SOURCE_HEADER))
        found = audited.named()
    assert (found.kind, found.where) == ("doubled output", sheets.JOBS)


def unreported(dsn: str) -> list[tuple[str, int]]:
    """Snapshots that were asked for and not made: sheet and entry."""
    asked = (
        "SELECT sheet_id, entry FROM sheets.entries AS asked WHERE kind = 'snapshot'"
        " AND NOT EXISTS (SELECT FROM sheets.snapshots AS made WHERE (made.sheet_id, made.entry) = (asked.sheet_id, asked.entry))"
    )
    with psycopg.connect(dsn) as connection:
        return connection.execute(asked.encode()).fetchall()
