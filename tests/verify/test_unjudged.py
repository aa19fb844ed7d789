"""What the model of a pipeline never mentions is named by the verdict: it may be wrong, and nobody would find it."""

import dataclasses
from types import SimpleNamespace

import psycopg
import pytest

from onefold import pipelines
from onefold.verify import judge, unjudged
from onefold.verify.expect import Column, Table, Workload
from onefold.verify.snapshot import Snapshot
from onefold.verify.verdict import VALID, Verdict
from onefold.workloads import campaigns, runner, trades
from tests.support.migrated import migrate_all
from tests.support.simulated_stage import SimulatedStage
from tests.support.stage import SQL
from tests.verify.test_agreement_bounds import APPS

STATS, *OTHERS = runner.WORKLOAD.tables


def judged(stage: SimulatedStage, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    """What the verifier says with another model than that of the stage."""
    monkeypatch.setattr(judge, "workload", lambda domain: workload)
    verdict = stage.judge()
    assert (verdict.outcome, verdict.findings) == (VALID, [])
    return verdict


@pytest.fixture
def stage(module_database: str) -> SimulatedStage:
    made = SimulatedStage(module_database, runner.WORKLOAD)
    made.play(runner.generate(3, 120, users=12))
    return made


def change(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement)


def test_a_table_and_a_topic_that_the_model_forgot(stage: SimulatedStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it may be wrong."""
    change(stage.dsn, "UPDATE runner.stats SET total_meters = 1")
    forgetful = dataclasses.replace(runner.WORKLOAD, tables=tuple(OTHERS))
    assert judged(stage, forgetful, monkeypatch).not_judged == {STATS.name: ""}
    knowing = dataclasses.replace(forgetful, not_judged={STATS.name: "it is for fun", "runner.gone": "it was"})
    assert judged(stage, knowing, monkeypatch).not_judged == {STATS.name: "it is for fun"}


def test_a_column_that_the_model_forgot(stage: SimulatedStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the table alone, or also in the records."""
    change(stage.dsn, "ALTER TABLE runner.stats ADD COLUMN note text DEFAULT 'anything'")
    try:
        assert judged(stage, runner.WORKLOAD, monkeypatch).not_judged == {"runner.stats.note": ""}
        few = tuple(Column(column.name) for column in STATS.columns if column.name != "total_meters")
        without = dataclasses.replace(STATS, only=few)
        work = dataclasses.replace(runner.WORKLOAD, tables=(without, *OTHERS))
        with Snapshot(stage.dsn) as snapshot:
            assert unjudged.unjudged(work, snapshot) == {"runner.stats.total_meters": "", "runner.stats.note": ""}
    finally:
        change(stage.dsn, "ALTER TABLE runner.stats DROP COLUMN note")


def test_a_table_beside_those_of_the_model(stage: SimulatedStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes it; a partition is no table of its own, and tables of other schemas are no business of the pipeline."""
    change(stage.dsn, "CREATE TABLE runner.days (day date) PARTITION BY RANGE (day)")
    change(
        stage.dsn, "CREATE TABLE runner.day_1 PARTITION OF runner.days FOR VALUES FROM ('2026-01-01') TO ('2026-01-02')"
    )
    change(stage.dsn, "CREATE TABLE public.beside (day date)")
    try:
        assert judged(stage, runner.WORKLOAD, monkeypatch).not_judged == {"runner.days": ""}
    finally:
        change(stage.dsn, "DROP TABLE runner.days, public.beside")


def test_an_output_topic_that_no_table_wants(stage: SimulatedStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that the sink writes into no table of the model."""
    found = pipelines.find()
    mine = dataclasses.replace(found["runner"], kafka_only=("runner.copies",))
    monkeypatch.setattr(pipelines, "find", lambda: dataclasses.replace(found, pipelines={"runner": mine}))
    assert judged(stage, runner.WORKLOAD, monkeypatch).not_judged == {"runner.copies": ""}
    queues = dataclasses.replace(runner.WORKLOAD, queues=("runner.copies",))
    landed = "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)"
    change(stage.dsn, f"{landed} VALUES ('runner', 'runner.extra', 0, 7, 'x', 'stage', now())")
    try:
        with Snapshot(stage.dsn) as snapshot:
            assert unjudged.unjudged(queues, snapshot) == {"runner.extra": ""}
    finally:
        change(stage.dsn, "DELETE FROM onefold.ledger WHERE topic = 'runner.extra'")


def test_names_that_postgresql_cuts_are_mentioned_all_the_same(module_database: str) -> None:
    migrate_all(module_database, SQL)
    name = "runner." + "long" * 20
    change(module_database, f"CREATE TABLE {name} (id bigint)")
    try:
        table = dataclasses.replace(STATS, name=name, only=(Column("id", "long"),), key=("id",))
        work = dataclasses.replace(runner.WORKLOAD, tables=(table, *runner.WORKLOAD.tables))
        with Snapshot(module_database) as snapshot:
            assert unjudged.unjudged(work, snapshot) == {}
    finally:
        change(module_database, f"DROP TABLE {name}")


@pytest.mark.parametrize("domain", APPS, ids=lambda domain: domain.WORKLOAD.name)
def test_a_pipeline_that_onefold_brings_says_why(domain: SimpleNamespace, module_database: str) -> None:
    """Of each thing that its model leaves out, and of nothing else."""
    migrate_all(module_database, SQL)
    with Snapshot(module_database) as snapshot:
        assert unjudged.unjudged(domain.WORKLOAD, snapshot) == domain.WORKLOAD.not_judged
    assert all(domain.WORKLOAD.not_judged.values())


def test_sums_do_not_stand_for_the_records_of_their_topic() -> None:
    """Only a table with a row for each key compares these."""
    sums = Table("shop.sums", "shop.sales", ("item",), summed=True)
    work = Workload("shop", ("shop.orders",), (sums,), runner.Model)
    assert list(work.unmentioned(["shop.sales"], {"shop.sales": ["item"]})) == ["shop.sales"]


@pytest.mark.parametrize("domain", [runner, campaigns, trades], ids=lambda domain: domain.WORKLOAD.name)
def test_a_verdict_says_what_it_covers(domain: SimpleNamespace, module_database: str) -> None:
    stage = SimulatedStage(module_database, domain.WORKLOAD)
    stage.play(domain.generate(3, 60))
    verdict = stage.judge()
    rows = {table.name: len(stage.expected.model.rows[table.name]) for table in domain.WORKLOAD.tables}
    assert verdict.rows == sum(rows.values())
    assert verdict.outputs == sum(stage.ends[topic, p] for topic in domain.WORKLOAD.outputs for p in (0, 1))
    topics = {topic for topic in stage.topics if not topic.endswith(".changelog")}
    assert verdict.begins == {topic: {0: 0, 1: 0} for topic in topics}
    assert {topic: verdict.offsets[topic] for topic in topics} == {
        topic: {p: stage.ends[topic, p] for p in (0, 1)} for topic in topics
    }
