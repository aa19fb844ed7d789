"""Replicas as real processes on a real broker: killed, frozen, and judged by what they leave in Kafka."""

import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from onefold.operate.replicas import SILENT_S, ReplicasNow, replicas_of_all
from onefold.operate.settings import Settings
from onefold.processor.core.steps import REPLICA_STEPS
from onefold.processor.core.topology import Topology
from onefold.proof.workloads import campaigns, runner, trades
from tests.support.processes import drained, instance, judge, produce
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
WORKLOADS = {"runner": runner, "campaigns": campaigns, "trades": trades}


def wave(domain: str, seed: int, count: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(made.key, made.value) for made in WORKLOADS[domain].generate(seed, count)]


@pytest.mark.parametrize("domain", WORKLOADS)
def test_two_replicas_leave_what_one_task_leaves(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path, domain: str
) -> None:
    """From nothing, both at once; one is killed at every step in turn while the other goes on."""
    topology = fresh_domain(domain)
    with instance(topology, client, tmp_path / "a", name="a", replicas=2):
        for number, step in enumerate(REPLICA_STEPS):
            produce(client, topology.inputs[0], wave(domain, number, 200))
            with instance(topology, client, tmp_path / "b", name="b", replicas=2, failpoint=f"{step}:2") as b:
                produce(client, topology.inputs[0], wave(domain, 100 + number, 200))
                drained(topology, client)
                if b.poll() is not None:
                    assert b.wait(0) == -signal.SIGKILL
    expected = judge(topology, client)

    assert expected.counts.accepted > 100


def test_a_frozen_replica_wakes_and_changes_nothing(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """The others go on without a pause; what it had under way comes late and loses."""
    topology = fresh_domain("runner")
    with ExitStack() as stack:
        a = stack.enter_context(instance(topology, client, tmp_path / "a", name="a", replicas=2))
        b = stack.enter_context(instance(topology, client, tmp_path / "b", name="b", replicas=2))
        for number, frozen in enumerate((a, b, a, b)):
            produce(client, topology.inputs[0], wave("runner", number, 300))
            frozen.send_signal(signal.SIGSTOP)
            produce(client, topology.inputs[0], wave("runner", 50 + number, 300))
            drained(topology, client)
            frozen.send_signal(signal.SIGCONT)
        produce(client, topology.inputs[0], wave("runner", 99, 300))
        drained(topology, client)
    judge(topology, client)


def test_from_elastic_to_replicas_and_back(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path) -> None:
    """The states stay, and nothing is lost or doubled, also when replicas are killed just before they hand over."""
    topology = fresh_domain("trades")
    for number in range(2):
        with instance(topology, client, tmp_path / f"elastic{number}", name="e"):
            produce(client, topology.inputs[0], wave("trades", number, 300))
            drained(topology, client)
        produce(client, topology.inputs[0], wave("trades", 10 + number, 300))
        with instance(topology, client, tmp_path / "a", name="a", replicas=2) as a:
            with instance(topology, client, tmp_path / "b", name="b", replicas=2):
                drained(topology, client)
            produce(client, topology.inputs[0], wave("trades", 20 + number, 300))
            a.kill()
            a.wait()
    with instance(topology, client, tmp_path / "elastic", name="e"):
        drained(topology, client)

    judge(topology, client)


def test_who_watches_sees_how_replicas_are(
    fresh_domain: MakeDomain, client: dict[str, str], bootstrap_servers: str, tmp_path: Path
) -> None:
    """Both at first; one is killed, and the other's numbers go on."""
    topology = fresh_domain("runner")
    settings = Settings(bootstrap_servers=bootstrap_servers)
    waves = iter(range(1_000))

    def seen() -> ReplicasNow | None:
        produce(client, topology.inputs[0], wave("runner", next(waves), 300))
        return replicas_of_all(settings).get("runner")

    def both_are_well() -> bool:
        now = seen()
        return (
            now is not None
            and now.replicas.keys() == {"replica-a", "replica-b"}
            and all(one.tasks == 2 and one.decided > 0 and not one.silent for one in now.replicas.values())
            and sum(one.publishes for one in now.replicas.values()) == 2
            and now.decisions_a_second > 0
        )

    def b_is_silent() -> bool:
        now = seen()
        return now is not None and now.replicas["replica-b"].silent

    with instance(topology, client, tmp_path / "a", instance="replica-a", replicas=2):
        with instance(topology, client, tmp_path / "b", instance="replica-b", replicas=2):
            eventually(both_are_well, 60, "both replicas are seen")
        before = replicas_of_all(settings)["runner"].replicas["replica-a"]
        eventually(b_is_silent, 60, "the killed one is seen to be silent")
        now = replicas_of_all(settings)["runner"]
        drained(topology, client)

        def all_is_published() -> bool:
            return replicas_of_all(settings)["runner"].unpublished == 0

        eventually(all_is_published, 60, "all is published")
    alive, killed = now.replicas["replica-a"], now.replicas["replica-b"]
    assert (killed.silent, killed.publishes) == (True, 0)
    assert killed.heard_s > SILENT_S
    assert killed.behind > 0
    assert not alive.silent
    assert alive.won > before.won
    assert alive.publishes == 2
    judge(topology, client)
