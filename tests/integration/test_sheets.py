"""The sheets on a real broker, real processors, Spark and Postgres: logs without a gap, and every difference is found."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from onefold.jobs.apps.sheets.uploads import import_payload, to_kafka
from onefold.jobs.objects import open_store
from onefold.processor.core.topology import Topology
from onefold.testing import STEPS
from onefold.verify.contracts import contracts
from onefold.verify.verdict import INVALID, VALID, Finding, Verdict
from onefold.verify.verifier import verify
from onefold.workloads import sheets
from onefold.workloads.shaping import Input, Shape
from tests.support.command_line import Onefold
from tests.support.migrated import migrate_all
from tests.support.processes import drained, instance, judge, records, send
from tests.support.sink import CrashOnce, SinkHere, supervised
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("lost-objects-are-found")

MakeDomain = Callable[..., Topology]
SHAPE = Shape(keyless=0.02, hostile=0.02)


@pytest.mark.matrix  # from day to day tests/apps/test_sheets_crashes.py
def test_processors_are_killed_at_every_step_and_every_job_is_there_once(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """Each at another step, with input of three topics under way. Every third one is let live: see test_processor.py."""
    topology = fresh_domain("sheets")
    for number, step in enumerate(STEPS):
        send(client, list(sheets.generate(number, 300, shape=SHAPE, sheets=2, alone=True)))
        hit = 1 if step in ("after_open", "after_restore") else 3
        with instance(topology, client, tmp_path / "log", failpoint=f"{step}:{hit}") as process:
            assert process.wait(30) == -signal.SIGKILL, f"killed at {step}"
        if number % 3 == 2:
            with instance(topology, client, tmp_path / "log"):
                drained(topology, client)
    with instance(topology, client, tmp_path / "log"):
        drained(topology, client)
    expected = judge(topology, client)
    assert expected.counts.accepted > 1000
    assert all(check.expected == check.found > 3 for check in expected.fed.checks())


#: Of two objects: discarded before they are completed.
REFUSED = [
    Input(
        sheets.UPLOADS,
        name.encode(),
        json.dumps({"object_id": name, "sheet_id": "sheet-1", "cells": 1, "size": 9, "action": action}).encode(),
    )
    for name in ("payloads/1", "payloads/2")
    for action in ("discard", "complete")
]


@contextmanager
def worker(client: dict[str, str], database: str, objects: str, folder: Path) -> Iterator[None]:
    """The workers of sheets, as their own process."""
    (folder / "home").mkdir()
    onefold = Onefold(folder / "home")
    onefold.environment |= {
        "ONEFOLD_BOOTSTRAP_SERVERS": client["bootstrap.servers"],
        "ONEFOLD_POSTGRES_DSN": database,
        "ONEFOLD_OBJECTS": objects,
    }
    process = onefold.start("work", "sheets")
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(30) == 0, (folder / "home" / "work.out").read_text(encoding="utf-8")


@pytest.mark.long  # 40 s
def test_every_difference_in_tables_queues_and_objects_is_found(
    fresh_domain: MakeDomain,
    client: dict[str, str],
    sink_here: SinkHere,
    database: str,
    checkout: Path,
    tmp_path: Path,
) -> None:
    """The sink crashes in a merge, and lands the rest when it is back."""
    topology = fresh_domain("sheets", 3)
    migrate_all(database, checkout / "sql")
    objects = (tmp_path / "objects").as_uri()

    def judged() -> Verdict:
        return verify("sheets", client=client, dsn=database, timeout_s=60, objects=objects)

    crash = CrashOnce("sink.after_merge", 1)
    sink = sink_here("sheets", step=crash)
    with instance(topology, client, tmp_path / "log"), worker(client, database, objects, tmp_path):
        send(client, REFUSED)
        with (tmp_path / "payload").open("w+b") as payload:
            payload.write(b'[1,1,"t","imported"]\n[2000,9,"n","1.5"]\n')
            import_payload(open_store(objects), to_kafka(client), "sheet-1", "request", payload)
        for seed in (1, 2):
            send(client, list(sheets.generate(seed, 700, shape=SHAPE, sheets=3)))
            drained(topology, client)
        eventually(
            supervised(sink, lambda: crash.crashed and sink.running and sink.query.landed > 0),
            120,
            "the sink crashes and goes on",
        )
        send(client, list(sheets.generate(3, 300, shape=SHAPE, sheets=3)))
        drained(topology, client)
        verdict = judged()
        assert (verdict.outcome, verdict.findings) == (VALID, []), verdict.reason
        found = {check.what: check.found for check in verdict.checks}
        assert (
            min(found[name] for name in (*(table.name for table in sheets.WORKLOAD.tables), *sheets.WORKLOAD.queues))
            > 1
        )

        found_rows = sorted((each.kind, each.where) for each in spoiled(database, judged))
        assert found_rows == sorted((kind, where) for _, kind, where in SPOILS)

        for damage, kind in DAMAGES:
            assert {each.kind for each in damaged(tmp_path / "objects" / "objects", damage, judged)} == {kind}, damage

        put_back, *_ = records(client, sheets.JOBS)
        send(client, [Input(sheets.JOBS, put_back.key, put_back.value)])
        assert judged().outcome == VALID, "a job that is put back says the same"
        assert put_back.value is not None
        made_up = contracts("sheets")[sheets.JOBS].prefix + b"\x02s\x00\x0e"
        send(client, [Input(sheets.JOBS, b"s", made_up)])
        verdict = judged()
    assert verdict.outcome == INVALID
    assert [(each.kind, each.where) for each in verdict.findings] == [("phantom output", sheets.JOBS)]


#: What is done to the tables, each to another row of those that are named, and as what it is found.
SPOILS = (
    ("UPDATE sheets.entries SET number = number + 0.000000001 WHERE {edit}", "different row", "sheets.entries"),
    ("UPDATE sheets.entries SET cell = 'A2', row = 2, col = 1 WHERE {edit}", "different row", "sheets.entries"),
    ("DELETE FROM sheets.entries WHERE {edit}", "missing row", "sheets.entries"),
    ("UPDATE sheets.entries SET segment = 7 WHERE {edit}", "different row", "sheets.entries"),
    ("UPDATE sheets.sheets SET asked = asked + 1 WHERE {sheet}", "different row", "sheets.sheets"),
    ("UPDATE sheets.sheets SET root = 'a/b' WHERE {sheet}", "different row", "sheets.sheets"),
    ("UPDATE sheets.snapshots SET root = 'a/b' WHERE {snapshot}", "different row", "sheets.snapshots"),
    ("DELETE FROM sheets.snapshots WHERE {snapshot}", "missing row", "sheets.snapshots"),
    ('UPDATE sheets.refusals SET "offset" = -1 WHERE {refusal}', "wrong origin", "sheets.refusals"),
    ("INSERT INTO sheets.refusals VALUES ('a/b', 's', 'discarded', '', 0, 0)", "extra row", "sheets.refusals"),
)
#: Conditions for a row each, by name.
_ROWS = {
    "{edit}": (
        "SELECT format('(sheet_id, entry) = (%L, %s)', sheet_id, entry) FROM sheets.entries"
        " WHERE number IS NOT NULL AND cell <> 'A2' AND segment = 0 ORDER BY sheet_id, entry"
    ),
    "{sheet}": "SELECT format('sheet_id = %L', sheet_id) FROM sheets.sheets ORDER BY sheet_id",
    "{snapshot}": (
        "SELECT format('(sheet_id, entry) = (%L, %s)', sheet_id, entry) FROM sheets.snapshots ORDER BY sheet_id, entry"
    ),
    "{refusal}": "SELECT format('object_id = %L', object_id) FROM sheets.refusals ORDER BY object_id",
}


def lost(objects: Path) -> None:
    """A chunk, a page or a root."""
    next(path for path in sorted(objects.glob("snapshots/*"))).unlink()


def changed(objects: Path) -> None:
    """A byte of one."""
    path = next(path for path in sorted(objects.glob("snapshots/*")))
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))


def orphaned(objects: Path) -> None:
    """One that no snapshot names."""
    (objects / "snapshots" / "00").write_bytes(b"{}")


def payload_lost(objects: Path) -> None:
    """What an entry names."""
    next(objects.glob("payloads/*")).unlink()


DAMAGES = (
    (lost, "missing object"),
    (changed, "wrong object"),
    (orphaned, "orphan object"),
    (payload_lost, "missing object"),
)


def damaged(objects: Path, damage: Callable[[Path], None], judged: Callable[[], Verdict]) -> list[Finding]:
    """What is found when this was done to the store; afterwards it is as before."""
    kept = objects.with_name("kept")
    shutil.copytree(objects, kept)
    try:
        damage(objects)
        return judged().findings
    finally:
        shutil.rmtree(objects)
        kept.rename(objects)


_TABLES = ("entries", "sheets", "snapshots", "refusals")


def spoiled(database: str, judged: Callable[[], Verdict]) -> list[Finding]:
    """What is found when all of that was done to the tables; afterwards they are as before."""
    with psycopg.connect(database, autocommit=True) as connection:
        for table in _TABLES:
            connection.execute(f"CREATE TABLE public.kept_{table} AS TABLE sheets.{table}".encode())
        try:
            rows = {name: iter(connection.execute(asked.encode()).fetchall()) for name, asked in _ROWS.items()}
            for spoil, *_ in SPOILS:
                for name in filter(spoil.__contains__, rows):
                    spoil = spoil.replace(name, next(rows[name])[0])
                assert connection.execute(spoil.encode()).rowcount == 1, spoil
            return judged().findings
        finally:
            for table in _TABLES:
                connection.execute(
                    f"TRUNCATE sheets.{table}; INSERT INTO sheets.{table} TABLE public.kept_{table}".encode()
                )
                connection.execute(f"DROP TABLE public.kept_{table}".encode())
