"""Decisions are deleted from a real broker while replicas run, start and sleep; judged by what they leave in Kafka."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from onefold.exit_codes import REFUSED
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, create_topics, delete_before, identity
from onefold.processor.io.decision_log import KafkaDecisionLog
from onefold.workloads import runner
from tests.support.infrastructure import transactional
from tests.support.processes import drained, instance, judge, opened, produce
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
#: Of a second nobody can say whether the machine had it: records go as soon as they may.
KEPT: dict[str, Any] = {"replicas": 2, "decisions_kept_s": 0}


def wave(seed: int, count: int = 200) -> list[tuple[bytes | None, bytes | None]]:
    return [(made.key, made.value) for made in runner.generate(seed, count)]


@pytest.fixture
def admin(client: dict[str, str]) -> AdminClient:
    return connect(client)


def starts(admin: AdminClient, topology: Topology, partitions: int = 2) -> list[int]:
    return [identity(admin, topology.decisions, partition).start for partition in range(partitions)]


def ends(admin: AdminClient, topology: Topology, partitions: int = 2) -> list[int]:
    return [identity(admin, topology.decisions, partition).end for partition in range(partitions)]


def test_a_frozen_replica_wakes_when_what_it_needs_is_gone(
    fresh_domain: MakeDomain, client: dict[str, str], admin: AdminClient, tmp_path: Path
) -> None:
    """It starts from the changelog and goes on: alone in the end. So does one that starts then."""
    topology = fresh_domain("runner")
    waves = iter(range(1_000))
    with instance(topology, client, tmp_path / "a", name="a", **KEPT) as frozen:
        eventually(lambda: len(opened(tmp_path / "a")) == 2, 30, "it has its tasks")
        produce(client, topology.inputs[0], wave(next(waves)))
        drained(topology, client)
        frozen.send_signal(signal.SIGSTOP)
        reached = ends(admin, topology)
        with instance(topology, client, tmp_path / "b", name="b", **KEPT):

            def all_is_gone() -> bool:
                produce(client, topology.inputs[0], wave(next(waves)))
                drained(topology, client)
                return all(start > end for start, end in zip(starts(admin, topology), reached, strict=True))

            eventually(all_is_gone, 60, "what the frozen one reads next is deleted")
            frozen.send_signal(signal.SIGCONT)
            eventually(lambda: set(opened(tmp_path / "a").values()) == {2}, 30, "it has started its tasks over")
        assert "starting from the changelog" in (tmp_path / "a").read_text(encoding="utf-8")
        produce(client, topology.inputs[0], wave(next(waves)))
        drained(topology, client)
    with instance(topology, client, tmp_path / "c", name="c", **KEPT):
        produce(client, topology.inputs[0], wave(next(waves)))
        drained(topology, client)
    judge(topology, client)


def test_a_log_that_was_cut_off_by_somebody_else_is_refused(
    fresh_domain: MakeDomain, client: dict[str, str], admin: AdminClient, tmp_path: Path
) -> None:
    """Beyond what the changelog has; a person is asked."""
    topology = fresh_domain("runner", 1)
    with instance(topology, client, tmp_path / "a", name="a", **KEPT):
        produce(client, topology.inputs[0], wave(1))
        drained(topology, client)
    end = identity(admin, topology.decisions, 0).end
    delete_before(admin, topology.decisions, 0, end)
    with instance(topology, client, tmp_path / "b", name="b", **KEPT) as late:
        assert late.wait(30) == REFUSED
    assert "decisions were deleted unread" in (tmp_path / "b").read_text(encoding="utf-8")


def test_what_a_hanging_transaction_hides_from_a_new_replica_is_not_deleted(
    fresh_domain: MakeDomain, client: dict[str, str], admin: AdminClient, tmp_path: Path
) -> None:
    """Somebody else's, in the changelog: a replica that starts then sees no later progress than before it, and reads on there."""
    topology = fresh_domain("runner", 1)

    def written() -> int:
        return identity(admin, topology.changelog, 0).end

    def grew(before: int) -> bool:
        return written() > before

    with instance(topology, client, tmp_path / "a", name="a", **KEPT):
        produce(client, topology.inputs[0], wave(1))
        drained(topology, client)
        foreign = transactional(client, "foreign")
        foreign.begin_transaction()
        foreign.produce(topology.changelog, b"", b"foreign", 0)
        assert foreign.flush(20) == 0
        for seed in range(2, 6):
            before = written()
            produce(client, topology.inputs[0], wave(seed))
            eventually(partial(grew, before), 30, "it has been published")
        with instance(topology, client, tmp_path / "b", name="b", **KEPT):
            eventually(lambda: opened(tmp_path / "b"), 30, "the new replica has its task")
            foreign.abort_transaction(20)
            drained(topology, client)
    judge(topology, client)


def test_the_young_are_kept(fresh_domain: MakeDomain, client: dict[str, str], admin: AdminClient) -> None:
    """By the time at which they were sent. When all are older, that is the end."""
    topology = fresh_domain("runner", 1)
    create_topics(topology, 1, client, decisions=True)
    log = KafkaDecisionLog(topology.decisions, 0, client)
    try:
        log.append(b"of somebody")
        eventually(lambda: log.identity().end == 1, 20, "it lies there")
        assert log.older_than(600) == 0
        assert log.older_than(-600) == 1
    finally:
        log.close()
