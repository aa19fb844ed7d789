"""Starting a pipeline over, on a real broker and a real PostgreSQL: killed at every step, refused while something runs, and
with the same tables at the end.
"""

import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from onefold.cli.main import run
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, REFUSED, UNAVAILABLE, USAGE
from onefold.operate.dead_letters import replay
from onefold.operate.dead_letters.letters import DeadLetters, Wanted
from onefold.operate.replicas import replicas_of_all
from onefold.operate.reset.reset import RECENT_S, STEPS, Reset
from onefold.processor.core.topology import Topology
from onefold.processor.io import admin
from onefold.processor.io.admin import ask_topic_ids, connect, existing, identity
from onefold.processor.io.partitioner import partition_of
from onefold.processor.io.replays import Dropped
from onefold.verify.verifier import verify
from onefold.workloads import runner
from tests.support.coded import code_of, raises
from tests.support.dying import dies
from tests.support.migrated import migrate_all
from tests.support.processes import drained, instance, judge, nobody_in, opened, produce, records
from tests.support.rooms import ROOT
from tests.support.sink import SinkHere, supervised
from tests.support.versions import POISON_METERS
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
HOT: dict[str, Any] = {"replicas": 2, "session_timeout_ms": 6_000}
TABLES = ("runner.messages", "runner.stats", "runner.tendency")


class Site:
    """The runner, in a database with rows of it and of another domain."""

    def __init__(self, topology: Topology, client: dict[str, str], dsn: str, home: Path) -> None:
        self.topology, self.client, self.dsn, self.home = topology, client, dsn, home
        servers = {"bootstrap_servers": client["bootstrap.servers"], "postgres_dsn": dsn}
        self.options: dict[str, Any] = {**servers, "home": str(home)}

    def reset(self, *, inputs: bool = False, **settings: Any) -> Reset:
        return Reset("runner", Settings(**self.options, **settings), inputs=inputs)

    @property
    def letters(self) -> DeadLetters:
        return DeadLetters("runner", Settings(**self.options))

    def fold(self) -> None:
        with instance(self.topology, self.client, self.home / "log"):
            drained(self.topology, self.client)

    def land(self) -> None:
        """As much as tells whether it is emptied; what a sink lands is the last test's."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute(
                "INSERT INTO runner.stats VALUES (1, 1, 1, 1, 1, 'runner.stats', 0, 0) ON CONFLICT DO NOTHING"
            )
            for domain in ("runner", "campaigns"):
                connection.execute(
                    "INSERT INTO onefold.ledger VALUES (%s, %s, 0, 1, 'id', NULL, NULL, 'w', now()) ON CONFLICT DO NOTHING",
                    (domain, f"{domain}.stats"),
                )
                connection.execute(
                    "INSERT INTO onefold.contract VALUES (%s, %s, 'header', '{}') ON CONFLICT DO NOTHING",
                    (domain, f"{domain}.stats"),
                )

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query).fetchall()

    def ids(self, *topics: str) -> dict[str, str]:
        return ask_topic_ids(connect(self.client), topics)()

    def members(self, group: str) -> list[Any]:
        kafka = connect(self.client)  # answers nobody when it is gone
        return list(kafka.describe_consumer_groups([group])[group].result().members or ())

    def ends(self) -> list[Any]:
        return [identity(connect(self.client), "runner.updates", partition) for partition in range(2)]


@pytest.fixture
def site(
    fresh_domain: MakeDomain, client: dict[str, str], database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Site:
    nobody_in(client, "onefold-runner", "onefold-runner.replicas")
    made = Site(fresh_domain("runner"), client, database, tmp_path)
    for name, value in made.options.items():
        monkeypatch.setenv(f"ONEFOLD_{name.upper()}", value)
    migrate_all(database, ROOT / "sql")
    produce(client, "runner.updates", [(one.key, one.value) for one in runner.generate(1, 500)])
    made.land()
    return made


@pytest.fixture
def folded(site: Site) -> Site:
    """All inputs are processed."""
    site.fold()
    return site


@pytest.fixture
def short_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset waits so much less for processors that it finds."""
    monkeypatch.setenv("ONEFOLD_SESSION_TIMEOUT_S", "1")


@pytest.mark.promise("resets-that-are-killed")
def test_a_reset_that_is_killed_at_every_step_is_ended_by_another_one(folded: Site) -> None:
    """Between the two no processor begins with a half of what there was; afterwards all is folded again, once. There are no
    jobs to start over, and the inputs stay.
    """
    site = folded
    before, expected = site.ends(), judge(site.topology, site.client).counts
    for step in STEPS:
        if step in ("jobs", "inputs"):
            continue
        dies("reset", "runner", site.options, step)
        if step not in ("changelog", "made"):
            with instance(site.topology, site.client, site.home / "refused") as refused:
                assert refused.wait(30) == REFUSED, f"nobody begins after {step}"
            assert "of a reset that is incomplete" in (site.home / "refused").read_text(encoding="utf-8")
        site.reset().run()

        assert site.rows("SELECT sum(n) FROM (SELECT count(*) AS n FROM runner.stats) AS s") == [(0,)]
        for kept in ("ledger", "contract"):
            assert site.rows(f"SELECT sink FROM onefold.{kept}") == [("campaigns",)]
        assert site.ends() == before, "the inputs are as they were"
        site.fold()
        assert judge(site.topology, site.client).counts == expected
        site.land()


def test_a_reset_fences_a_processor_that_nobody_saw(site: Site) -> None:
    """It runs on without a place in the group, or was started a moment too early: its next transaction fails."""
    with instance(site.topology, site.client, site.home / "hidden") as hidden:
        eventually(lambda: len(opened(site.home / "hidden")) == 2, 30, "it has both tasks")

        def late(step: str) -> None:
            if step == "marked":
                produce(site.client, "runner.updates", [(one.key, one.value) for one in runner.generate(2, 100)])
                assert hidden.wait(60) == REFUSED

        site.reset().run(late)
    site.fold()
    judge(site.topology, site.client)


@pytest.mark.usefixtures("short_sessions")
def test_it_is_refused_while_a_processor_or_a_sink_runs(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with instance(site.topology, site.client, site.home / "running", session_timeout_ms=10_000):
        eventually(lambda: len(opened(site.home / "running")) == 2, 30, "it has both tasks")
        assert run(["reset", "runner", "--yes"]) == REFUSED
    assert code_of(capsys.readouterr().err, "onefold-runner-") is Code.STILL_RUNNING
    with psycopg.connect(site.dsn, application_name="onefold-sink one"):
        assert run(["reset", "runner", "--yes"]) == REFUSED
    assert code_of(capsys.readouterr().err, "session in the database: one") is Code.STILL_RUNNING
    assert site.rows("SELECT count(*) FROM runner.stats") == [(1,)]


@pytest.mark.long  # 20 s
@pytest.mark.promise("resets-wait-for-replicas")
@pytest.mark.usefixtures("short_sessions")
def test_it_is_refused_while_replicas_have_nothing_to_do(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """They write nothing into the decision log then, for however long."""
    settings = Settings(**site.options)

    def silent() -> bool:
        now = replicas_of_all(settings).get("runner")
        return now is not None and all(one.last_s > RECENT_S for one in now.replicas.values())

    with instance(site.topology, site.client, site.home / "idle", name="idle", **HOT) as idle:
        eventually(lambda: len(opened(site.home / "idle")) == 2, 30, "it has both tasks")
        eventually(silent, 60, "it has no recent record")
        assert run(["reset", "runner", "--yes"]) == REFUSED
        assert code_of(capsys.readouterr().err, "runner") is Code.STILL_RUNNING
        assert site.rows("SELECT count(*) FROM runner.stats") == [(1,)]
        idle.terminate()
        assert idle.wait(30) == 0
    # It has left in good order, and is not waited for.
    assert site.members("onefold-runner.replicas") == []


@pytest.mark.long  # 14 s
@pytest.mark.promise("replicas-that-slept")
def test_replicas_start_cleanly_after_a_reset(site: Site) -> None:
    """One that nobody saw, for it was frozen, wakes when the new ones are far beyond: the numbers are theirs."""
    with instance(site.topology, site.client, site.home / "frozen", name="frozen", **HOT) as frozen:
        eventually(lambda: len(opened(site.home / "frozen")) == 2, 30, "it has both tasks")
        produce(site.client, "runner.updates", [(one.key, one.value) for one in runner.generate(2, 300)])
        drained(site.topology, site.client)
        frozen.send_signal(signal.SIGSTOP)
        eventually(lambda: not site.members("onefold-runner.replicas"), 30, "the broker has taken it out")
        logs = existing(connect(site.client))[site.topology.decisions]
        site.reset(replicas=2).run()
        assert existing(connect(site.client))[site.topology.decisions] == logs == 2

        with instance(site.topology, site.client, site.home / "new", name="new", **HOT):
            drained(site.topology, site.client)
            produce(site.client, "runner.updates", [(one.key, one.value) for one in runner.generate(3, 300)])
            drained(site.topology, site.client)
            frozen.send_signal(signal.SIGCONT)
            produce(site.client, "runner.updates", [(one.key, one.value) for one in runner.generate(4, 300)])
            drained(site.topology, site.client)
    judge(site.topology, site.client)


def test_it_looks_again_when_it_was_answered(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While it waited for an answer somebody has started a sink."""
    with ExitStack() as stack:

        def answered(*_: object, **__: object) -> str:
            stack.enter_context(psycopg.connect(site.dsn, application_name="onefold-sink late"))
            return "runner"

        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("typer.prompt", answered)
        assert run(["reset", "runner"]) == REFUSED
    assert code_of(capsys.readouterr().err, "late") is Code.STILL_RUNNING
    assert site.rows("SELECT count(*) FROM runner.stats") == [(1,)]


@pytest.mark.promise("resets-wait-for-replicas")
def test_tables_that_cannot_be_emptied_are_found_before_anything_is_deleted(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a foreign key, which is named; and for whatever else PostgreSQL may have against it."""
    ids = site.ids(*site.topology.outputs, site.topology.changelog)
    with psycopg.connect(site.dsn) as connection:
        connection.execute(
            "CREATE TABLE public.shoes (run bigint, who bigint, CONSTRAINT worn_by FOREIGN KEY (run, who)"
            " REFERENCES runner.stats)"
        )
    for more in (["--yes"], ["--dry-run"]):
        assert run(["reset", "runner", *more]) == REFUSED
        told = capsys.readouterr().err
        assert "runner.stats cannot be emptied: the table shoes refers to it by its foreign key worn_by" in told
    with psycopg.connect(site.dsn) as connection:
        connection.execute("DROP TABLE public.shoes")
        connection.execute(
            "CREATE FUNCTION runner.never() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not these'; END$$"
        )
        connection.execute(
            "CREATE TRIGGER never BEFORE TRUNCATE ON runner.stats EXECUTE FUNCTION runner.never()",
        )
    assert run(["reset", "runner", "--yes"]) == FAILED
    assert code_of(capsys.readouterr().err, "not these") is Code.POSTGRES_REFUSES
    assert site.ids(*ids) == ids
    assert site.rows("SELECT count(*) FROM runner.stats") == [(1,)]
    site.fold()
    judge(site.topology, site.client)


def test_one_reset_at_a_time(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The second one says so, and takes the first one for no worker that has to be stopped."""

    def second(step: str) -> None:
        if step == "marked":
            with raises(UserError, Code.COMMAND_RUNNING, "runner"):
                site.reset().run()
            assert run(["reset", "runner", "--yes"]) == REFUSED
            assert code_of(capsys.readouterr().err, "onefold-reset runner (pid ") is Code.COMMAND_RUNNING

    site.reset().run(second)


def test_what_would_be_deleted_is_shown_and_nobody_is_asked_who_cannot_answer(
    folded: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exactly what is deleted then, and what stays."""
    site = folded
    with psycopg.connect(site.dsn) as connection:
        connection.execute("CREATE TABLE runner.shoes (name text)")
        connection.execute("INSERT INTO runner.shoes VALUES ('left')")
    astray = Producer(site.client)
    fields = dict.fromkeys(("user_id", "timestamp_utc", "sequence_id", "run_id"), 1)
    poison = json.dumps({**fields, "distance_meters": POISON_METERS}).encode()
    astray.produce("runner.updates", poison, b"1", 1 - partition_of("1", 2))
    assert astray.flush(20) == 0
    produce(site.client, "runner.updates", [(b"1", b"no update")])
    with instance(site.topology, site.client, site.home / "log", version="with_bug"):
        drained(site.topology, site.client)
    (first,) = (str(letter.place) for letter in site.letters.select(Wanted(reason="the handler raised")))
    (second,) = (str(letter.place) for letter in site.letters.select(Wanted(reason="not JSON")))
    assert run(["dead-letters", "drop", "runner", first, "--because", "a test event"]) == 0
    assert run(["dead-letters", "replay", "runner", second]) == 0
    capsys.readouterr()
    assert run(["reset", "runner", "--dry-run", "--json"]) == FAILED
    plan = json.loads(capsys.readouterr().out)
    mine = [*site.topology.outputs, "runner.updates.dead", "runner.changelog"]
    page = (ROOT / "docs" / "reset.md").read_text(encoding="utf-8").partition("## Reset a pipeline")[2]
    assert "```\nonefold reset runner --dry-run\nonefold reset runner\n```" in page
    assert [*plan["topics"]] == mine
    assert [*plan["tables"]] == [*TABLES]
    assert (plan["kept"], [*plan["inputs"]], plan["positions"]) == (["runner.shoes"], ["runner.updates"], 1)
    assert (plan["group"], plan["done"]) == ("onefold-runner", False)
    assert (plan["replayed"], plan["dropped"]) == (1, 1)

    assert run(["reset", "runner"]) == USAGE
    told = capsys.readouterr()
    assert "`onefold reset runner` deletes:\n  topic runner." in told.out
    assert "1 dropped records of the inputs count no more" in told.out
    assert code_of(told.err) is Code.NOT_CONFIRMED
    ids = site.ids(*mine, "runner.updates")
    assert run(["reset", "runner", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**plan, "done": True}
    now = site.ids(*mine, "runner.updates")
    assert {topic for topic in now if now[topic] == ids[topic]} == {"runner.updates"}
    assert site.rows("SELECT * FROM runner.shoes") == [("left",)]


def test_inputs_go_only_when_they_are_named(site: Site) -> None:
    """Killed after they are gone, too: the rest follows, with the number of partitions that there was."""
    dies("reset", "runner", site.options, "inputs", inputs=True)
    assert "runner.updates" not in existing(connect(site.client))
    site.reset(inputs=True).run()

    assert records(site.client, "runner.updates") == []
    assert existing(connect(site.client))["runner.updates"] == 2
    site.fold()


def test_without_servers_it_says_which(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", "postgresql://nobody@127.0.0.1:1/none")
    assert run(["reset", "runner", "--yes"]) == UNAVAILABLE
    assert code_of(capsys.readouterr().err) is Code.POSTGRES_SILENT
    monkeypatch.setattr(admin, "CALL_TIMEOUT_S", 1.0)
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", site.dsn)
    assert run(["reset", "runner", "--yes"]) == UNAVAILABLE
    assert code_of(capsys.readouterr().err, "127.0.0.1:1") is Code.KAFKA_SILENT
    assert run(["reset", "nobody"]) == USAGE


@pytest.mark.promise("dead-letters-dropped")
def test_afterwards_the_tables_are_the_same(site: Site, sink_here: SinkHere) -> None:
    """From Kafka through Spark to Postgres, before and after; verify says valid both times, also of dropped dead letters."""
    site.reset().run()
    produce(site.client, "runner.updates", [(b"1", b"no update"), (b"1", b"nor this")])
    site.fold()
    found = []
    for open_letters in (2, 0):
        sink = sink_here("runner")
        judged = eventually(supervised(sink, lambda: valid(site)), 120, "all is landed")
        sink.query.stop()
        assert judged["accepted"] > 100
        found.append([site.rows(f"SELECT {COLUMNS[table]} FROM {table} ORDER BY 1, 2") for table in TABLES])
        dropped = replay.drop(site.letters, Wanted(), Dropped("ada@laptop", "a test event"))
        assert (len(dropped.done), len(dropped.before)) == (open_letters, 2 - open_letters)
        assert valid(site) == judged
        eventually(lambda: not sinks_left(site), 20, "the sink's sessions have ended")
        site.reset().run()
        assert site.rows("SELECT count(*) FROM runner.messages") == [(0,)]
        site.fold()
    assert found[0] == found[1]


COLUMNS = {
    "runner.messages": "user_id, sequence_id, timestamp_utc",
    "runner.stats": "run_id, user_id, total_meters, total_time_ms",
    "runner.tendency": "user_id, timestamp_utc, current, previous",
}


def valid(site: Site) -> dict[str, int]:
    """The counts of a verdict that is valid; else {}."""
    verdict = verify("runner", client=site.client, dsn=site.dsn, timeout_s=0)
    assert verdict.outcome != "invalid", verdict.findings[:3]
    return verdict.counts if verdict.outcome == "valid" else {}


def sinks_left(site: Site) -> bool:
    of_sinks = "application_name LIKE 'onefold-sink%' AND datname = current_database()"
    return bool(site.rows(f"SELECT 1 FROM pg_stat_activity WHERE {of_sinks}"))
