"""A traced event, from a real producer to the row that was made of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from onefold.cli.main import run
from onefold.processor.core.topology import Topology
from tests.support.explained import Explained, send
from tests.support.merged import land
from tests.support.migrated import migrate_all

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.promise("traces")
def test_a_row_has_the_trace_of_its_event(
    fresh_domain: Callable[..., Topology],
    client: dict[str, str],
    database: str,
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Through the processor's transaction, to the record that the row came from."""
    migrate_all(database, checkout / "sql")
    campaigns = Explained(fresh_domain("campaigns"), client, database, tmp_path)
    producer = Producer(client)
    producer.produce("campaigns.sends", json.dumps(send(1, 1, 100)).encode(), b"1", headers={"traceparent": TRACE})
    assert producer.flush(20) == 0
    campaigns.fold([])
    land(campaigns.topology, client, database, ())

    told = campaigns.explain("campaigns.totals", id="1")
    assert told.output is not None
    assert told.output.trace == told.causes[0].record.trace == TRACE
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", client["bootstrap.servers"])
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", database)
    assert run(["explain", "campaigns.totals", "id=1"]) == 0
    assert capsys.readouterr().out.count(f" traced as {TRACE}\n") == 2
