"""The topics of a pipeline alone, written as the verifier's own model says: what is right is never called wrong.

A record is then written that is wrong, and exactly that record is named.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from onefold.proof.audit.following import Following
from onefold.proof.audit.pace import PACE
from onefold.proof.placement import partition_of
from onefold.proof.record import Source
from onefold.proof.verdict import Finding
from onefold.proof.workloads import runner
from onefold.proof.workloads.runner import STATS, TENDENCY
from onefold.proof.workloads.shaping import Input
from tests.support.simulated_stage import InMemoryStage, JudgesLog, LastPartitionFirst, OutputsFirst, kafka_of
from tests.support.stage import PARTITIONS

HOME = {place: [user for user in range(3000, 3040) if partition_of(str(user), PARTITIONS) == place] for place in (0, 1)}
ONE, OTHER, *_ = HOME[1]
#: A pipeline whose rows have one key each: of several changes in one transaction the processor writes the last.
FEW = replace(runner.WORKLOAD, tables=(STATS, TENDENCY))
READ = pytest.mark.parametrize("opened", [JudgesLog, OutputsFirst, LastPartitionFirst])


def update(user: int, sequence: int, metres: int = 100) -> Input:
    text = b'{"user_id": %d, "distance_meters": %d, "timestamp_utc": %d, "sequence_id": %d, "run_id": %d}'
    return Input(runner.TOPIC, b"%d" % user, text % (user, metres, 1000 * sequence, sequence, user))


@contextmanager
def planted(stage: InMemoryStage, bug: Callable[..., str]) -> Iterator[None]:
    """Write each output record with a bug, which is called as `stage.write` is, and with the right one first."""
    right = stage.write
    vars(stage)["write"] = lambda *args, **more: bug(right, *args, **more)
    yield
    del vars(stage)["write"]


def followed(stage: InMemoryStage, opened: type[JudgesLog] = JudgesLog, steps: int = 10_000) -> Following:
    """What follows the pipeline, after it began; `steps`: how many offsets of a partition one step reads."""
    kafka, pace = kafka_of(stage.log, opened), replace(PACE, step_offsets=steps)
    following = Following(stage.workload, {}, None, None, kafka=kafka, pace=pace)
    following.begin()
    return following


def named(found: list[Finding]) -> list[tuple[str, str, str | None]]:
    return [(one.kind, one.where, one.output) for one in found]


def test_a_verifier_that_is_behind_in_the_middle_of_a_transaction_calls_nothing_missing() -> None:
    stage = InMemoryStage(FEW)
    stage.play([update(ONE, 1), update(OTHER, 1)])
    following = followed(stage, steps=10)
    stage.play([update(ONE, sequence) for sequence in range(2, 60)])
    while not following.step() or following.waiting:
        assert following.findings == []
    assert following.findings == []
    with planted(stage, lambda right, table, key: "" if table is TENDENCY else right(table, key)):
        stage.place["runner.tendency", (ONE,)] = 0, 0
        stage.play([update(ONE, sequence) for sequence in range(60, 90)])
    for _ in range(20):
        following.step()
    last = f"{runner.TOPIC}/1/{len(stage.originals) - 1}"
    assert [(one.kind, one.where, one.source) for one in following.findings] == [
        ("missing output", "runner.tendency", last)
    ]


def aborted(stage: InMemoryStage, user: int) -> Source:
    """An input record of an aborted transaction."""
    transaction = stage.log.init("aborted")
    stage.log.write("aborted", transaction, runner.TOPIC, 1, b"%d" % user, update(user, 2).value, ())
    stage.log.end("aborted", transaction, commit=False)
    offset = stage.ends[runner.TOPIC, 1]
    stage.ends[runner.TOPIC, 1] = stage.log.identity(runner.TOPIC, 1).end
    return Source(runner.TOPIC, 1, offset)


def dead(stage: InMemoryStage, user: int) -> Source:
    """An input record that is a dead letter."""
    stage.play([update(user, 2, metres=-1)])
    return list(stage.originals)[-1]


@READ
@pytest.mark.parametrize("cause", [aborted, dead])
def test_an_output_record_of_no_accepted_input_that_is_there_at_the_start_is_named(
    opened: type[JudgesLog], cause: Callable[[InMemoryStage, int], Source]
) -> None:
    stage = InMemoryStage(runner.WORKLOAD)
    stage.play([update(ONE, 1), update(OTHER, 1)])
    place = stage.write(TENDENCY, (ONE,), cause(stage, ONE))
    stage.play([update(ONE, 3)])
    following = followed(stage, opened)
    assert named(following.findings) == [("phantom output", "runner.tendency", place)]
    for _ in range(3):
        following.step()
    assert len(following.findings) == 1
    assert named(stage.verified(opened)[0]) == [("phantom output", "runner.tendency", place)]
