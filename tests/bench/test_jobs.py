"""The bench of jobs in the wrong order runs and says what it measured. How long they take depends on the machine."""

import json

import pytest

from onefold.cli.commands.bench.jobs import command


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.matrix
def test_who_is_woken_is_looked_at_less_often(capsys: pytest.CaptureFixture[str]) -> None:
    """Each woken job is looked at when it arrives, when it is woken, and once more when its own wait is over."""
    command(jobs=8, seed=1, as_json=True)
    figures = json.loads(capsys.readouterr().out)["figures"]

    assert figures["jobs_of_one_log"] == 8
    assert len(figures["woken_s"]) == len(figures["by_backoff_s"]) == 3
    assert all(seconds > 0 for seconds in (*figures["woken_s"], *figures["by_backoff_s"]))
    assert min(figures["messages_by_backoff"]) >= 8
