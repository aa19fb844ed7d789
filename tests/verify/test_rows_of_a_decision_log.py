"""Tables that an earlier Onefold filled from a decision log: neither verifier calls them right or wrong."""

from contextlib import closing

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.verify.audit.auditor import Auditor
from onefold.verify.verdict import UNKNOWN, VALID, CannotTell
from onefold.workloads import runner
from tests.support.coded import raises
from tests.support.simulated_stage import SimulatedStage


@pytest.fixture
def stage(database: str) -> SimulatedStage:
    """Nothing was sent, and the ledger has a position in the decision log."""
    made = SimulatedStage(database, runner.WORKLOAD)
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)"
            " VALUES ('runner', 'runner.decisions', 0, 7, 'id', 'stage', now())"
        )
    return made


def test_the_verifier_cannot_tell_and_names_the_way_out(stage: SimulatedStage) -> None:
    with raises(CannotTell, Code.TABLES_OF_OTHER_TOPICS, "runner.decisions", "onefold rebuild runner"):
        stage.judge()


def test_the_continuous_verifier_waits_until_they_are_rebuilt(stage: SimulatedStage) -> None:
    with closing(Auditor("runner", client={}, dsn=stage.dsn, kafka=stage.kafka)) as auditor:
        said = auditor.run(lambda standing: None, lambda pause: True, lambda standing: False)
        assert said.outcome == UNKNOWN
        assert "onefold rebuild runner" in said.reason
        with psycopg.connect(stage.dsn) as connection:
            connection.execute("DELETE FROM onefold.ledger")
        turns = iter([False] * 20)
        said = auditor.run(lambda standing: None, lambda pause: next(turns, True), lambda one: one.outcome == VALID)
        assert said.outcome == VALID, said.reason
