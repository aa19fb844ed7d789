"""Hand-written records of a decision log."""

import time
from collections.abc import Callable

from confluent_kafka import Producer

from onefold.processor.core.decision import Proposal, ProposalKind, Range
from onefold.processor.core.decision_log import ProposalBody, StatusRecord
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import RecordCounts
from onefold.processor.io.admin import create_topics
from onefold.processor.io.proposals import MsgpackProposals


def status_note(name: str, version: int, task: int = 0) -> StatusRecord:
    """Status note of a replica of an older version, with its listening address."""
    counts = {"version": version, "won": version, "decided": version, "published": version}
    return StatusRecord(task, name, {"replica": {**counts, "publishes": True, "listens": ["127.0.0.1", 4711]}})


def published(name: str, version: int) -> bytes:
    """A publisher's note, encoded."""
    return MsgpackProposals().encode_note(StatusRecord(0, name, {"published": version}))


def proposal(version: int, kind: ProposalKind = ProposalKind.STEP, name: str = "a", size: int = 50) -> bytes:
    """A proposal that continues a version, with a state of `size` bytes."""
    body = ProposalBody(RecordCounts(), [(b"key", bytes(size))], b"")
    return MsgpackProposals().encode(Proposal(0, version, {"in": Range("id", version, version + 1)}, name, body, kind))


def writer(topology: Topology, client: dict[str, str]) -> Callable[..., None]:
    """Create the decision log of a pipeline with one partition, and return a function that appends values with an age."""
    create_topics(topology, 1, client, inputs=False, decisions=True)
    producer = Producer(client)

    def append(*values: bytes, ago_s: float = 0) -> None:
        for value in values:
            producer.produce(topology.decisions, value, partition=0, timestamp=int(1000 * (time.time() - ago_s)))
        assert producer.flush(20) == 0

    return append
