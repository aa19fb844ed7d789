"""`onefold consume` over a real broker: inputs, outputs and dead letters of a pipeline, as a processor wrote them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onefold.cli.main import run
from onefold.exit_codes import OK
from onefold.operate import consuming
from onefold.processor.core.topology import Topology
from tests.support.explained import Explained, send
from tests.support.infrastructure import transactional

MakeDomain = Callable[..., Topology]


@pytest.fixture
def campaigns(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Explained:
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", client["bootstrap.servers"])
    return Explained(fresh_domain("campaigns"), client, "", tmp_path)


def consumed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["consume", *words]) == OK
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_records_are_read_decoded(campaigns: Explained, capsys: pytest.CaptureFixture[str]) -> None:
    """Inputs are JSON, outputs Avro; a record that the pipeline refused shows its bytes. What was aborted never was."""
    producer = transactional(campaigns.client, "somebody-else")
    producer.begin_transaction()
    producer.produce("campaigns.sends", json.dumps(send(9, 1, 100)).encode(), b"9")
    assert producer.flush(20) == 0, "what is aborted lies in the log too"
    producer.abort_transaction(20)
    campaigns.fold([send(1, 1, 100), send(2, 1, 7)], [send(1, 2, 1000)], [{"id": "none"}])

    sends = consumed(capsys, "campaigns.sends")
    # Records of two partitions may be of the same millisecond.
    assert sorted(record["value"]["id"] for record in sends[:-1]) == [1, 1, 2]
    assert sends[-1]["raw"] == '{"id": "none"}'
    totals = consumed(capsys, "campaigns.totals", "--key", "1", "--since", "1h", "--limit", "1")
    assert [(record["value"]["sent_1"], record["value"]["sent_2"]) for record in totals] == [(100, 1000)]
    assert "onefold-source" in totals[0]["headers"]
    assert consumed(capsys, "campaigns.totals", "--key", "1", "--limit", "0") != []
    (dead,) = consumed(capsys, "campaigns.sends.dead")
    assert dead["raw"] == '{"id": "none"}'
    assert consumed(capsys, "campaigns.sends", "--since", "2999-01-01") == []


def test_what_comes_is_followed(campaigns: Explained) -> None:
    """A record that is committed while somebody follows comes once, and in its turn."""
    campaigns.fold([send(1, 1, 100)])
    following = consuming.consume(campaigns.settings, "campaigns.sends", limit=1, follow=True)
    assert next(following)["value"]["sent"] == 100
    campaigns.fold([send(1, 2, 200)], [send(1, 3, 300), send(2, 1, 400)])
    come = [next(following)["value"]["sent"] for _ in range(3)]
    assert (sorted(come), come.index(200) < come.index(300)) == ([200, 300, 400], True)
