"""A partition of the decision log for each task."""

from types import SimpleNamespace
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.processor.io.partitions import check_decision_log
from onefold.processor.loading import topology_of
from tests.support.coded import raises

RUNNER = topology_of("runner")


def cluster(partitions: int) -> Any:
    """An admin client that knows a decision log with so many partitions."""
    topics = {RUNNER.decisions: SimpleNamespace(partitions=dict.fromkeys(range(partitions)))}
    return SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics=topics))


@pytest.mark.parametrize("partitions", [4, 8])
def test_as_many_as_tasks_or_more_are_right(partitions: int) -> None:
    check_decision_log(cluster(partitions), RUNNER, 4)


def test_fewer_are_refused_with_the_way_out() -> None:
    with raises(Refused, Code.PARTITIONS_CHANGED, "has 2 partitions", "4 tasks", "onefold reset runner"):
        check_decision_log(cluster(2), RUNNER, 4)
