"""Read the settings of Kafka and PostgreSQL for `guarantee`. A setting without permission or answer is unknown.

PostgreSQL's client is imported only for a request: a processor has no such client.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType, TopicDescription  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold import kafka_ask, kafka_client
from onefold.config.errors import first_line
from onefold.config.guarantee import (
    POSTGRES,
    UNKNOWN_CONTRACTS,
    PostgresSettings,
    ServerFacts,
    TopicRole,
    TopicSettings,
)
from onefold.config.settings import Settings
from onefold.operate import merge_sql, pipelines
from onefold.pipelines import InvalidDeclaration, Pipeline
from onefold.processor import loading
from onefold.processor.core.topology import Topology

if TYPE_CHECKING:
    import psycopg

CALL_S = 5.0  # one request; a healthy server answers in milliseconds
#: Kafka's own topic for the outcomes of transactions. Before the first transaction the topic is missing, and broker settings
#: give its future settings.
TRANSACTIONS = "__transaction_state"
_TO_BE = ("transaction.state.log.replication.factor", "transaction.state.log.min.isr")
_ASKED = (
    *("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms"),
    *("min.insync.replicas", "unclean.leader.election.enable"),
)
_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")
# The engine's schema stores positions, and each position belongs to the rows of a batch.
_UNLOGGED = (
    "SELECT oid::regclass::text FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r'"
    " AND (relnamespace = to_regnamespace('onefold') OR oid IN (SELECT to_regclass(name) FROM unnest(%s::text[]) AS name))"
    " ORDER BY 1"
)

Unknown = dict[str, list[str]]


def roles_of(topology: Topology, *, replicated: bool) -> list[tuple[str, TopicRole]]:
    """The topics of a pipeline with their roles. `replicated`: the pipeline has a decision log."""
    optional = [(topology.order, TopicRole.ORDER), (topology.decisions if replicated else None, TopicRole.DECISIONS)]
    return [
        *((topic, TopicRole.INPUT) for topic in topology.reads),
        (topology.changelog, TopicRole.CHANGELOG),
        *((topic, TopicRole.OUTPUT) for topic in topology.outputs),
        *((topic, TopicRole.DEAD) for topic in topology.dead.values()),
        *((topic, role) for topic, role in optional if topic is not None),
        (topology.replays, TopicRole.RECEIPTS),
    ]


def of_processor(pipeline: Pipeline, settings: Settings) -> ServerFacts:
    """The facts for a processor's guarantee: all topics of its pipeline. Raises `InvalidDeclaration`."""
    roles = roles_of(loading.load_topology(pipeline), replicated=settings.replicas_of(pipeline) > 1)
    return of_topics(roles, settings.client())


def of_sink(
    pipeline: Pipeline, topics: Iterable[str], settings: Settings, connection: psycopg.Connection[Any]
) -> ServerFacts:
    """The facts for a sink's guarantee: the topics that it writes, and the settings of its own PostgreSQL session."""
    kafka = of_topics([(topic, TopicRole.OUTPUT) for topic in topics], settings.client())
    postgres = of_postgres(connection, merge_sql.written(pipeline))
    return ServerFacts(kafka.topics, postgres, _set_aside([pipeline.name], settings), kafka.unknown)


def of_all(settings: Settings, names: Collection[str] | None = None) -> ServerFacts:
    """The facts for the end-to-end guarantee of all loadable pipelines, or of the given names."""
    roles: list[tuple[str, TopicRole]] = []
    tables: list[str] = []
    for pipeline, topology in _loaded(names):
        roles += roles_of(topology, replicated=settings.replicas_of(pipeline) > 1)
        tables += merge_sql.written(pipeline)
    kafka = of_topics(roles, settings.client())
    postgres, unknown = _asked(settings, tables)
    known = [pipeline.name for pipeline, _ in _loaded(names)]
    return ServerFacts(kafka.topics, postgres, _set_aside(known, settings), {**kafka.unknown, **unknown})


def topologies(names: Collection[str]) -> list[Topology]:
    """The topologies of the loadable pipelines among the names."""
    return [topology for _, topology in _loaded(names)]


def _set_aside(names: Sequence[str], settings: Settings) -> Sequence[str]:
    return names if UNKNOWN_CONTRACTS in settings.allowed() else ()


def without_kafka(settings: Settings, names: Collection[str] | None = None) -> ServerFacts:
    """The PostgreSQL facts, if Kafka cannot be asked. `names`: see `of_all`."""
    postgres, unknown = _asked(
        settings, [table for pipeline, _ in _loaded(names) for table in merge_sql.written(pipeline)]
    )
    return ServerFacts(postgres=postgres, unknown={"it cannot be asked": ["Kafka"], **unknown})


def _loaded(names: Collection[str] | None = None) -> Iterator[tuple[Pipeline, Topology]]:
    for pipeline in pipelines.found().pipelines.values():
        if names is not None and pipeline.name not in names:
            continue
        with suppress(InvalidDeclaration):  # `check` reports the fault
            yield pipeline, loading.load_topology(pipeline)


def _asked(settings: Settings, tables: Sequence[str]) -> tuple[PostgresSettings | None, Unknown]:
    import psycopg

    from onefold import postgres as sessions

    try:
        with sessions.connect(settings.postgres(), "onefold check", settings=sessions.READ_ONLY) as connection:
            return of_postgres(connection, tables), {}
    except sessions.Unfit as error:
        return None, {str(error): [POSTGRES]}
    except psycopg.Error as error:
        return None, {f"it {sessions.unopened(error)} ({first_line(error)})": [POSTGRES]}


def of_postgres(connection: psycopg.Connection[Any], tables: Sequence[str]) -> PostgresSettings:
    """The settings of this session, and the unlogged tables among the given tables and the engine's tables.

    Raises psycopg.Error if PostgreSQL does not answer.
    """
    settings = {name: str((connection.execute(f"SHOW {name}").fetchone() or ("",))[0]) for name in _SETTINGS}
    return PostgresSettings(settings, [name for (name,) in connection.execute(_UNLOGGED, (list(tables),))])


def of_topics(roles: Sequence[tuple[str, TopicRole]], client: Mapping[str, str]) -> ServerFacts:
    """The settings of these topics, and of the transaction log. A missing topic is left out: it has lost no records yet."""
    admin = kafka_client.admin(client)
    names = list(dict.fromkeys([*(name for name, _ in roles), TRANSACTIONS]))
    unknown: Unknown = defaultdict(list)
    described, configs = _answers(admin, names, unknown)
    found = [
        TopicSettings(name, role, _replicas(described[name]), configs.get(name, {}))
        for name, role in [*roles, (TRANSACTIONS, TopicRole.TRANSACTIONS)]
        if name in described
    ]
    if TRANSACTIONS not in described and TRANSACTIONS not in _flat(unknown):
        found += _transactions_to_be(admin, unknown)
    return ServerFacts(found, unknown=dict(unknown))


def _answers(
    admin: AdminClient, names: list[str], unknown: Unknown
) -> tuple[dict[str, TopicDescription], dict[str, dict[str, str]]]:
    """Send both requests concurrently."""
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
    configs_of = kafka_ask.describe_configs(admin, list(resources.values()), CALL_S)
    described_of = kafka_ask.describe_topics(admin, names, CALL_S)
    asked, described = configs_of(), described_of()
    found = {name: answer for name in names if (answer := _answer(described[name], name, unknown)) is not None}
    configs = {
        name: {key: str(answer[key].value) for key in _ASKED if key in answer}
        for name in found
        if (answer := _answer(asked[resources[name]], name, unknown)) is not None
    }
    return found, configs


def _transactions_to_be(admin: AdminClient, unknown: Unknown) -> list[TopicSettings]:
    try:
        nodes = admin.describe_cluster(request_timeout=CALL_S).result().nodes
    except KafkaException:
        nodes = []
    if not nodes:
        unknown["Kafka does not say how it is set"].append(TRANSACTIONS)
        return []
    brokers = [ConfigResource(ResourceType.BROKER, node.id_string) for node in nodes]
    answers = [admin.describe_configs([broker], request_timeout=CALL_S)[broker] for broker in brokers]
    # Only a broker can report its own settings, and the cluster lists a crashed broker until the broker's session ends.
    first = next((one for one in as_completed(answers) if one.exception() is None), answers[0])
    config = _answer(first, TRANSACTIONS, unknown)
    if config is None or any(name not in config for name in _TO_BE):
        return []
    replicas, in_sync = (str(config[name].value) for name in _TO_BE)
    return [TopicSettings(TRANSACTIONS, TopicRole.TRANSACTIONS, int(replicas), {"min.insync.replicas": in_sync})]


def _answer(asked: Future[Any], name: str, unknown: Unknown) -> Any:
    """The answer; None for a missing topic, or for an unknown answer, which is noted once."""
    try:
        return asked.result()
    except KafkaException as error:
        cause = error.args[0]
        if cause.code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            unknown[f"Kafka does not say how it is set ({cause.name()})"].append(name)
        return None


def _replicas(topic: TopicDescription) -> int:
    return min((len(partition.replicas) for partition in topic.partitions), default=1)


def _flat(unknown: Unknown) -> set[str]:
    return {name for names in unknown.values() for name in names}
