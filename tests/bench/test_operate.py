"""The bench of what an operator waits for runs and says what it measured. How long that is depends on the machine."""

import json

import pytest

from onefold.cli.commands.bench.operate import command


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.matrix
@pytest.mark.parametrize(("pipeline", "table"), [("campaigns", "campaigns.sends"), ("trades", "trades.current")])
def test_a_verdict_a_row_and_a_rebuild_are_timed(pipeline: str, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    command(events=3_000, rows=3, pipeline=pipeline, partitions=2, seed=1, as_json=True)
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert (figures["verify"], figures["rebuild_rows_that_differ"]) == ("valid", 0)
    assert (figures["explained_table"], figures["rows_explained"]) == (table, 3)
    assert figures["rebuild_rows_compared"] >= figures["explained_table_rows"] > 100
    assert figures["explain_longest_s"] >= figures["explain_median_s"] > 0
    assert figures["explain_records_read_longest"] > 0
    assert min(figures["drain_s"], figures["verify_from_start_s"], figures["rebuild_s"]) > 0.1
