"""Tasks that decide by Kafka transactions, for most tests."""

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
    """Build a task; `others`: arguments of `Task`."""
    return Task(topology, session, codec, TransactionDecider(topology, session, step), step, beat, **others)


def log_decider(task: Task | None) -> LogDecider:
    """The decider of a task with replicas."""
    assert task is not None
    assert isinstance(task.decider, LogDecider)
    return task.decider
