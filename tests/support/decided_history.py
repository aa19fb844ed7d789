"""Decisions of replicas on a real broker, by the rule; and a history written at full speed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka.admin import AdminClient

from onefold.processor.core.decision import DecisionHistory, LogPosition, Proposal
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Record as InputRecord
from onefold.processor.io.admin import identity
from onefold.processor.io.decision_log import KafkaDecisionLog
from onefold.processor.io.inputs import KafkaInputs
from onefold.processor.io.kafka import KafkaSession
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.loading import codec_of
from onefold.processor.runtime.log_decider import LogDecider
from onefold.processor.runtime.state_manager import StateManager
from onefold.processor.runtime.task import Task
from onefold.verify.contracts import contracts
from onefold.verify.decode import decode_output
from tests.support.clock import Clock
from tests.support.processes import records
from tests.support.waiting import eventually


def decided_and_published(topology: Topology, client: dict[str, str], topic: str) -> tuple[list[bytes], list[bytes]]:
    """Values that the decisions write to a topic, and values in the topic, both ordered by key and by order within a key."""
    log_id = identity(AdminClient({**client}), topology.decisions, 0).topic_id
    proposals, histories = MsgpackProposals(), dict[int, DecisionHistory]()
    written: list[tuple[bytes | None, bytes | None]] = []
    for record in records(client, topology.decisions):
        task, found = record.partition, proposals.decode(record.value)
        history = histories.setdefault(task, DecisionHistory(task, LogPosition(log_id, record.offset, None)))
        decision = history.take(record.offset, found if isinstance(found, Proposal) else None)
        if decision is not None:
            writes = proposals.writes(decision.proposal.body.writes)
            written += [(key, value) for to, _, key, value, _ in writes if to == topic]
    return _by_key(written), _by_key([(record.key, record.value) for record in records(client, topic)])


def _by_key(found: Sequence[tuple[bytes | None, bytes | None]]) -> list[bytes]:
    return [value or b"" for _, value in sorted(found, key=lambda one: one[0] or b"")]


def winners(topology: Topology, client: dict[str, str]) -> Counter[str]:
    """Number of accepted proposals by replica. In these tests, the first proposal that continues a version is accepted."""
    return _won(_proposals(topology, client))


def lost(topology: Topology, client: dict[str, str]) -> int:
    """Number of rejected proposals."""
    proposals = _proposals(topology, client)
    return len(proposals) - _won(proposals).total()


def _won(proposals: list[tuple[int, Proposal]]) -> Counter[str]:
    first: dict[tuple[int, int], str] = {}
    for partition, proposal in proposals:
        # A very late proposal may follow decisions of later versions, and is rejected too.
        first.setdefault((partition, proposal.version), proposal.proposer)
    return Counter(first.values())


def _proposals(topology: Topology, client: dict[str, str]) -> list[tuple[int, Proposal]]:
    """Proposals with their partition of the log."""
    read = [
        (record.partition, MsgpackProposals().decode(record.value)) for record in records(client, topology.decisions)
    ]
    return [(partition, proposal) for partition, proposal in read if isinstance(proposal, Proposal)]


def total_and_sum_of_steps(client: dict[str, str]) -> tuple[dict[Any, int], dict[Any, int]]:
    """For the pipeline `runner`, by user and run: the last total, and the sum of all decided steps."""
    known = contracts()
    totals: dict[Any, int] = {}
    steps: Counter[Any] = Counter()
    for record in records(client, "runner.stats"):
        row = decode_output(known["runner.stats"], record.value)
        totals[row["user_id"], row["run_id"]] = row["total_meters"]
    for record in records(client, "runner.messages"):
        row = decode_output(known["runner.messages"], record.value)
        steps[row["user_id"], row["run_id"]] += row["distance_meters"]
    return totals, dict(steps)


def published_states(topology: Topology, client: dict[str, str], partitions: int = 2) -> list[Mapping[str, Any]]:
    """States in the changelog, by partition."""
    found: list[Mapping[str, Any]] = []
    for partition in range(partitions):
        with closing(KafkaSession(topology, partition, client)) as session:
            found.append(
                StateManager(topology, codec_of(topology), partition).restore(session, stable=True).store.snapshot()
            )
    return found


class Author:
    """A replica that decides records of task 0 one at a time, alone, without waiting for the broker's answers."""

    def __init__(self, topology: Topology, client: dict[str, str]) -> None:
        self._inputs = KafkaInputs(topology, 0, client, fetch_wait_ms=10)
        self._log = KafkaDecisionLog(topology.decisions, 0, client)
        session = KafkaSession(topology, 0, client)
        codec = codec_of(topology)
        clock = Clock()
        self._decider = LogDecider(
            topology, "author", self._inputs, self._log, session, MsgpackProposals(), clock=clock
        )
        self.replica = Task(topology, self._inputs, codec, self._decider, clock=clock)

    def open(self) -> None:
        """Read all decisions, and open the log unless open: a stopped predecessor may have been about to open the log."""
        self.replica.open()
        if not self._is_opened():
            assert not self._decider.is_ready(self.replica.quarantine), "the log is opened first"
            eventually(self._is_opened, 30, "the log is opened")

    def _is_opened(self) -> bool:
        self.replica._apply(self._decider.decisions())
        return bool(self.replica.progress.decided_in and self.replica.progress.decided_in.opened)

    def decide(self, end: int) -> None:
        """Decide the next input records up to an offset, one decision per record."""
        replica = self.replica
        while sum(replica.progress.offsets_next.values()) < end:
            for record in self._inputs.poll(1_000, 1.0):
                self._decide(replica, record)

    def _decide(self, replica: Task, record: InputRecord) -> None:
        replica._propose_records([record], lambda: replica.progress.topic_ids)
        decider = self._decider
        assert decider._pending is not None
        # As the only writer, the proposal is at the end of the log.
        replica._apply(decider.take([(decider._history.offset_next, decider._pending.value)]))

    def close(self) -> None:
        """Leave when all proposals are written."""
        assert self._log._appender._producer.flush(60) == 0
        self.replica.abandon()
