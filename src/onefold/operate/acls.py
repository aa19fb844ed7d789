"""The Kafka rights of each service, derived from the declarations of pipelines: for Kafka's own tool, or for Strimzi.

*Read*, *Write* and *Delete* include *Describe*, so *Describe* is listed only where no other operation includes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import NamedTuple

from onefold.config.guarantee import TopicRole
from onefold.names import pauses_topic
from onefold.operate.server_settings import TRANSACTIONS, roles_of
from onefold.pipelines import Pipeline, again_of, dead_of
from onefold.processor import loading
from onefold.processor.core.topology import Topology

TOPIC, GROUP, TRANSACTIONAL_ID = "topic", "group", "transactionalId"
READ, WRITE, CREATE, DELETE = "Read", "Write", "Create", "Delete"
DESCRIBE, CONFIGS = "Describe", "DescribeConfigs"


class KafkaService(Enum):
    """A service that logs in to Kafka. The value is the name in options and documents."""

    PROCESSOR = "processor"
    SINK = "sink"
    WORKER = "worker"
    VERIFIER = "verifier"
    AUDITOR = "auditor"
    READER = "reader"
    PRODUCER = "producer"
    OPERATOR = "operator"


#: The commands of each service.
VERBS = {
    KafkaService.PROCESSOR: "`process`",
    KafkaService.SINK: "`sink`",
    KafkaService.WORKER: "`work`, `jobs requeue`",
    KafkaService.VERIFIER: "`verify`",
    KafkaService.AUDITOR: "`audit`",
    KafkaService.READER: "`dashboard`, `status`, `explain`",
    KafkaService.PRODUCER: "`produce`, and programs that write inputs",
    KafkaService.OPERATOR: "`migrate`, `reset`, `pause`, `resume`, `rebuild`, `dead-letters`",
}


class Acl(NamedTuple):
    """One operation on a topic, a group or a transactional id.

    Attributes:
        prefixed: `name` is the beginning of names.
    """

    kind: str
    name: str
    operation: str
    prefixed: bool = False

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name}{'*' * self.prefixed}"


def acls_of(
    service: KafkaService,
    pipelines: Iterable[Pipeline],
    replicated: Callable[[Pipeline], bool] = lambda pipeline: False,
) -> list[Acl]:
    """List the ACLs of a service for these pipelines, without duplicates.

    Args:
        replicated: whether several processes compute each task of a pipeline.

    Raises:
        InvalidDeclaration: the topology of a pipeline does not load.
    """
    rule = _RULES[service]
    found = {acl for pipeline in pipelines for acl in rule(pipeline, _topics(pipeline, replicated(pipeline)))}
    return sorted(found)


class _Topics(NamedTuple):
    """The topics of a pipeline by kind. `all` includes topics that other pipelines and programs write too."""

    topology: Topology
    all: Sequence[str]
    decisions: Sequence[str]


def _topics(pipeline: Pipeline, replicated: bool) -> _Topics:
    topology = loading.load_topology(pipeline)
    roles = roles_of(topology, replicated=replicated)
    named = [*(name for name, _ in roles), *pipeline.topics_of_workers, pauses_topic(pipeline.name)]
    return _Topics(topology, [*dict.fromkeys(named)], [name for name, role in roles if role is TopicRole.DECISIONS])


def topics_of(pipelines: Iterable[Pipeline]) -> list[str]:
    """List the topics of these pipelines, shared topics included, decision logs excluded. Raises InvalidDeclaration."""
    return [topic for pipeline in pipelines for topic in _topics(pipeline, replicated=False).all]


def _each(names: Iterable[str], *operations: str, kind: str = TOPIC) -> Iterator[Acl]:
    for name in names:
        for operation in operations:
            yield Acl(kind, name, operation)


def _groups(pipeline: Pipeline) -> list[str]:
    group = f"onefold-{pipeline.name}"
    return [group, f"{group}.replicas", *(f"onefold.{queue}" for queue in pipeline.jobs)]


def _processor(pipeline: Pipeline, of: _Topics) -> Iterator[Acl]:
    topology = of.topology
    # An input may hold records of another partition: the processor copies them there.
    yield from _each([*topology.reads, topology.changelog], READ, WRITE, CONFIGS)
    yield from _each({*topology.written} - {*topology.reads, topology.changelog}, WRITE, CONFIGS)
    yield from _each([topology.replays], READ, CONFIGS)
    yield from _each([pauses_topic(pipeline.name)], READ)
    yield from _each(of.decisions, READ, WRITE, DELETE, CONFIGS)
    yield from _each([TRANSACTIONS], CONFIGS, DESCRIBE)
    group, replicas, *_ = _groups(pipeline)
    yield Acl(GROUP, replicas if of.decisions else group, READ)
    yield Acl(TRANSACTIONAL_ID, f"{group}-", WRITE, prefixed=True)


def _sink(pipeline: Pipeline, of: _Topics) -> Iterator[Acl]:
    yield from _each([topic for topic in of.topology.outputs if topic not in pipeline.kafka_only], READ, CONFIGS)
    yield from _each([pauses_topic(pipeline.name)], READ)
    yield from _each([TRANSACTIONS], CONFIGS, DESCRIBE)


def _worker(pipeline: Pipeline, of: _Topics) -> Iterator[Acl]:
    for queue in pipeline.jobs:
        yield from _each([queue], READ)
        # A worker creates missing retry and dead-letter topics.
        yield from _each([again_of(queue)], READ, WRITE, CREATE)
        yield from _each([dead_of(queue)], WRITE, CREATE)
        yield from _each([f"onefold.{queue}"], READ, kind=GROUP)
    if pipeline.jobs:
        yield from _each(pipeline.reports or (), WRITE)
        yield from _each([pauses_topic(pipeline.name)], READ)
        yield Acl(TRANSACTIONAL_ID, "onefold-work-", WRITE, prefixed=True)


def _verifier(pipeline: Pipeline, of: _Topics) -> Iterator[Acl]:
    yield from _each(of.all, READ)
    # The verifier reads the settings: in a compacted topic a missing record is no mismatch.
    yield from _each([*of.topology.reads, *of.topology.outputs], CONFIGS)


def _reader(pipeline: Pipeline, of: _Topics) -> Iterator[Acl]:
    yield from _each(of.all, READ)
    beside = {*pipeline.topics_of_workers, pauses_topic(pipeline.name)}  # no guarantee depends on their settings
    yield from _each([topic for topic in of.all if topic not in beside], CONFIGS)
    yield from _each([TRANSACTIONS], READ, CONFIGS)
    yield from _each(_groups(pipeline), DESCRIBE, kind=GROUP)


def _producer(pipeline: Pipeline, of: _Topics) -> Iterator[Acl]:
    others = {*of.topology.fed, *(pipeline.reports or ())}
    yield from _each([topic for topic in of.topology.inputs if topic not in others], WRITE)
    yield Acl(TRANSACTIONAL_ID, "onefold-produce-", WRITE, prefixed=True)


def _operator(pipeline: Pipeline, of: _Topics) -> Iterator[Acl]:
    topology = of.topology
    yield from _each(of.all, CREATE, DELETE)
    # `reset` marks the changelog, `dead-letters replay` writes inputs and receipts, and `pause` the pauses topic.
    written = [*topology.reads, topology.changelog, topology.replays, pauses_topic(pipeline.name)]
    yield from _each(written, READ, WRITE)
    yield from _each([*topology.outputs, *topology.dead.values()], READ)
    yield from _each(_groups(pipeline), DELETE, kind=GROUP)
    yield Acl(TRANSACTIONAL_ID, f"onefold-{pipeline.name}-", WRITE, prefixed=True)
    yield Acl(TRANSACTIONAL_ID, f"onefold-replay-{pipeline.name}", WRITE)


_RULES = {
    KafkaService.PROCESSOR: _processor,
    KafkaService.SINK: _sink,
    KafkaService.WORKER: _worker,
    KafkaService.VERIFIER: _verifier,
    KafkaService.AUDITOR: _verifier,
    KafkaService.READER: _reader,
    KafkaService.PRODUCER: _producer,
    KafkaService.OPERATOR: _operator,
}

Granted = Mapping[KafkaService, Sequence[Acl]]


def grouped(acls: Sequence[Acl]) -> Iterator[tuple[Acl, list[str]]]:
    """Group the operations by resource. The first ACL of a group stands for the resource."""
    for _, found in groupby(acls, lambda acl: (acl.kind, acl.name, acl.prefixed)):
        same = list(found)
        yield same[0], [acl.operation for acl in same]


def kafka_acls(granted: Granted, principals: Mapping[KafkaService, str], servers: str) -> Iterator[str]:
    """A command line of Kafka's own tool for each resource of each service."""
    for service, acls in granted.items():
        for acl, operations in grouped(acls):
            option = "transactional-id" if acl.kind == TRANSACTIONAL_ID else acl.kind
            words = [
                *("kafka-acls.sh", "--bootstrap-server", servers, "--add"),
                *("--allow-principal", _quoted(f"User:{principals[service]}")),
                *(word for operation in operations for word in ("--operation", operation)),
                *(f"--{option}", acl.name),
                *(("--resource-pattern-type", "prefixed") if acl.prefixed else ()),
            ]
            yield " ".join(words)


def _quoted(word: str) -> str:
    """Quote a word for a shell, for example the distinguished name of a certificate."""
    return "'" + word.replace("'", "'\\''") + "'"


def strimzi(granted: Granted, principals: Mapping[KafkaService, str], cluster: str) -> Iterator[str]:
    """A KafkaUser resource for each service. The name of the resource is the principal."""
    for service, acls in granted.items():
        yield "---"
        yield "apiVersion: kafka.strimzi.io/v1"
        yield "kind: KafkaUser"
        yield "metadata:"
        yield f"  name: {json.dumps(principals[service])}"
        yield "  labels:"
        yield f"    strimzi.io/cluster: {json.dumps(cluster)}"
        yield "spec:"
        yield "  authentication:"
        yield "    type: scram-sha-512"
        yield "  authorization:"
        yield "    type: simple"
        yield "    acls:"
        for acl, operations in grouped(acls):
            pattern = "prefix" if acl.prefixed else "literal"
            yield f"      - resource: {{type: {acl.kind}, name: {json.dumps(acl.name)}, patternType: {pattern}}}"
            yield f"        operations: [{', '.join(operations)}]"
