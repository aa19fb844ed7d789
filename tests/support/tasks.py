"""Tasks that decide by Kafka transactions, as most tests have them."""

from collections.abc import Callable
from typing import Any

from onefold.processor.core.abc import Codec, TransactionSession
from onefold.processor.core.topology import Topology
from onefold.processor.runtime.log_decider import LogDecider
from onefold.processor.runtime.task import Task
from onefold.processor.runtime.transaction_decider import TransactionDecider


def elastic_task(
    topology: Topology,
    session: TransactionSession,
    codec: Codec,
    step: Callable[[str], None] = lambda name: None,
    beat: Callable[[], None] = lambda: None,
    **others: Any,
) -> Task:
    """`others` are those of a `Task`."""
    return Task(topology, session, codec, TransactionDecider(topology, session, step), step, beat, **others)


def log_decider(task: Task | None) -> LogDecider:
    """What decides a task that has replicas."""
    assert task is not None
    assert isinstance(task.decider, LogDecider)
    return task.decider
