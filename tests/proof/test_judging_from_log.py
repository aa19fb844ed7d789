"""The judge of tables that are filled from a decision log, on a simulated log and real tables."""

import psycopg
import pytest

from onefold.processor.core.decision import Kind, Proposal, Range
from onefold.processor.core.decision_log import Body
from onefold.processor.core.values import Counts
from onefold.processor.io.proposals import AvroProposals
from onefold.proof.verdict import UNKNOWN, VALID
from onefold.proof.workloads import runner
from tests.support.simulated_stage import SimulatedStage
from tests.support.stage import PARTITIONS

NAME, INPUT, LOG = "runner", "runner.updates", "runner.decisions"


@pytest.fixture
def stage(database: str) -> SimulatedStage:
    """Nothing was sent, and the tables are filled from the log."""
    made = SimulatedStage(database, runner.WORKLOAD)
    made.log.create(LOG, PARTITIONS)
    with psycopg.connect(database) as connection:
        for partition in range(PARTITIONS):
            connection.execute(
                "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)"
                " VALUES (%s, %s, %s, 0, %s, 'stage', now())",
                [NAME, LOG, partition, made.log.identity(LOG, 0).topic_id],
            )
    return made


def decide(stage: SimulatedStage, version: int, kind: Kind, end: int, *writes: tuple[str, int, bytes]) -> None:
    """Task 0 has taken its input up to that offset."""
    proposals, log_id = AvroProposals(), stage.log.identity(LOG, 0).topic_id
    encoded = proposals.encode_writes([(topic, partition, b"k", value, None) for topic, partition, value in writes])
    inputs = {INPUT: Range(stage.log.identity(INPUT, 0).topic_id, 0, end)}
    body = Body(Counts(0, 0, 0, 0), [], encoded)
    value = proposals.encode(Proposal(0, version, inputs, "a", body, kind, log_id))
    stage.log.append(LOG, None, value, partition=0)


def test_a_log_that_decides_nothing_of_nothing_is_valid(stage: SimulatedStage) -> None:
    assert stage.judge().outcome == VALID


def test_decided_copies_that_nobody_has_published_are_unknown(stage: SimulatedStage) -> None:
    stage.log.append(INPUT, b"k", b"junk", partition=0)
    decide(stage, 1, Kind.OPEN, 0)
    decide(stage, 1, Kind.STEP, 1, (INPUT, 1, b"junk"))
    verdict = stage.judge()
    assert (verdict.outcome, verdict.reason.count("has copies for runner.updates that are not published yet")) == (
        UNKNOWN,
        1,
    )
