"""Which progress records a start compares with the topics, without a broker."""

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.processor.core.topology import Topology
from onefold.processor.io import partitions
from onefold.processor.loading import topology_of
from tests.support.coded import raises

RUNNER = topology_of("runner")


def cluster(*leaders: int) -> Any:
    """Whose changelog has partitions with these leaders; -1: none."""
    found = {number: SimpleNamespace(leader=leader) for number, leader in enumerate(leaders)}
    metadata = SimpleNamespace(topics={RUNNER.changelog: SimpleNamespace(partitions=found)})
    return SimpleNamespace(list_topics=lambda timeout: metadata)


@pytest.mark.parametrize(
    ("leaders", "asked"), [((1, 2, 1), [0, 1, 2]), ((1, -1, 2), [0, 2]), ((-1, -1, -1), []), ((1, 1, 1, 1), [0, 1, 2])]
)
def test_a_partition_that_nobody_leads_keeps_no_other_task_from_its_start(
    monkeypatch: pytest.MonkeyPatch, leaders: tuple[int, ...], asked: list[int]
) -> None:
    """Kafka does not give its end, and the others name the same number of partitions."""
    seen: list[int] = []

    def last(_: Any, topology: Topology, tasks: Sequence[int], client: Mapping[str, str]) -> dict[int, bytes]:
        seen.extend(tasks)
        return {task: json.dumps({"partitions": states}).encode() for task in tasks}

    monkeypatch.setattr(partitions, "last_progresses", last)
    states = 3
    partitions.check_states(cluster(*leaders), RUNNER, 3, {})
    assert seen == asked
    states = 2
    if asked:
        with raises(Refused, Code.PARTITIONS_CHANGED):
            partitions.check_states(cluster(*leaders), RUNNER, 3, {})
