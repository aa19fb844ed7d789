"""The transactions and batches of a row's records before its own: found, bounded, and said where they are not known."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.cli.main import run
from onefold.exit_codes import OK
from onefold.operate import explain
from onefold.operate.explained import Explanation, Step
from onefold.processor.io.partitioner import partition_of
from tests.support.explained import Explained, send
from tests.support.infrastructure import make_anew, new_database
from tests.support.merged import WRITER, land
from tests.support.migrated import migrate_all

HOME = partition_of("1", 2)
#: Another campaign in the same partition.
OTHER = next(number for number in range(2, 100) if partition_of(str(number), 2) == HOME)


@pytest.fixture(scope="module")
def landed(
    bootstrap_servers: str, module_database: str, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> Explained:
    """Four transactions, of which each of three batches has landed one or two; the last one is not of campaign 1."""
    migrate_all(module_database, checkout / "sql")
    client = {"bootstrap.servers": bootstrap_servers}
    made = Explained(make_anew(client, "campaigns"), client, module_database, tmp_path_factory.mktemp("history"))
    for batches in ([[send(1, 1, 1)]], [[send(1, 2, 2)], [send(1, 3, 3)]], [[send(OTHER, 1, 1)]]):
        made.fold(*batches)
        land(made.topology, client, module_database, ["campaigns.totals"])
    return made


@pytest.fixture
def campaigns(landed: Explained, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Explained]:
    """That, with a copy of the database for this test."""
    name = psycopg.conninfo.conninfo_to_dict(landed.dsn)["dbname"]
    with new_database(postgres_dsn, str(name)) as dsn:
        monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", landed.client["bootstrap.servers"])
        monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", dsn)
        yield Explained(landed.topology, landed.client, dsn, landed.folder)


def change(domain: Explained, statement: str) -> None:
    with psycopg.connect(domain.dsn) as connection:
        connection.execute(statement)


def told(domain: Explained, **options: Any) -> Explanation:
    return domain.explain("campaigns.totals", id="1", **options)


def offset(step: Step) -> int:
    return int(step.output.where.rpartition("/")[2])


def test_each_record_has_its_transaction_and_its_batch(
    campaigns: Explained, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(campaigns)
    with psycopg.connect(campaigns.dsn) as connection:
        noted = connection.execute(
            "SELECT landed_at, first_offset, next_offset FROM onefold.batch WHERE partition = %s ORDER BY 1", (HOME,)
        ).fetchall()
    first, second, _ = [(WRITER, at.isoformat(), *offsets) for at, *offsets in noted]
    landed = [(one.writer, one.at, one.first_offset, one.next_offset) for step in found.history if (one := step.landed)]

    assert landed == [second, second, first]
    assert all(step.folded is not None and step.folded.exact for step in found.history)
    numbers = [step.folded.number for step in found.history if step.folded]
    assert numbers == sorted(set(numbers), reverse=True)
    assert numbers[-1] == 1
    places = zip(map(offset, found.history), landed, strict=True)
    assert all(start <= at < end for at, (*_, start, end) in places)
    assert not any(step.unknown for step in found.history)
    assert found.batch is not None, "and the row's own, although another batch has moved the partition since"
    assert (found.batch.writer, found.batch.at, found.batch.exact) == (*second[:2], True)
    assert found.batch.last_at is not None
    assert found.batch.last_at > second[1]

    assert run(["explain", "campaigns.totals", "id=1"]) == OK
    text = capsys.readouterr().out
    assert text.count("      processed by transaction ") == 3
    for writer, at, start, end in (first, second):
        assert f"written by {writer} at {at}, with offsets from {start} to {end - 1}\n" in text
    assert f"written        by {WRITER} at {second[1]}\n" in text
    assert run(["explain", "campaigns.totals", "id=1", "--json"]) == OK
    data = json.loads(capsys.readouterr().out)
    assert [step["landed"]["at"] for step in data["history"]] == [second[1], second[1], first[1]]
    assert [step["folded"]["number"] for step in data["history"]] == numbers


def test_a_batch_that_nobody_noted_is_said_to_be_unknown(
    campaigns: Explained, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too old, of a sink of before, or in a table that may not be read, or is not there."""
    for statement, known in {
        "DELETE FROM onefold.batch WHERE first_offset > 0": [False, False, True],
        "DELETE FROM onefold.batch": [False] * 3,
        "DROP TABLE onefold.batch": [False] * 3,
    }.items():
        change(campaigns, statement)
        found = told(campaigns)
        assert [step.landed is not None for step in found.history] == known
        assert [not step.unknown for step in found.history] == known
        assert found.batch is not None
        assert found.batch.writer is None
        assert found.batch.last_writer == WRITER, "all that the ledger says"
    assert run(["explain", "campaigns.totals", "id=1"]) == OK
    text = capsys.readouterr().out
    assert text.count("its batch is not known: onefold.batch does not have it, or not any more") == 3


def test_who_may_not_read_it_reads_the_rest(campaigns: Explained) -> None:
    change(campaigns, "REVOKE SELECT ON onefold.batch FROM onefold_reader")
    found = explain.explain(
        campaigns.settings, campaigns.dsn, "campaigns.totals", {"id": "1"}, patience_s=20, role="onefold_reader"
    )
    assert [step.landed for step in found.history] == [None] * 3
    assert [step.folded is not None for step in found.history] == [True] * 3


def test_a_batch_of_another_topic_of_that_name_is_none_of_them(campaigns: Explained) -> None:
    """The row came from the one that was there before; what is in Kafka now is another."""
    change(campaigns, "UPDATE onefold.batch SET topic_id = 'before'")
    assert [step.landed for step in told(campaigns).history] == [None] * 3
    change(campaigns, "UPDATE onefold.ledger SET topic_id = 'before'")
    found = told(campaigns)
    assert [step.landed for step in found.history] == [None] * 3
    assert all("made again" in step.unknown[-1] for step in found.history)
    assert found.batch is not None
    assert found.batch.exact


def test_so_much_is_looked_through_and_where_it_was_not_is_said(
    campaigns: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all transactions together, and for each of them."""
    whole = told(campaigns)
    monkeypatch.setattr(explain, "_ALL_FOLDED_MAX", explain._FOLDED_LEAST)
    less = told(campaigns)
    assert [step.folded is not None for step in less.history] == [True, True, False]
    assert "was not looked for" in less.history[2].unknown[0]
    assert less.history[2].landed is not None
    assert less.records_read < whole.records_read
    monkeypatch.setattr(explain, "_FOLDED_MAX", 1)
    least = told(campaigns)
    assert [step.folded is not None for step in least.history] == [True, False, False]
    assert "read only in part" in least.history[1].unknown[0]


def test_kafka_knows_what_the_database_does_not_say_any_more(
    campaigns: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once before Kafka and once after it; what is known by then is shown."""
    asked: list[bool] = []
    noted = explain._noted

    def fail_later(*arguments: Any) -> Any:
        asked.append(True)
        if len(asked) > 1:
            raise psycopg.OperationalError("gone")
        return noted(*arguments)

    monkeypatch.setattr(explain, "_noted", fail_later)
    found = told(campaigns)
    assert len(found.history) == 3
    assert found.notes == ["the database does not answer: gone"]
