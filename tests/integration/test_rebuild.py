"""Tables made anew from the log by real sinks: while events arrive, killed on the way, by another rule, from another topic."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]  # exported, as no checker sees
from psycopg import sql

from onefold.cli.main import run
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, OK, REFUSED, UNAVAILABLE, USAGE
from onefold.operate import merge_sql, offsets
from onefold.operate.rebuild import rebuild
from onefold.operate.rebuild.rebuild import Rebuild
from onefold.operate.rebuild.table_diff import replace_rows
from onefold.processor.core.errors import Refused
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import ask_topic_ids, connect, delete_before
from onefold.spark_sink.kafka.topics import KafkaTopics
from onefold.stack.embedded import Infrastructure
from onefold.verify.verdict import UNKNOWN
from onefold.verify.verifier import verify
from tests.support.coded import code_of, raises
from tests.support.infrastructure import delete_topics
from tests.support.migrated import migrate_all
from tests.support.processes import drained, instance, produce
from tests.support.rebuilt import TABLES, Site, events_arrive
from tests.support.rooms import ROOT
from tests.support.sink import SinkHere, supervised
from tests.support.versions import TIMES
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
#: A row changed, one deleted, and one that no record has made.
DAMAGE = (
    "UPDATE runner.stats SET total_meters = total_meters + 1 WHERE ctid = (SELECT min(ctid) FROM runner.stats)",
    "DELETE FROM runner.messages WHERE ctid = (SELECT min(ctid) FROM runner.messages)",
    "INSERT INTO runner.tendency VALUES (999999, 1, 1, 'made up', '', 'runner.tendency', 0, 0)",
)


@pytest.fixture
def site(
    fresh_domain: MakeDomain,
    client: dict[str, str],
    database: str,
    infrastructure: Infrastructure,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    made = Site(fresh_domain("runner"), client, database, tmp_path)
    servers = {"BOOTSTRAP_SERVERS": client["bootstrap.servers"], "POSTGRES_DSN": database, "HOME": str(tmp_path)}
    for name, value in servers.items():
        monkeypatch.setenv(f"ONEFOLD_{name}", value)
    migrate_all(database, ROOT / "sql")
    made.send(1)
    return made


@pytest.mark.promise("rebuilds")
def test_damaged_tables_are_made_right_while_events_arrive(
    site: Site, sink_here: SinkHere, capsys: pytest.CaptureFixture[str]
) -> None:
    """The live sink goes on before, meanwhile and afterwards; a rebuild that is killed changes nothing, and is of no trouble to
    the next one.
    """
    with instance(site.topology, site.client, site.home / "processor"):
        sink = sink_here("runner")
        eventually(supervised(sink, site.valid), 120, "all is landed")
        for statement in DAMAGE:
            site.rows(f"{statement} RETURNING 1")
        damaged = site.tables()
        killed = subprocess.Popen(
            [sys.executable, "-P", "-m", "onefold.cli.main", "rebuild", "runner"],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        eventually(site.beside, 60, "it has a database beside")
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        assert site.tables() == damaged

        assert run(["rebuild", "runner", "--dry-run", "--json"]) == FAILED
        printed = capsys.readouterr().out  # the sink in this process logs there too
        told, _ = json.JSONDecoder().raw_decode(printed, printed.index("{"))
        assert {one["table"]: (one["changed"], one["added"], one["deleted"]) for one in told["tables"]} == {
            "runner.messages": (0, 1, 0),
            "runner.stats": (1, 0, 0),
            "runner.tendency": (0, 0, 1),
            "onefold.rejected": (0, 0, 0),
        }
        assert (told["differing"], told["done"], site.tables()) == (3, False, damaged)

        with events_arrive(site):
            assert run(["rebuild", "runner"]) == 0
        shown = capsys.readouterr().out
        assert "\n3 rows changed; the live sink was held up for" in shown
        assert "  deleted: user_id 999999\n" in shown
        assert site.beside() == []
        drained(site.topology, site.client)
        eventually(supervised(sink, site.valid), 60, "the live sink lands on, from the new positions")


@pytest.mark.promise("new-rules-for-the-past")
def test_another_rule_for_the_past(site: Site, sink_here: SinkHere, capsys: pytest.CaptureFixture[str]) -> None:
    """Readers have the tables of the old one until those of the new one are there as a whole."""
    with instance(site.topology, site.client, site.home / "old"):
        drained(site.topology, site.client)
    first = sink_here("runner")
    eventually(supervised(first, site.valid), 120, "all is landed")
    first.query.stop()
    before = site.tables()
    eventually(lambda: run(["reset", "runner", "--keep-tables", "--yes"]) == 0, 30, "the sink's sessions have ended")
    assert "table runner.stats, unchanged until `onefold rebuild runner`" in capsys.readouterr().out
    with pytest.raises(Refused, match="was deleted and recreated"):  # nobody lands into tables of the old rule
        sink_here("runner")

    made = Rebuild("runner", Settings())
    said: list[str] = []

    def ended() -> None:
        if said:
            raise UserError(Code.ARGUMENT_WRONG, "it has waited")

    with made.beside() as dsn, pytest.raises(UserError, match="it has waited"):
        made.wait(dsn, ended, said.append)
    assert said[0].startswith("waiting for the processors of runner: ")
    assert site.tables() == before

    with instance(site.topology, site.client, site.home / "new", version="other_rule"):
        drained(site.topology, site.client)
        assert run(["rebuild", "runner"]) == 0
        assert " rows changed; the live sink was held up for" in capsys.readouterr().out
        after = site.tables()
        meters = {table: [row[3] for row in rows] for table, rows in after.items()}["runner.stats"]
        assert meters == [TIMES * row[3] for row in before["runner.stats"]]
        assert [row[:3] for row in after["runner.messages"]] == [row[:3] for row in before["runner.messages"]]

        on = sink_here("runner")
        site.send(2)
        drained(site.topology, site.client)
        more = supervised(on, lambda: len(site.tables()["runner.messages"]) > len(after["runner.messages"]))
        eventually(more, 120, "a sink lands on")


@pytest.mark.promise("records-that-are-gone")
def test_rows_of_records_that_are_gone_are_not_deleted(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    admin = connect(site.client)
    entry = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "runner.stats", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()
    with closing(KafkaTopics(site.client["bootstrap.servers"], {})) as topics:
        eventually(lambda: topics.is_compacted("runner.stats"), 20, "the broker has taken it in")
    assert run(["rebuild", "runner"]) == REFUSED
    assert code_of(capsys.readouterr().err, "runner.stats") is Code.TOPIC_COMPACTED
    produce(site.client, "runner.stats", [(b"k", b"v")] * 5, partition=1)
    delete_before(admin, "runner.stats", 1, 3)
    assert run(["rebuild", "runner"]) == REFUSED
    assert code_of(capsys.readouterr().err, "runner.stats/1", "offset 3") is Code.RECORDS_DELETED
    assert site.beside() == []
    delete_topics(admin, ("runner.stats",))  # else every later test of the guarantee sees it compacted


def test_it_is_refused_with_what_to_do(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a sink is started for it."""

    def sentence(code: int) -> str:
        assert run(["rebuild", "runner"]) == code
        assert site.beside() == []
        return capsys.readouterr().err

    with Rebuild("runner", Settings()).beside():
        assert run(["rebuild", "runner"]) == REFUSED
        assert code_of(capsys.readouterr().err, "runner") is Code.COMMAND_RUNNING
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        name = f"poor_{os.getpid()}"
        role = sql.Identifier(name)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'poor'").format(role))
        try:
            connection.execute(sql.SQL("GRANT pg_read_all_data TO {}").format(role))
            poor = psycopg.conninfo.make_conninfo(site.dsn, user=name, password="poor")
            monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", poor)
            assert f"may not create one\n  Run ALTER ROLE {name} CREATEDB" in sentence(FAILED)
        finally:
            monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", site.dsn)
            connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))
        connection.execute("ALTER TABLE runner.stats DROP CONSTRAINT stats_pkey")
        assert "runner.stats has no key by which its rows could be compared\n  Give it a primary key;" in sentence(
            REFUSED
        )
        connection.execute("DROP SCHEMA onefold CASCADE")
        assert "there are no tables of runner in this database yet" in sentence(FAILED)
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", "postgresql://nobody@127.0.0.1:1/none")
    assert run(["rebuild", "runner"]) == UNAVAILABLE
    assert code_of(capsys.readouterr().err) is Code.POSTGRES_SILENT
    assert run(["rebuild", "nobody"]) == USAGE


class Beside:
    """A database that a sink might have filled: the runner's tables, and positions at the ends of its topics."""

    def __init__(self, site: Site, dsn: str) -> None:
        self.site, self.dsn = site, dsn
        migrate_all(dsn, ROOT / "sql")
        admin = connect(site.client)
        self.ids = ask_topic_ids(admin, list(TABLES))()
        for database in (site.dsn, dsn):
            self.stand(database, 10)

    def stand(self, dsn: str, offset: int, sink: str = "runner", topic: str = "runner.stats") -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "INSERT INTO onefold.ledger VALUES (%s, %s, 0, %s, %s, NULL, NULL, 'w', now())"
                " ON CONFLICT (sink, topic, partition) DO UPDATE SET next_offset = excluded.next_offset",
                (sink, topic, offset, self.ids[topic]),
            )

    def write(self, dsn: str, statement: str) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute(statement)


@pytest.fixture
def beside(site: Site, postgres_dsn: str) -> Iterator[Beside]:
    """Nothing has been folded: the topics are empty."""
    name = sql.Identifier(f"beside_{uuid.uuid4().hex[:12]}")
    with psycopg.connect(postgres_dsn, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(name))
        yield Beside(site, psycopg.conninfo.make_conninfo(postgres_dsn, dbname=name.as_string().strip('"')))
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.mark.promise("readers-of-a-rebuild")
def test_while_tables_are_compared_nobody_lands_or_writes_and_everybody_reads(
    site: Site, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def others(*given: Any) -> Any:
        with psycopg.connect(site.dsn, autocommit=True) as other:
            other.execute("SET lock_timeout = '50ms'")
            for statement in (
                "SELECT FROM onefold.ledger WHERE sink = 'runner' FOR UPDATE",
                "UPDATE runner.stats SET total_meters = 0",
            ):
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute(statement)
            tried.extend(
                other.execute(f"TABLE {name}").statusmessage or "" for name in ("onefold.ledger", "runner.stats")
            )
            other.execute("SELECT FROM onefold.ledger WHERE sink = 'campaigns' FOR UPDATE")
        return replace_rows(*given)

    beside.stand(site.dsn, 5, "campaigns")
    monkeypatch.setattr(rebuild, "replace_rows", others)
    assert Rebuild("runner", Settings()).replace(beside.dsn) is not None
    assert tried[:2] == ["SELECT 2", "SELECT 0"]


@pytest.mark.promise("readers-of-a-rebuild")
def test_tables_that_have_not_come_as_far_are_not_taken(site: Site, beside: Beside) -> None:
    beside.write(beside.dsn, "INSERT INTO runner.stats VALUES (1, 1, 1, 1, 1, 'runner.stats', 0, 0)")
    beside.stand(site.dsn, 11)
    assert Rebuild("runner", Settings()).replace(beside.dsn, level_s=0.0) is None
    assert site.rows("TABLE runner.stats") == []
    beside.stand(beside.dsn, 11)
    assert Rebuild("runner", Settings()).replace(beside.dsn) is not None
    assert site.rows("SELECT user_id FROM runner.stats") == [(1,)]


def test_positions_and_rejected_records_come_along_and_those_of_others_stay(site: Site, beside: Beside) -> None:
    beside.stand(beside.dsn, 20)
    beside.stand(beside.dsn, 7, topic="runner.messages")
    beside.stand(site.dsn, 5, topic="runner.tendency")
    beside.stand(site.dsn, 5, "campaigns")
    for database, offset in ((site.dsn, 1), (beside.dsn, 2)):
        for sink in ("runner", "campaigns"):
            beside.write(
                database, f"INSERT INTO onefold.rejected VALUES ('{sink}', 'runner.stats', 0, {offset}, 'no', NULL)"
            )
    # A topic that is gone from the pipeline asks for nothing.
    beside.write(site.dsn, "UPDATE onefold.ledger SET topic_id = 'gone' WHERE topic = 'runner.tendency'")
    done = Rebuild("runner", Settings()).replace(beside.dsn)
    assert done is not None
    assert (done.tables[-1].table, done.tables[-1].added, done.tables[-1].deleted) == ("onefold.rejected", 1, 1)
    stands = [("campaigns", "runner.stats", 5), ("runner", "runner.messages", 7), ("runner", "runner.stats", 20)]
    assert site.rows("SELECT sink, topic, next_offset FROM onefold.ledger ORDER BY 1, 2") == stands
    noted = "SELECT sink, topic, next_offset FROM onefold.batch WHERE writer = 'onefold rebuild' ORDER BY 1, 2"
    assert site.rows(noted) == stands[1:]
    assert site.rows('SELECT sink, "offset" FROM onefold.rejected ORDER BY 1') == [("campaigns", 1), ("runner", 2)]


@pytest.mark.promise("rebuilds-since-a-time")
def test_a_rebuild_since_a_time_changes_rows_of_late_records_only(site: Site, beside: Beside) -> None:
    """Of no record of the log is the time later: so late is what the live tables have not landed, offset 10 and on."""
    row = "INSERT INTO runner.tendency VALUES ({}, 1, 1, '{}', '', 'runner.tendency', 0, {})"
    for user, live, right in (
        (1, ("early", 5), ("early, and right", 5)), (2, ("late", 12), ("late, and right", 12)),
        (3, None, ("new", 15)), (4, ("early, and of no record", 3), None), (5, ("of no record", 20), None),
        (6, ("early", 9), ("changed since", 12)), (7, None, ("early", 4)),
    ):  # fmt: skip
        for database, values in ((site.dsn, live), (beside.dsn, right)):
            if values:
                beside.write(database, row.format(user, *values))
    for database in (site.dsn, beside.dsn):
        beside.stand(database, 10, topic="runner.tendency")
    beside.stand(beside.dsn, 21, topic="runner.tendency")
    done = Rebuild("runner", Settings(), since_ms=int(time.time() * 1000)).replace(beside.dsn)
    assert done is not None
    (told,) = [one for one in done.tables if one.table == "runner.tendency"]
    assert (told.rows, told.changed, told.added, told.deleted) == (3, 2, 1, 1)
    assert site.rows("SELECT user_id, current FROM runner.tendency ORDER BY 1") == [
        (1, "early"), (2, "late, and right"), (3, "new"), (4, "early, and of no record"), (6, "changed since")
    ]  # fmt: skip
    assert (21,) in site.rows("SELECT next_offset FROM onefold.ledger")
    assert Rebuild("runner", Settings()).replace(beside.dsn) is not None
    assert site.rows("SELECT user_id FROM runner.tendency ORDER BY 1") == [(1,), (2,), (3,), (6,), (7,)], "all of them"


def test_a_rebuild_since_a_time_needs_one_that_has_passed_and_the_topics_that_filled_the_tables(
    site: Site, beside: Beside, capsys: pytest.CaptureFixture[str]
) -> None:
    for time_ in ("yesterday", "2999-01-01"):
        assert run(["rebuild", "runner", "--since", time_]) == USAGE
        assert code_of(capsys.readouterr().err, time_) is Code.ARGUMENT_WRONG
    beside.write(site.dsn, "UPDATE onefold.ledger SET topic_id = 'gone'")
    assert run(["rebuild", "runner", "--since", "1h"]) == REFUSED
    assert code_of(capsys.readouterr().err, "runner.stats") is Code.TOPIC_RECREATED


def test_a_table_of_two_pipelines_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = merge_sql.written
    monkeypatch.setattr(merge_sql, "written", lambda one: written(one) + ["runner.stats"] * (one.name == "campaigns"))
    assert run(["rebuild", "runner"]) == REFUSED
    assert code_of(capsys.readouterr().err, "campaigns", "runner.stats") is Code.SHARED_DATA


def test_a_table_that_follows_no_record_is_left_as_it_is(
    site: Site, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the latencies of trades: a row says when it was landed."""
    monkeypatch.setattr(merge_sql, "written", lambda one: [*TABLES, "runner.paces"] if one.name == "runner" else [])
    for database, pace in ((site.dsn, 1), (beside.dsn, 2)):
        beside.write(database, f"CREATE TABLE runner.paces AS SELECT {pace} AS pace")
    done = Rebuild("runner", Settings()).replace(beside.dsn)
    assert done is not None
    assert done.kept == ("runner.paces",)
    assert site.rows("TABLE runner.paces") == [(1,)]


@pytest.mark.promise("readers-of-a-rebuild")
def test_rows_and_positions_are_of_one_moment(site: Site, beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink beside lands on meanwhile. What it adds would be added again by the live one."""
    users = iter(range(1, 100))

    def lands_on(*given: Any) -> Any:
        user = next(users)
        beside.write(beside.dsn, f"INSERT INTO runner.stats VALUES ({user}, 1, 1, 1, 1, 'runner.stats', 0, {user})")
        beside.stand(beside.dsn, 10 + user)
        return replace_rows(*given)

    monkeypatch.setattr(rebuild, "replace_rows", lands_on)
    assert Rebuild("runner", Settings()).replace(beside.dsn) is not None
    assert site.rows("TABLE runner.stats") == []
    assert site.rows("SELECT next_offset FROM onefold.ledger") == [(10,)]


def fill_from_the_log(dsn: str) -> None:
    """Leave the database as an earlier Onefold did whose sink had read the decision log: an origin's offset is that of the
    decision, times two million, and the ledger has a column for what was decided.
    """
    with psycopg.connect(dsn) as connection:
        connection.execute("ALTER TABLE onefold.ledger ADD COLUMN decided jsonb")
        connection.execute("DELETE FROM onefold.ledger WHERE sink = 'runner'")
        connection.execute(
            "INSERT INTO onefold.ledger SELECT 'runner', 'runner.decisions', number, 9, 'log', NULL, NULL, 'old', now(), '{}'"
            " FROM generate_series(0, 1) AS number"
        )
        for table in TABLES:
            moved = """UPDATE {} SET topic = 'runner.decisions', "offset" = "offset" << 21"""
            connection.execute(sql.SQL(moved).format(sql.Identifier(*table.split("."))))
        connection.execute("UPDATE onefold.version SET number = 2")


def test_rows_of_a_decision_log_are_refused_and_a_rebuild_is_the_way_out(
    site: Site, sink_here: SinkHere, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sink, verifiers and commands say so, and change nothing. Afterwards all of them go on as if it had never been."""

    def refuses(*words: str, code: int = REFUSED) -> str:
        assert run(words) == code
        err = capsys.readouterr().err
        assert code_of(err, "runner.decisions") is Code.TABLES_OF_OTHER_TOPICS
        return err

    with instance(site.topology, site.client, site.home / "a", name="a", replicas=2):
        drained(site.topology, site.client)
        first = sink_here("runner")
        eventually(supervised(first, site.valid), 120, "all is landed")
        first.query.stop()
        fill_from_the_log(site.dsn)
        before = site.tables()

        with raises(Refused, Code.TABLES_OF_OTHER_TOPICS, "onefold rebuild runner"):
            sink_here("runner")
        verdict = verify("runner", client=site.client, dsn=site.dsn, timeout_s=0)
        assert (verdict.outcome, "onefold rebuild runner" in verdict.reason) == (UNKNOWN, True)
        user, run_id = site.rows("SELECT user_id, run_id FROM runner.stats LIMIT 1")[0]
        assert "onefold rebuild runner" in refuses("explain", "runner.stats", f"user_id={user}", f"run_id={run_id}")
        assert "onefold rebuild runner" in refuses("rebuild", "runner", "--since", "1h")
        behind = offsets.behind(site.topology, Settings())
        assert (behind.outputs, "onefold rebuild runner" in behind.no_outputs) == (None, True)
        assert site.tables() == before

        assert run(["rebuild", "runner"]) == OK
        assert "0 rows changed" in capsys.readouterr().out, "but for the records that they come from"
        ((topics,),) = site.rows("SELECT array_agg(DISTINCT topic ORDER BY topic) FROM onefold.ledger")
        assert topics == [*TABLES]
        site.send(2)
        drained(site.topology, site.client)
        eventually(supervised(sink_here("runner"), site.valid), 120, "the sink goes on from the new positions")
        assert run(["explain", "runner.stats", f"user_id={user}", f"run_id={run_id}"]) == OK


def test_rows_of_a_decision_log_are_rebuilt_when_all_is_published(site: Site) -> None:
    """They may have what no publisher has written yet. An input was sent, and nothing processes it."""
    made = Rebuild("runner", Settings())
    with psycopg.connect(site.dsn) as connection:
        connection.execute(
            "INSERT INTO onefold.ledger VALUES ('runner', 'runner.decisions', 0, 9, 'log', NULL, NULL, 'old', now())"
        )
    assert made._processors_behind() > 0
    with instance(site.topology, site.client, site.home / "a"):
        drained(site.topology, site.client)
    assert made._processors_behind() == 0
