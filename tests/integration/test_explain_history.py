"""The batch of a row: found after later ones, and said where it is not known."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.cli.main import run
from onefold.exit_codes import OK
from onefold.operate.explain import explain
from onefold.operate.explain.explanation import Explanation, SinkBatch
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


def test_batch_of_a_row_is_known_after_later_batches(campaigns: Explained, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(campaigns)
    with psycopg.connect(campaigns.dsn) as connection:
        noted = connection.execute(
            "SELECT writer, landed_at, first_offset, next_offset FROM onefold.batch WHERE partition = %s ORDER BY 2",
            (HOME,),
        ).fetchall()
    _, (writer, at, first, end), _ = noted

    assert found.batch == SinkBatch(writer, at.isoformat(), first, end)
    assert writer == WRITER
    assert len(found.history) == 3
    assert found.folded is not None
    assert found.folded.exact
    assert run(["explain", "campaigns.totals", "id=1"]) == OK
    text = capsys.readouterr().out
    assert f"written        by {WRITER} at {at.isoformat()}, with offsets from {first} to {end - 1}\n" in text
    assert text.count("by transaction ") == 1
    assert run(["explain", "campaigns.totals", "id=1", "--json"]) == OK
    data = json.loads(capsys.readouterr().out)
    assert data["batch"] == {"writer": WRITER, "at": at.isoformat(), "first_offset": first, "next_offset": end}
    assert data["folded"]["number"] == found.folded.number


@pytest.mark.parametrize("statement", ["DELETE FROM onefold.batch WHERE first_offset > 0", "DROP TABLE onefold.batch"])
def test_a_batch_that_is_not_noted_is_said_to_be_unknown(campaigns: Explained, statement: str) -> None:
    """It is too old, or of a sink that wrote none."""
    change(campaigns, statement)
    found = told(campaigns)
    assert found.batch is None
    assert found.notes == ["the batch of this row is not known: it is not in onefold.batch, or not any more"]
    assert len(found.history) == 3


def test_a_login_that_may_not_read_batches_reads_the_rest(campaigns: Explained) -> None:
    change(campaigns, "REVOKE SELECT ON onefold.batch FROM onefold_reader")
    found = explain.explain(
        campaigns.settings, campaigns.dsn, "campaigns.totals", {"id": "1"}, patience_s=20, role="onefold_reader"
    )
    assert found.batch is None
    assert found.folded is not None
    assert len(found.history) == 3


def test_a_batch_of_another_topic_of_that_name_is_not_the_rows(campaigns: Explained) -> None:
    change(campaigns, "UPDATE onefold.batch SET topic_id = 'before'")
    assert told(campaigns).batch is None
    change(campaigns, "UPDATE onefold.ledger SET topic_id = 'before'")
    found = told(campaigns)
    assert found.batch is not None
    assert any("was deleted and recreated" in note for note in found.notes)
