"""The construction of a process's tasks, on a real cluster."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from onefold.kafka_client import Admin
from onefold.processor.core.abc import Codec, Inputs
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import last_progresses
from onefold.processor.io.decision_log import Appender, KafkaDecisionLog
from onefold.processor.io.inputs import KafkaInputs
from onefold.processor.io.kafka import KafkaSession
from onefold.processor.io.partitions import check_decision_log
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.runtime.log_decider import LogDecider
from onefold.processor.runtime.publisher import Publisher
from onefold.processor.runtime.publishing import TAKEOVER_S, Publishing
from onefold.processor.runtime.retention import Retention
from onefold.processor.runtime.state_manager import MEMORY, StateManager
from onefold.processor.runtime.takeover import TaskShares
from onefold.processor.runtime.task import Decider, Task
from onefold.processor.runtime.transaction_decider import TransactionDecider

# How long the broker gathers records for a replica's fetch, about the interval of decisions. Without the wait, each replica
# would fetch and decide every few records, at a high cost of CPU time and latency.
REPLICA_FETCH_WAIT_MS = 14


class StateSettings(NamedTuple):
    """The location of a process's states.

    Attributes:
        kind: `auto`, `memory` or `disk`.
        folder: the folder for the files of states, with a subfolder for each pipeline.
        memory_bytes: the memory for all states of the process.
    """

    kind: str
    folder: Path
    memory_bytes: int


IN_MEMORY = StateSettings(MEMORY, Path(), 0)


class Tasks:
    """Makes tasks, which share a compute lock, an admin client and the producer of proposals.

    Args:
        codec: makes the codec for one run of a task.
        partitions: the number of input partitions.
        replicas: the number of processes that compute each task.
        states: the location of the states.
        decisions_kept_s: the minimum age of a deleted record of the decision log, in seconds; None: the log keeps all records.
        step: called with the name of each step that a task reaches.
    """

    def __init__(
        self,
        topology: Topology,
        codec: Callable[[], Codec],
        client: Mapping[str, str],
        admin: Admin,
        instance: str,
        partitions: int,
        replicas: int,
        states: StateSettings,
        decisions_kept_s: float | None = None,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._topology, self._codec = topology, codec
        self._client, self._admin, self._instance = client, admin, instance
        self._partitions, self._replicas, self._states = partitions, replicas, states
        self._decisions_kept_s = decisions_kept_s
        self._step = step
        self._compute_lock = threading.Lock()
        self._proposals = MsgpackProposals()
        self._appender: Appender | None = None
        self._shares = TaskShares(instance, time.monotonic)

    def make(self, partition: int, beat: Callable[[], None]) -> Task:
        """Make a task for one run. `beat` is as of `Task`."""
        codec = self._codec()  # first, because the call may fail without an answer, and then no client is left open
        inputs, decider = self._with_replicas(partition) if self._replicas > 1 else self._alone(partition, beat)
        topology, step, lock = self._topology, self._step, self._compute_lock
        kept = self._keeping(codec, partition, beat)
        return Task(topology, inputs, codec, decider, step, beat, lock, keeping=kept, clock=time.monotonic)

    def _keeping(self, codec: Codec, partition: int, beat: Callable[[], None]) -> StateManager:
        """The state manager of one task. The memory is divided by the number of all tasks, which the process may all get."""
        states, topology = self._states, self._topology
        if states.kind == MEMORY:
            return StateManager(topology, codec, partition, beat=beat)
        from onefold.processor.io.state_files import RocksDisk  # the library takes time to load

        share = states.memory_bytes // self._partitions
        return StateManager(
            topology,
            codec,
            partition,
            kind=states.kind,
            disk=RocksDisk(states.folder / topology.name, partition, share // 2, self._replicas),
            memory_bytes=share,
            replicas=self._replicas > 1,
            wall=time.time,
            step=self._step,
            beat=beat,
        )

    def _alone(self, partition: int, beat: Callable[[], None]) -> tuple[Inputs, Decider]:
        session = self._session(partition)

        def take_back() -> None:
            check_decision_log(self._admin, self._topology, self._partitions)
            log = self._log(partition)
            try:
                self._publisher(session, log).take_back(beat)
            finally:
                log.close()

        return session, TransactionDecider(self._topology, session, self._step, take_back)

    def _with_replicas(self, partition: int) -> tuple[Inputs, Decider]:
        inputs = KafkaInputs(
            self._topology,
            partition,
            self._client,
            fetch_wait_ms=REPLICA_FETCH_WAIT_MS,
            partitions=self._partitions,
            admin=self._admin,
        )
        return inputs, LogDecider(
            self._topology,
            self._instance,
            inputs,
            self._log(partition),
            self._session(partition),
            self._proposals,
            self._step,
            self._shares,
            self._publishing,
            clock=time.monotonic,
        )

    def _publishing(self, decider: LogDecider) -> Publishing:
        def committed() -> bytes | None:
            found = last_progresses(self._admin, self._topology, [decider.partition], self._client)
            return found.get(decider.partition)

        def publisher() -> Publisher:
            clock = time.monotonic
            retention = Retention(self._decisions_kept_s, committed=committed, step=self._step, clock=clock)
            return self._publisher(self._session(decider.partition), self._log(decider.partition), retention)

        # Random, so that not all replicas take over at once.
        timeout_s = TAKEOVER_S * (1 + random.random())  # noqa: S311
        return Publishing(decider, publisher, timeout_s, clock=time.monotonic)

    def _publisher(self, session: KafkaSession, log: KafkaDecisionLog, retention: Retention | None = None) -> Publisher:
        topology, instance, proposals = self._topology, self._instance, self._proposals
        return Publisher(topology, session.partition, instance, session, log, proposals, self._step, retention)

    def _session(self, partition: int) -> KafkaSession:
        return KafkaSession(self._topology, partition, self._client, partitions=self._partitions, admin=self._admin)

    def _log(self, partition: int) -> KafkaDecisionLog:
        if self._appender is None or self._appender.failed:
            self._appender = Appender(self._client)
        return KafkaDecisionLog(self._topology.decisions, partition, self._client, self._admin, self._appender)
