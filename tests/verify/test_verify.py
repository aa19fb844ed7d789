"""The judge can fail. Onto a faultless result each kind of fault is put, and the judge must name it, and where it is.

Everything runs on a real broker and a real database. Faults in tables are undone, so those tests share a stage;
faults in topics stay, so those tests have one of their own.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from onefold.verify.judge import Verifier
from onefold.verify.kafka import Kafka
from onefold.verify.log import Log, Place
from onefold.verify.outcomes import Fate
from onefold.verify.record import Source
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, Finding, Verdict
from onefold.verify.verifier import verify
from onefold.verify.writer_identity import SOURCE_HEADER
from onefold.workloads import campaigns, runner, trades
from onefold.workloads.shaping import StreamShape
from tests.support.infrastructure import transactional
from tests.support.stage import Stage
from tests.verify.test_each_output import Plain

SHAPE = StreamShape(hostile=0.05, keyless=0.05)
COUNT = 400
USERS = 40


def judged(stage: Stage, timeout_s: float = 0.0) -> Verdict:
    return verify(stage.workload.name, client=stage.client, dsn=stage.dsn, timeout_s=timeout_s)


@pytest.fixture(scope="module")
def faultless() -> list[Stage]:
    """The stage of `runners`, while no test has taken its place."""
    return []


@pytest.fixture
def runners(faultless: list[Stage], bootstrap_servers: str, module_database: str) -> Stage:
    if not faultless:
        faultless.append(Stage(bootstrap_servers, module_database, runner.WORKLOAD))
        faultless[0].play(runner.generate(1, COUNT, shape=SHAPE, users=USERS))
    return faultless[0]


@pytest.fixture(scope="module")
def sends(bootstrap_servers: str, module_database: str) -> Stage:
    stage = Stage(bootstrap_servers, module_database, campaigns.WORKLOAD)
    stage.play(campaigns.generate(1, COUNT, shape=SHAPE, campaigns=40))
    return stage


@pytest.fixture(scope="module")
def risks(bootstrap_servers: str, module_database: str) -> Stage:
    stage = Stage(bootstrap_servers, module_database, trades.WORKLOAD)
    stage.play(trades.generate(1, COUNT))
    return stage


@pytest.fixture
def own(faultless: list[Stage], bootstrap_servers: str, module_database: str) -> Stage:
    """A stage to spoil. It takes the place of `runners`."""
    faultless.clear()
    stage = Stage(bootstrap_servers, module_database, runner.WORKLOAD)
    stage.play(runner.generate(2, COUNT, shape=SHAPE, users=USERS))
    return stage


@pytest.mark.promise("verify-finds-wrong")
def test_a_faultless_result_is_valid(runners: Stage, sends: Stage) -> None:
    for stage in (runners, sends):
        verdict = judged(stage)
        assert (verdict.outcome, verdict.findings) == (VALID, [])
        assert verdict.exit_code == 0
        assert verdict.counts["records"] == len(stage.originals) + stage.expected.counts.repartitioned
        assert verdict.counts["dead"] > 5
        assert verdict.counts["forwarded"] > 5
        assert all(check.expected == check.found for check in verdict.checks)
        assert verdict.offsets[stage.workload.inputs[0]].keys() == {0, 1}


def fault(stage: Stage, spoil: str, undo: str) -> Finding:
    """Do something to the tables; the one finding that it makes."""
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute(spoil)
        try:
            verdict = judged(stage)
        finally:
            connection.execute(undo)
    assert (verdict.outcome, verdict.exit_code) == (INVALID, 1), verdict.reason
    assert len(verdict.findings) == 1, verdict.findings
    return verdict.findings[0]


def keep(table: str, where: str) -> str:
    return f"CREATE TABLE public.kept AS SELECT * FROM {table} WHERE {where}"


@pytest.mark.promise("verify-finds-wrong")
def test_a_missing_row(runners: Stage) -> None:
    (user, sequence), (_, source) = next(iter(runners.expected.model.rows["runner.messages"].items()))
    row = f"user_id = {user} AND sequence_id = {sequence}"
    found = fault(
        runners,
        f"{keep('runner.messages', row)}; DELETE FROM runner.messages WHERE {row}",
        "INSERT INTO runner.messages SELECT * FROM public.kept; DROP TABLE public.kept",
    )
    assert (found.kind, found.where, found.source) == ("missing row", "runner.messages", str(source))
    assert found.key == {"user_id": user, "sequence_id": sequence}
    partition, offset = runners.place["runner.messages", (user, sequence)]
    assert found.output == f"runner.messages/{partition}/{offset}"


@pytest.mark.promise("verify-finds-wrong")
def test_an_extra_row(runners: Stage) -> None:
    found = fault(
        runners,
        "INSERT INTO runner.stats VALUES (-1, -2, 1, 1, 1, 'runner.stats', 0, 0)",
        "DELETE FROM runner.stats WHERE run_id = -1",
    )
    assert (found.kind, found.key) == ("extra row", {"run_id": -1, "user_id": -2})
    assert found.output == "runner.stats/0/0"


@pytest.mark.promise("verify-finds-wrong")
def test_a_changed_column(runners: Stage) -> None:
    (user,), (correct, source) = next(iter(runners.expected.model.rows["runner.tendency"].items()))
    found = fault(
        runners,
        f"UPDATE runner.tendency SET timestamp_utc = timestamp_utc + 7 WHERE user_id = {user}",
        f"UPDATE runner.tendency SET timestamp_utc = timestamp_utc - 7 WHERE user_id = {user}",
    )
    assert (found.kind, found.columns) == ("different row", {"timestamp_utc": (correct[2], correct[2] + 7)})
    assert (found.source, found.weight) == (str(source), 7)


@pytest.mark.promise("verify-finds-wrong")
def test_a_wrong_origin(runners: Stage) -> None:
    (user,), _ = next(iter(runners.expected.model.rows["runner.tendency"].items()))
    found = fault(
        runners,
        f'UPDATE runner.tendency SET "offset" = "offset" + 1000 WHERE user_id = {user}',
        f'UPDATE runner.tendency SET "offset" = "offset" - 1000 WHERE user_id = {user}',
    )
    assert found.kind == "wrong origin"


@pytest.mark.promise("verify-finds-wrong")
def test_a_rejected_output(runners: Stage) -> None:
    found = fault(
        runners,
        'INSERT INTO onefold.rejected (sink, topic, partition, "offset", reason, value)'
        " VALUES ('runner', 'runner.stats', 0, 3, 'torn', '')",
        "DELETE FROM onefold.rejected",
    )
    assert (found.kind, found.output, found.text) == ("rejected output", "runner.stats/0/3", "torn")


def test_a_computed_total_that_is_not_generated(sends: Stage) -> None:
    with psycopg.connect(sends.dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE campaigns.totals RENAME TO kept")
        connection.execute("CREATE TABLE campaigns.totals AS SELECT * FROM campaigns.kept")
        connection.execute("UPDATE campaigns.totals SET computed = 2100 WHERE id = 1")
        try:
            verdict = judged(sends)
        finally:
            connection.execute("DROP TABLE campaigns.totals")
            connection.execute("ALTER TABLE campaigns.kept RENAME TO totals")
    assert verdict.outcome == INVALID
    assert verdict.kinds() == {"different row": 1, "wrong column": 1}
    assert verdict.findings[1].columns == {"computed": (1100, 2100)}


def test_a_send_that_is_lost_shows_in_the_table_and_in_the_view(sends: Stage) -> None:
    with psycopg.connect(sends.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.kept AS SELECT * FROM campaigns.sends WHERE id = 1")
        connection.execute("DELETE FROM campaigns.sends WHERE id = 1 AND sent = 1000")
        try:
            verdict = judged(sends)
        finally:
            connection.execute("DELETE FROM campaigns.sends WHERE id = 1")
            connection.execute("INSERT INTO campaigns.sends SELECT * FROM public.kept")
            connection.execute("DROP TABLE public.kept")
    assert verdict.kinds() == {"different row": 1, "missing row": 1}
    different = next(finding for finding in verdict.findings if finding.kind == "different row")
    assert different.where == "campaigns.totals_from_sends"
    assert different.columns == {"sends": (2, 1), "computed": (1100, 100)}


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
            changed = connection.execute(spoil).rowcount
            verdict = judged(risks)
        finally:
            for table in ("risk", "current"):
                connection.execute(f"TRUNCATE trades.{table}; INSERT INTO trades.{table} SELECT * FROM public.{table}")
                connection.execute(f"DROP TABLE public.{table}")
    assert verdict.outcome == INVALID
    rows = [found for found in verdict.findings if found.kind != "broken invariant"]
    assert len(rows) == changed > 0
    assert len({found.kind for found in rows}) == 1


def test_a_row_that_a_view_alone_shows_is_named(sends: Stage) -> None:
    with psycopg.connect(sends.dsn, autocommit=True) as connection:
        connection.execute("ALTER VIEW campaigns.totals_from_sends RENAME TO shown")
        connection.execute(
            "CREATE VIEW campaigns.totals_from_sends AS SELECT * FROM campaigns.shown"
            " UNION ALL (SELECT -1, email, subject, sends, computed FROM campaigns.shown LIMIT 1)"
        )
        verdict = judged(sends)
        connection.execute("DROP VIEW campaigns.totals_from_sends")
        connection.execute("ALTER VIEW campaigns.shown RENAME TO totals_from_sends")
    assert [(found.kind, found.where, found.key) for found in verdict.findings] == [
        ("extra row", "campaigns.totals_from_sends", {"id": -1})
    ]


def test_a_changed_ledger_means_that_it_cannot_tell(runners: Stage) -> None:
    lag = "UPDATE onefold.ledger SET next_offset = next_offset {} 1 WHERE topic = 'runner.stats' AND partition = 1"
    with psycopg.connect(runners.dsn, autocommit=True) as connection:
        connection.execute(lag.format("-"))
        try:
            verdict = judged(runners)
        finally:
            connection.execute(lag.format("+"))
    assert (verdict.outcome, verdict.exit_code) == (UNKNOWN, 2)
    assert "the sink has written runner.stats/1" in verdict.reason


@pytest.mark.promise("verify-finds-wrong")
def test_a_ledger_that_is_ahead_of_the_log(runners: Stage) -> None:
    """The sink would skip the next thousand outputs."""
    ahead = "UPDATE onefold.ledger SET next_offset = next_offset {} 1000 WHERE topic = 'runner.stats' AND partition = 1"
    found = fault(runners, ahead.format("+"), ahead.format("-"))
    assert (found.kind, found.where) == ("wrong ledger", "onefold.ledger")
    assert found.key == {"topic": "runner.stats", "partition": 1}
    end = runners.ends["runner.stats", 1]
    assert found.text == f"the ledger says that {end + 1000} are written, and the topic ends at {end}"


def test_without_database_or_broker_it_cannot_tell(runners: Stage) -> None:
    verdict = verify("runner", client=runners.client, dsn="postgresql://127.0.0.1:1/none", timeout_s=0)
    assert (verdict.outcome, verdict.findings) == (UNKNOWN, [])
    assert "database" in verdict.reason
    assert verify("trains", client=runners.client, dsn=runners.dsn).outcome == UNKNOWN


def some(stage: Stage, fate: int, count: int) -> list[Source]:
    """Input records of that fate, repartitioned copies left out."""
    return [source for source in stage.originals if stage.expected.fate(source) == fate][:count]


def spoiled(stage: Stage) -> Verdict:
    stage.flush()
    stage.report_progress()
    stage.flush()
    verdict = judged(stage)
    assert (verdict.outcome, verdict.exit_code) == (INVALID, 1), verdict.reason
    return verdict


def found(verdict: Verdict, kind: str) -> set[tuple[str | None, str | None]]:
    return {(finding.source, finding.output) for finding in verdict.findings if finding.kind == kind}


@pytest.mark.promise("verify-finds-wrong")
def test_faults_of_outputs_and_dead_letters(own: Stage) -> None:
    messages = next(table for table in own.workload.tables if table.name == "runner.messages")
    rows = own.expected.model.rows["runner.messages"]
    key, other = list(rows)[5], list(rows)[6]
    ignored, accepted, dead = some(own, Fate.IGNORED, 1)[0], some(own, Fate.ACCEPTED, 1)[0], some(own, Fate.DEAD, 1)[0]
    # The row is as it should be: what was doubled is a record that the sink merged away.
    doubled = own.write(messages, key)
    phantom = own.write(messages, other, ignored)
    buried_twice, buried_alive = own.bury(dead), own.bury(accepted)
    verdict = spoiled(own)
    assert found(verdict, "doubled output") >= {(str(rows[key][1]), doubled)}
    assert found(verdict, "phantom output") == {(str(ignored), phantom)}
    assert found(verdict, "doubled dead letter") == {(str(dead), buried_twice)}
    assert found(verdict, "extra dead letter") == {(str(accepted), buried_alive)}


@pytest.mark.promise("verify-finds-wrong")
def test_faults_of_repartitioning(own: Stage) -> None:
    misrouted, accepted = some(own, Fate.REPARTITIONED, 1)[0], some(own, Fate.ACCEPTED, 1)[0]
    partition = 1 - misrouted.partition
    copies = own.copy(misrouted, partition, b"whatever"), own.copy(accepted, accepted.partition, b"whatever")
    twice, needless = (str(Source(*copy[:3])) for copy in copies)
    verdict = spoiled(own)
    assert found(verdict, "doubled copy") == {(str(misrouted), twice), (str(accepted), needless)}


def test_what_was_never_written_is_missed(own: Stage) -> None:
    """Input that nobody processed, although progress and ledger say that all is done."""
    update = b'{"user_id": 3001, "distance_meters": 1, "timestamp_utc": 2, "sequence_id": 100000, "run_id": 9}'
    ends = {p: own._ends["runner.updates", p] for p in (0, 1)}
    producer = Producer(own.client)
    for partition in (0, 1):
        producer.produce("runner.updates", b"nonsense", b"k", partition)
        producer.produce("runner.updates", update, b"3001", partition)
        own._ends["runner.updates", partition] += 2
    producer.flush(30)
    verdict = spoiled(own)
    assert found(verdict, "missing dead letter") == {(f"runner.updates/{p}/{ends[p]}", None) for p in ends}
    assert len(found(verdict, "missing copy")) == 1
    assert verdict.kinds()["missing row"] == 2  # its message and its run
    assert verdict.kinds()["different row"] == 1  # the tendency of the user, who was there before
    assert verdict.kinds()["wrong count"] > 0


def test_a_dead_letter_with_other_bytes(own: Stage) -> None:
    source = some(own, Fate.DEAD, 1)[0]
    original = own.originals[source]
    own.originals[source] = original._replace(value=(original.value or b"") + b"!")
    changed = own.bury(source)
    verdict = spoiled(own)
    assert found(verdict, "changed dead letter") == {(str(source), changed)}


def test_wrong_counts(own: Stage) -> None:
    own.report_progress(ignored=12345)
    own.flush()
    verdict = judged(own)
    assert verdict.kinds() == {"wrong count": 1}
    counted = own.expected.counts.ignored
    assert verdict.findings[0].columns == {"ignored": (counted, 12345)}


@pytest.mark.promise("verify-finds-wrong")
def test_a_progress_that_is_ahead_of_the_log(own: Stage) -> None:
    """The processor would skip the next thousand inputs."""
    (topic,) = own.workload.inputs
    end = own.ends[topic, 1]
    own.ends[topic, 1] += 1000
    own.report_progress()
    own.ends[topic, 1] -= 1000
    own.flush()
    verdict = judged(own)
    assert (verdict.outcome, verdict.kinds()) == (INVALID, {"wrong progress": 1})
    assert verdict.findings[0].key == {"topic": topic, "partition": 1}
    assert verdict.findings[0].text == f"the processor has read up to {end + 1000}, and it ends at {end}"


@pytest.mark.promise("verify-finds-wrong")
@pytest.mark.long  # 10 s
def test_an_open_transaction_means_that_it_cannot_tell(own: Stage) -> None:
    producer = transactional({**own.client, "transaction.timeout.ms": 60_000}, "proof-open")
    producer.begin_transaction()
    producer.produce("runner.stats", b"x", b"k", 1, headers=[(SOURCE_HEADER, b"runner.updates/0/0")])
    producer.flush(30)
    verdict = judged(own)
    producer.abort_transaction(30)
    assert (verdict.outcome, verdict.exit_code) == (UNKNOWN, 2)
    assert "a transaction is open on runner.stats/1" in verdict.reason
    # What was aborted was never there: as soon as the sink is past the marker, all is well again.
    own._ends["runner.stats", 1] += 2
    own.report_progress()
    own.flush()
    assert judged(own, timeout_s=10).outcome == VALID


def test_of_the_changelog_the_last_progress_counts_however_far_back_it_is(own: Stage) -> None:
    """States follow it, more than are looked through at first."""
    for _ in range(2_500):
        own.change_state(b"key", b"state")
    own.flush()
    assert judged(own).outcome == VALID


def test_a_log_whose_beginning_is_gone_means_that_it_cannot_tell(own: Stage) -> None:
    admin = AdminClient(own.client)
    deleted = admin.delete_records([TopicPartition("runner.updates", 0, 5)])
    for future in deleted.values():
        future.result()
    verdict = judged(own)
    assert verdict.outcome == UNKNOWN
    assert "runner.updates/0 starts at offset 5" in verdict.reason


def test_a_missing_topic_means_that_it_cannot_tell(own: Stage) -> None:
    admin = AdminClient(own.client)
    admin.delete_topics(["runner.updates.dead"], operation_timeout=30)["runner.updates.dead"].result()
    verdict = judged(own)
    assert verdict.outcome == UNKNOWN
    assert "runner.updates.dead" in verdict.reason


def test_a_checker_that_fails_has_not_passed(sends: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(campaigns.CampaignsModel, "settle", broken)
    verdict = verify("campaigns", client=sends.client, dsn=sends.dsn)
    assert (verdict.outcome, verdict.exit_code) == (UNKNOWN, 2)
    assert "the check itself failed" in verdict.reason


def test_a_verdict_is_plain_data(sends: Stage) -> None:
    with psycopg.connect(sends.dsn, autocommit=True) as connection:
        connection.execute("UPDATE campaigns.totals SET sent_1 = sent_1 + id WHERE id <= 2")
        try:
            verdict = judged(sends)
        finally:
            connection.execute("UPDATE campaigns.totals SET sent_1 = sent_1 - id WHERE id <= 2")
    data = json.loads(json.dumps(verdict.as_data(), default=str))
    kind = data["kinds"]["different row"]
    assert kind["count"] == 2
    assert kind["worst"]["key"] == {"id": 2}
    assert data["exit_code"] == 1


def test_of_a_model_with_plain_rows_inputs_are_held_until_the_output_records_are_read(
    runners: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the client: what it has fetched of them already is neither lost nor read twice."""
    held: list[bool] = []

    class Noting(Log):
        def hold(self, places: Iterable[Place], is_held: bool) -> None:
            held.append(is_held)
            super().hold(places, is_held)

    monkeypatch.setattr("onefold.verify.verifier.Verifier", partial(Verifier, kafka=Kafka(log=Noting)))
    monkeypatch.setattr(runner, "WORKLOAD", replace(runner.WORKLOAD, model=Plain))
    verdict = judged(runners)
    assert (verdict.outcome, verdict.findings, verdict.uncompared) == (VALID, [], 0)
    assert held == [True, False]
