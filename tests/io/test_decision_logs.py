"""How many decision logs there are, against how many are declared: what the sentence says to do can be done."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onefold import pipelines
from onefold.processor.core.errors import Refused
from onefold.processor.io.partitions import check_decision_logs
from onefold.processor.loading import topology_of

RUNNER = topology_of("runner")
DECLARED = '[tool.onefold.pipelines.orders]\ntopology = "a:B"\nreplicas = 2\n'


def cluster(logs: int) -> Any:
    """An admin client that knows a decision log with so many partitions."""
    topics = {RUNNER.decisions: SimpleNamespace(partitions=dict.fromkeys(range(logs)))}
    return SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(topics=topics))


def refusal(logs: int, wanted: int, tasks: int) -> str:
    with pytest.raises(Refused) as refused:
        check_decision_logs(cluster(logs), RUNNER, wanted, tasks)
    return str(refused.value)


def faults(folder: Path, more: str) -> tuple[str, ...]:
    for name in ("avro", "sql"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(f"{DECLARED}{more}\n", encoding="utf-8")
    return pipelines.find(folder).faults


def test_as_many_as_are_declared_are_right() -> None:
    check_decision_logs(cluster(4), RUNNER, 4, 4)
    check_decision_logs(cluster(2), RUNNER, 2, 4)
    check_decision_logs(cluster(8), RUNNER, 4, 4)


def test_a_log_for_each_task_is_what_there_is_without_the_setting() -> None:
    assert refusal(4, 2, 4).endswith("Leave decision_logs out")


def test_logs_that_tasks_share_are_declared(tmp_path: Path) -> None:
    assert "Set decision_logs = 2" in refusal(2, 4, 4)
    assert faults(tmp_path, "decision_logs = 2") == ()
