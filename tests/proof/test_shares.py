"""A verdict by several processes. They may call it valid, and nothing else; the tests of `verify` ask several.

Here is what goes over all shares, what cannot be shared, and what becomes of a verdict when a process has trouble.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psutil
import psycopg
import pytest

from onefold.proof import parts, shares
from onefold.proof.expect import Column, View
from onefold.proof.judge import Judge
from onefold.proof.kafka import Kafka
from onefold.proof.placement import ALL, Share
from onefold.proof.record import Source
from onefold.proof.summed import Gathered
from onefold.proof.tables import Snapshot
from onefold.proof.verdict import INVALID, VALID, Verdict
from onefold.proof.verify import verify
from onefold.proof.workloads import campaigns, runner, trades, workload
from tests.proof.test_model_trades import A, B, message
from tests.support.command_line import ROOT
from tests.support.stage import PARTITIONS, Stage
from tests.support.waiting import eventually

COUNT = 400


@pytest.fixture(scope="module")
def risks(bootstrap_servers: str, module_database: str) -> Stage:
    stage = Stage(bootstrap_servers, module_database, trades.WORKLOAD)
    stage.play(trades.generate(1, COUNT))
    return stage


@pytest.fixture(scope="module")
def sends(bootstrap_servers: str, module_database: str) -> Stage:
    stage = Stage(bootstrap_servers, module_database, campaigns.WORKLOAD)
    stage.play(campaigns.generate(1, COUNT, campaigns=40))
    return stage


@pytest.fixture
def runners(bootstrap_servers: str, module_database: str) -> Stage:
    stage = Stage(bootstrap_servers, module_database, runner.WORKLOAD)
    stage.play(runner.generate(1, COUNT, users=40))
    return stage


def judged(stage: Stage, processes: int = PARTITIONS, **more: Any) -> Verdict:
    return verify(
        stage.workload.name,
        client=stage.client,
        dsn=stage.dsn,
        timeout_s=0.0,
        from_start=True,
        processes=processes,
        **more,
    )


def test_sums_over_all_shares_are_right(risks: Stage) -> None:
    verdict = judged(risks)
    assert (verdict.outcome, verdict.findings, verdict.processes) == (VALID, [], 2), verdict.reason
    checks = {check.what: check for check in verdict.checks}
    assert checks["trades.risk"].expected == checks["trades.risk"].found > 10
    assert checks["trades.current"].expected == len(risks.expected.model.rows["trades.current"]) > 100
    assert verdict.checks == judged(risks, 1).checks


@pytest.mark.usefixtures("forked_shares")
@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE trades.risk SET value = value + 1 WHERE risk_type IS NULL AND region IS NULL AND trade_desk IS NULL",
        "DELETE FROM trades.risk WHERE trades > 0",
        """INSERT INTO trades.risk SELECT risk_type, 'XX', trade_desk, value, trades, topic, partition, "offset"
        FROM trades.risk LIMIT 1""",
        "UPDATE trades.current SET partition = 1 - partition",
    ],
)
def test_what_is_wrong_with_sums_and_origins_is_named(risks: Stage, spoil: str) -> None:
    with psycopg.connect(risks.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.risk AS SELECT * FROM trades.risk")
        connection.execute("CREATE TABLE public.current AS SELECT * FROM trades.current")
        try:
            assert connection.execute(spoil).rowcount > 0
            verdict = judged(risks)
            assert (verdict.outcome, verdict.processes) == (INVALID, 1)
            assert verdict.findings == judged(risks, 1).findings
        finally:
            for table in ("risk", "current"):
                connection.execute(f"TRUNCATE trades.{table}; INSERT INTO trades.{table} SELECT * FROM public.{table}")
                connection.execute(f"DROP TABLE public.{table}")


@pytest.mark.usefixtures("forked_shares")
def test_a_row_that_a_view_alone_shows_is_named(sends: Stage) -> None:
    """No share has it."""
    assert judged(sends).processes == 2
    with psycopg.connect(sends.dsn, autocommit=True) as connection:
        connection.execute("ALTER VIEW campaigns.totals_from_sends RENAME TO shown")
        connection.execute(
            "CREATE VIEW campaigns.totals_from_sends AS SELECT * FROM campaigns.shown"
            " UNION ALL (SELECT -1, email, subject, sends, computed FROM campaigns.shown LIMIT 1)"
        )
        verdict = judged(sends)
        connection.execute("DROP VIEW campaigns.totals_from_sends")
        connection.execute("ALTER VIEW campaigns.shown RENAME TO totals_from_sends")
    assert (verdict.outcome, verdict.processes) == (INVALID, 1)
    assert [(found.kind, found.where, found.key) for found in verdict.findings] == [
        ("extra row", "campaigns.totals_from_sends", {"id": -1})
    ]


@pytest.mark.usefixtures("forked_shares")
@pytest.mark.parametrize(("processes", "used"), [(1, 1), (2, 2), (3, 2), (64, 2)])
def test_no_more_processes_judge_than_divide_the_partitions(risks: Stage, processes: int, used: int) -> None:
    assert judged(risks, processes).processes == used


@pytest.mark.usefixtures("forked_shares")
def test_outputs_in_the_partition_of_another_share_are_judged_by_one(runners: Stage) -> None:
    """As where outputs have keys of their own. A row's inputs and its outputs are not together then."""
    table = next(table for table in runners.workload.tables if table.name == "runner.messages")
    key, (_, source) = next(iter(runners.expected.model.rows[table.name].items()))
    runners.write(table, key, source, partition=1 - source.partition)
    runners.flush()
    runners.report_progress()
    runners.flush()
    verdict = judged(runners)
    assert (verdict.outcome, verdict.processes) == (INVALID, 1)
    # Which of both is the last of its row, is up to how partitions are read side by side.
    assert {"doubled output"} <= {found.kind for found in verdict.findings} <= {"doubled output", "wrong origin"}


@pytest.mark.usefixtures("forked_shares")
def test_a_log_with_dead_letters_put_back_is_judged_by_one(risks: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who put them back, and where to, is known of the whole log."""
    put_back = Kafka(receipts=lambda *of_what: {Source(trades.TOPIC, 0, 1_000_000)})
    monkeypatch.setattr("onefold.proof.verify.Judge", partial(Judge, kafka=put_back))
    verdict = judged(risks)
    assert (verdict.outcome, verdict.processes) == (VALID, 1)


def a_share_that_is_killed(pipe: Connection, settings: shares.Settings, share: Share) -> None:
    os._exit(9)


def a_share_without_a_database(pipe: Connection, settings: shares.Settings, share: Share) -> None:
    shares._judge(pipe, settings._replace(dsn="postgresql://127.0.0.1:1/none"), share)


def a_share_that_has_a_bug(pipe: Connection, settings: shares.Settings, share: Share) -> None:
    shares._judge(pipe, settings._replace(client=None), share)  # type: ignore[arg-type]  # that is the bug


def a_share_in_the_middle_of_its_work(pipe: Connection, settings: shares.Settings, share: Share) -> None:
    """Which has nothing to say for very long."""

    def work(*_: object) -> None:
        pipe.send("at work")
        signal.pause()

    shares._answer = work  # type: ignore[assignment]  # in this process alone
    shares._judge(pipe, settings, share)


_PARENT = """
import multiprocessing, signal
from onefold.proof import shares
from tests.proof import test_shares
shares._judge = test_shares.a_share_in_the_middle_of_its_work
several = shares.Shares(None, shares.Settings("trades", {}, ""), 2, lambda doing, records: None)
with several._processes():
    assert [pipe.recv() for pipe in several._pipes] == ["at work"] * 2
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    signal.pause()
"""


def test_shares_end_with_the_judge_that_wants_them() -> None:
    """Also when nobody has told them: a judge that was killed leaves no processes that read its log to the end."""
    search = {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, env=os.environ | search) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    try:
        eventually(lambda: not any(map(at_work, children)), 10, "they end as well")
    finally:
        for child in filter(at_work, children):
            child.kill()


def at_work(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.usefixtures("forked_shares")
@pytest.mark.parametrize(
    ("process", "note"),
    [
        (a_share_that_is_killed, "several could not: one of the processes was killed"),
        (a_share_that_has_a_bug, "several could not: TypeError"),
        (a_share_without_a_database, ""),
    ],
)
def test_where_a_process_has_trouble_one_judges(
    risks: Stage, process: Any, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what keeps it from judging it says itself."""
    monkeypatch.setattr(shares, "_judge", process)
    verdict = judged(risks)
    assert (verdict.outcome, verdict.processes) == (VALID, 1)
    assert note in verdict.note
    assert bool(note) == bool(verdict.note)
    assert multiprocessing.active_children() == []


def test_every_row_is_in_one_share(module_database: str) -> None:
    """Also one whose origin is nobody's."""
    partitions = [-2_147_483_648, -3, -1, None, 0, 1, 2, 5, 2_147_483_647]
    with psycopg.connect(module_database, autocommit=True) as connection:
        connection.execute('CREATE TABLE public.rows ("partition" integer)')
        connection.cursor().executemany("INSERT INTO public.rows VALUES (%s)", [(one,) for one in partitions])
    with Snapshot(module_database) as snapshot:
        for several in (1, 2, 3, 7):
            parts = [Share(number, several) for number in range(several)]
            found = [row for part in parts for (row,) in snapshot.rows("public.rows", ("partition",), part)]
            assert sorted(found, key=str) == sorted(partitions, key=str)
        assert snapshot.count("public.rows") == len(partitions)


def test_all_shares_see_one_moment(module_database: str) -> None:
    with psycopg.connect(module_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.moments (partition integer)")
        with Snapshot(module_database) as first:
            name = first.exported()
            connection.execute("INSERT INTO public.moments VALUES (1)")
            with Snapshot(module_database, name) as same, Snapshot(module_database) as later:
                seen = [one.count("public.moments") for one in (first, same, later)]
    assert seen == [0, 0, 1]


@pytest.mark.parametrize(
    ("domain", "partitions", "most", "found"),
    [
        ("runner", [4, 4], 2, 2),
        ("trades", [4, 2, 8], 4, 2),
        ("campaigns", [6], 4, 3),
        ("averages", [4, 4], 64, 4),
        ("runner", [3, 4], 8, 1),
        ("runner", [4, 8], 3, 2),
        ("runner", [1], 8, 1),
        ("bank", [4, 4], 2, 1),  # what one account pays another one has
        ("sheets", [4, 4], 2, 1),  # workers make objects for all
    ],
)
def test_a_log_is_divided_where_rows_are_apart(domain: str, partitions: list[int], most: int, found: int) -> None:
    assert parts.shares(workload(domain), partitions, most) == found


def test_a_log_is_not_divided_unless_its_model_is_known_to_allow_it() -> None:
    work = workload("trades")
    amounts = [Column("value", "double"), Column("trades", "long")]
    inexact = replace(trades.RISK, but=tuple(amounts))
    more = replace(trades.RISK, but=(*trades.RISK.columns, Column("region_name", "text")))
    for other in (
        replace(work, apart=False),
        replace(work, views=(View("trades.shown", "trades.nowhere", ("trade_id",)),)),
        replace(work, tables=(trades.CURRENT, inexact)),
        replace(work, tables=(trades.CURRENT, more)),
        replace(work, tables=(trades.CURRENT, replace(trades.RISK, sums=None))),
    ):
        assert parts.shares(other, [4], 2) == 1
    assert parts.shares(work, [4], 2) == 2


def test_what_a_registry_answers_is_asked_for_by_one(risks: Stage) -> None:
    verdict = judged(risks, schema_registry_url="http://127.0.0.1:9")
    assert (verdict.outcome, verdict.processes) == (VALID, 1)


def test_a_table_that_is_gathered_is_not_divided() -> None:
    bank = workload("bank")
    gathered = tuple(table for table in bank.tables if isinstance(table.sums, Gathered))
    assert gathered
    assert parts.shares(replace(bank, fed=(), queues=(), tables=gathered), [4], 2) == 1


def test_the_session_that_has_the_moment_is_not_ended_for_its_idling(module_database: str) -> None:
    """It waits for all shares, whatever the database or a role says of idle sessions."""
    impatient = psycopg.conninfo.make_conninfo(module_database, options="-c idle_in_transaction_session_timeout=200")
    with Snapshot(impatient) as kept:
        kept.exported()
        with psycopg.connect(module_database, autocommit=True) as other:
            idle = (
                "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
                " AND clock_timestamp() - state_change > interval '1 second'"
            )
            eventually(lambda: other.execute(idle).fetchone() == (1,), 30, "it has idled for five times as long")
        assert kept.count("pg_class") > 0


def test_what_is_started_takes_no_notice_of_ctrl_c() -> None:
    """It comes to all processes of a terminal, and one of them is enough to end the others."""
    says = "import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    before = signal.getsignal(signal.SIGINT)
    with shares._uninterrupted():
        inside = subprocess.run([sys.executable, "-c", says], capture_output=True, encoding="utf-8", check=True)
    outside = subprocess.run([sys.executable, "-c", says], capture_output=True, encoding="utf-8", check=True)
    assert (inside.stdout.strip(), outside.stdout.strip()) == ("True", "False")
    assert signal.getsignal(signal.SIGINT) == before


def test_what_the_processor_has_counted_is_added_whatever_it_is() -> None:
    """A count below nothing would be lost in the sum of `Counter`s, and a wrong one with it."""
    several = [Counter({"accepted": -5, "dead": 1}), Counter({"accepted": 10, "ignored": 0})]
    assert parts.counted(several) == {"accepted": 5, "dead": 1, "ignored": 0}


def test_what_shares_add_to_a_sum_is_added() -> None:
    """As if one model had seen all of it."""
    story = [message("one", 0, "10.5", A), message("two", 4, "-3", A), message("three", 1, "2", B)]
    whole, halves = trades.Model(), [trades.Model(), trades.Model()]
    for offset, value in enumerate(story):
        source = Source(trades.TOPIC, offset % 2, offset)
        assert whole.apply(value, source)
        assert halves[offset % 2].apply(value, source)
    for model in (whole, *halves):
        model.settle()
    assert parts.added(trades.RISK, [half.rows["trades.risk"] for half in halves]) == whole.rows["trades.risk"]


@pytest.mark.parametrize("partitions", [0, 1, 7, 64])
@pytest.mark.parametrize("several", [1, 2, 3, 8])
def test_shares_divide_partitions(partitions: int, several: int) -> None:
    parts = [Share(number, several) for number in range(several)]
    assert sorted(one for part in parts for one in part.of(partitions)) == list(range(partitions))
    for part in parts:
        assert all(one in part for one in part.of(partitions))
    assert ALL.of(partitions) == range(partitions)
