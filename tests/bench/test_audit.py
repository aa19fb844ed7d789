"""The bench of the auditor runs and says what it measured. How much that is depends on the machine."""

import json

import pytest

from onefold.cli.commands.bench.audit import command


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.matrix
@pytest.mark.parametrize("pipeline", ["runner", "trades"])
def test_what_is_planted_is_named_and_its_cost_is_told(pipeline: str, capsys: pytest.CaptureFixture[str]) -> None:
    command(rate=300, seconds=5.0, plants=3, pipeline=pipeline, partitions=2, seed=1, as_json=True)
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert (figures["rows_planted"], figures["outputs_planted"]) == (2, 1)
    assert (figures["rows_named"], figures["outputs_named"]) == (2, 1)
    assert 0 < figures["rows_named_median_s"] <= figures["rows_named_longest_s"] < 30
    assert figures["auditor_us_an_event"] > figures["of_it_reading_us"] > 0
    assert figures["beyond_reading_percent_of_a_core"] > 0
