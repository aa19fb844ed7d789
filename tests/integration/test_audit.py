"""`onefold audit` beside the real parts: a real processor, the pipeline's own merge statements, a real broker and Postgres.

Faults of a running pipeline, each planted while the auditor watches, and named with the record or row that is wrong. What SQL
does to tables and ledger, and what is written twice, is in tests/verify/test_audit.py.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.cli.main import run
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, OK, USAGE
from onefold.operate import auditing
from onefold.operate.reset.reset import Reset
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, create_topics
from onefold.verify.audit.auditor import Auditor
from onefold.verify.audit.pace import Pace
from onefold.verify.verdict import INVALID, UNKNOWN, VALID
from onefold.workloads import runner
from tests.support.audited import NAMED_WITHIN_S, Audited
from tests.support.coded import code_of
from tests.support.infrastructure import delete_topics
from tests.support.merged import land
from tests.support.migrated import migrate_all
from tests.support.processes import drained, instance, opened, produce
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.postgres, pytest.mark.promise("audit-names-wrong")]
USERS = 5
OVER = "was deleted or recreated: this run ends"


def update(user: int, sequence: int, metres: int = 100) -> tuple[bytes, bytes]:
    body = {
        "user_id": user,
        "run_id": user,
        "sequence_id": sequence,
        "distance_meters": metres,
        "timestamp_utc": 30_000 * sequence,
    }
    return str(user).encode(), json.dumps(body).encode()


class Running(Audited):
    """Runner, folded by a real processor, landed by its own statements, and audited."""

    def fold(self, sequence: int, **options: Any) -> None:
        """An update of each user, in the log and folded."""
        with instance(self.topology, self.client, self.folder / "processor", **options):
            produce(self.client, "runner.updates", [update(user, sequence) for user in range(USERS)])
            drained(self.topology, self.client)

    @contextmanager
    def another(self, pace: Pace) -> Iterator[Auditor]:
        """An auditor of another pace takes the place of the first, and has found everything right so far."""
        self.auditor.close()
        with closing(Auditor(self.topology.name, client=self.client, dsn=self.dsn, pace=pace)) as self.auditor:
            self.valid(0)
            yield self.auditor


@pytest.fixture
def running(
    fresh_domain: Callable[..., Topology], client: dict[str, str], database: str, checkout: Path, tmp_path: Path
) -> Iterator[Running]:
    migrate_all(database, checkout / "sql")
    made = Running(fresh_domain("runner"), client, database, tmp_path)
    made.fold(1)
    land(made.topology, client, database)
    with closing(made.auditor):
        made.valid(0)
        yield made


@pytest.mark.long  # 20 s
def test_outputs_are_judged_before_they_land_and_what_is_wrong_is_named(
    running: Running, checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables are behind for long, and stay right. Then a row is gone, a merge is wrong, and the rule changes."""
    running.fold(2)
    running.valid(3 * USERS)
    running.fold(3)
    running.valid(6 * USERS)
    land(running.topology, running.client, running.dsn)
    running.valid(6 * USERS)

    the_command_names_a_missing_row(running, monkeypatch, capsys)

    wrong = running.folder / "sql"
    shutil.copytree(checkout / "sql", wrong)
    merge = wrong / "merge" / "runner.stats.sql"
    merge.write_text(
        merge.read_text(encoding="utf-8").replace("excluded.total_meters", "greatest(excluded.total_meters, 150) - 1"),
        encoding="utf-8",
    )
    running.fold(4)
    running.valid(9 * USERS)
    land(running.topology, running.client, running.dsn, sql_root=wrong)
    standing = running.audit(lambda standing: bool(standing.findings), NAMED_WITHIN_S)
    assert {(one.kind, one.where) for one in standing.findings} == {("different row", "runner.stats")}
    assert standing.findings[0].columns == {"total_meters": (400, 399)}

    running.fold(5, version="other_rule")
    standing = running.audit(lambda standing: standing.findings[-1].kind == "wrong output", NAMED_WITHIN_S)
    last = standing.findings[-1]
    assert last.where in ("runner.stats", "runner.messages", "runner.tendency")
    assert (last.source or "").startswith("runner.updates/")


def the_command_names_a_missing_row(
    running: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In log, database and exit code. Afterwards the row is there again."""
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", running.client["bootstrap.servers"])
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", running.dsn)
    monkeypatch.setenv("ONEFOLD_HOME", str(running.folder / "home"))
    monkeypatch.setenv("ONEFOLD_LOG_FORMAT", "json")
    assert run(("audit", "runner", "--once")) == OK
    with psycopg.connect(running.dsn, autocommit=True) as connection:
        asked = "SELECT outcome FROM onefold.verdict WHERE domain = 'runner'"
        assert connection.execute(asked).fetchall() == [(VALID,)]
        connection.execute("CREATE TABLE public.kept AS SELECT * FROM runner.stats WHERE user_id = 1")
        connection.execute("DELETE FROM runner.stats WHERE user_id = 1")
        capsys.readouterr()
        assert run(("audit", "runner", "--until-found")) == FAILED
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        found = next(line for line in lines if line["event"] == "divergence")
        assert (found["kind"], found["where"], found["key"]) == ("missing row", "runner.stats", "run_id 1, user_id 1")
        assert connection.execute(asked).fetchall() == [(INVALID,)]
        ((reason, kept),) = connection.execute("SELECT reason, findings FROM onefold.verdict").fetchall()
        assert reason.startswith("1 differences from what follows from the input log; the first: kind missing row")
        assert [(one["kind"], one["where"], one["key"]) for one in kept["first"]] == [
            ("missing row", "runner.stats", "run_id 1, user_id 1")
        ], "where the page finds it"
        connection.execute("INSERT INTO runner.stats TABLE public.kept")
    unknown = replace(runner.WORKLOAD, tables=(replace(runner.WORKLOAD.tables[0], summed=True),))
    with monkeypatch.context() as patched:
        patched.setattr(auditing, "workload", lambda domain: unknown)
        assert run(("audit", "runner")) == USAGE
    assert code_of(capsys.readouterr().err, "runner.stats") is Code.ARGUMENT_WRONG


@pytest.mark.promise("audit-follows-replicas")
def test_replicas_are_followed_while_the_one_that_publishes_is_killed(
    running: Running,
) -> None:
    """From the elastic task on, and what SQL does to a row is named as ever; so is the other rule of a replica."""
    logs = {name: running.folder / name for name in "ab"}

    def of(name: str, **options: Any) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        return instance(running.topology, running.client, logs[name], name=name, replicas=2, **options)

    with of("b") as killed:
        produce(running.client, "runner.updates", [update(user, 2) for user in range(USERS)])
        drained(running.topology, running.client)
        with of("a"):
            eventually(lambda: opened(logs["a"]), 30, "the other one has its tasks")
            assert "publishes" not in logs["a"].read_text(encoding="utf-8")
            produce(running.client, "runner.updates", [update(user, 3) for user in range(USERS)])
            killed.kill()
            drained(running.topology, running.client)
            running.valid(6 * USERS)
            land(running.topology, running.client, running.dsn)
            running.valid(6 * USERS)
    assert "publishes" in logs["a"].read_text(encoding="utf-8")

    with psycopg.connect(running.dsn, autocommit=True) as connection:
        connection.execute("UPDATE runner.stats SET total_meters = total_meters + 1 WHERE user_id = 1")
    standing = running.audit(lambda standing: bool(standing.findings), NAMED_WITHIN_S)
    assert [(one.kind, one.where, one.columns) for one in standing.findings] == [
        ("different row", "runner.stats", {"total_meters": (300, 301)})
    ]
    with of("a", version="other_rule"):
        produce(running.client, "runner.updates", [update(user, 4) for user in range(USERS)])
        drained(running.topology, running.client)
    running.audit(lambda standing: "wrong output" in {one.kind for one in standing.findings}, NAMED_WITHIN_S)


@pytest.mark.long  # 11 s
@pytest.mark.promise("audit-after-a-reset")
def test_a_pipeline_that_is_started_over_is_no_divergence(running: Running, tmp_path: Path) -> None:
    """The auditor looks on at each step and afterwards; then it ends, and the next one begins anew."""
    settings = Settings(bootstrap_servers=running.client["bootstrap.servers"], postgres_dsn=running.dsn, home=tmp_path)

    def look(step: str) -> None:
        turns = iter(range(3))
        found = auditor.run(lambda standing: None, lambda pause: next(turns, None) is None, lambda standing: False)
        assert found.findings == [], step

    def is_over() -> bool:
        look("afterwards")
        return OVER in auditor.standing.reason

    # By itself it asks after the topics now and then; here it has to before it names anything.
    pace = Pace(look_every_s=0.0, look_every_max_s=0.0, ask_every_s=1_000.0)
    with running.another(pace) as auditor:
        Reset("runner", settings).run(look)
        eventually(is_over, 30, "it has ended")
        assert auditor.standing.outcome == UNKNOWN
    running.fold(1)
    land(running.topology, running.client, running.dsn)
    with closing(Auditor("runner", client=running.client, dsn=running.dsn)) as running.auditor:
        running.valid(0)


@pytest.mark.promise("audit-after-a-reset")
def test_an_input_that_was_made_again_ends_it(running: Running) -> None:
    """A reader of the old one hears of nothing any more."""
    with running.another(Pace(ask_every_s=0.0)) as auditor:
        delete_topics(connect(running.client), ("runner.updates",))
        eventually(lambda: create_topics(running.topology, 2, running.client), 20, "it is there again")
        found = auditor.run(lambda standing: None, lambda pause: False, lambda standing: OVER in standing.reason)
    assert (found.outcome, found.findings) == (UNKNOWN, [])
