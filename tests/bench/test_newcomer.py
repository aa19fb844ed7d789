"""The bench of a new replica runs and says what it measured. How soon one is level depends on the machine."""

import json

import pytest

from onefold.cli.commands.bench.newcomer import command


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.matrix
def test_a_new_replica_of_many_keys_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    """It had restored all keys, and events that came meanwhile may be new ones."""
    command(events=3_000, rate=100, pipeline="trades", partitions=2, seed=1, as_json=True)
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert 2_000 < figures["keys"] < 10_000
    assert figures["first_replica_level_s"] > 0.1
    assert figures["new_replica_level_s"] > 0.1
    assert figures["longest_gap_before_it_came_ms"] > 0
    assert figures["longest_gap_while_it_came_ms"] > 0
    assert figures["hot_hot_verify"] == "valid"
