"""A replica that is killed is seen to die, by processes on a real broker."""

import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from onefold.processor.core.decision_log import Note
from onefold.processor.core.topology import Topology
from onefold.processor.io.proposals import AvroProposals
from onefold.proof.workloads import runner
from tests.support.processes import drained, instance, judge, opened, produce, records
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]


def wave(seed: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(made.key, made.value) for made in runner.generate(seed, 300)]


@pytest.mark.promise("killed-publishers")
def test_what_a_killed_replica_published_is_taken_up_by_who_sees_it_die(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """At once: the patience of the one that is left would end in an hour."""
    topology = fresh_domain("runner")
    with ExitStack() as stack:

        def start(name: str, patience_s: float) -> "subprocess.Popen[bytes]":
            options: dict[str, Any] = {"replicas": 2, "publishes_after_s": patience_s}
            made = stack.enter_context(instance(topology, client, tmp_path / name, name=name, **options))
            eventually(lambda: len(opened(tmp_path / name)) == 2, 60, f"{name} has its tasks")
            return made

        publishes = start("a", 0.1)
        start("b", 3 * 3600.0)
        produce(client, topology.inputs[0], wave(1))
        drained(topology, client)
        eventually(lambda: has_heard("b", topology, client) == {0, 1}, 60, "b has heard that a has published")
        publishes.kill()
        publishes.wait(10)
        produce(client, topology.inputs[0], wave(2))
        drained(topology, client, 60)
    judge(topology, client)


def has_heard(name: str, topology: Topology, client: dict[str, str]) -> set[int]:
    """Of which tasks a replica, which was there before the first decision, has told that somebody publishes."""
    decoded = [AvroProposals().decode(record.value) for record in records(client, topology.decisions)]
    notes = [one for one in decoded if isinstance(one, Note) and one.proposer.endswith(name)]
    return {note.task for note in notes if note.body.get("replica", {}).get("published")}
