"""What Kafka and PostgreSQL say of their settings, for `guarantee`. What may not be asked, or does not answer, is unknown.

PostgreSQL's client is not imported: a processor has none.
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
from onefold.config.guarantee import POSTGRES, UNKNOWN_CONTRACTS, Facts, Postgres, Role, Topic
from onefold.config.settings import Settings
from onefold.operate import merges, pipelines
from onefold.pipelines import Faulty, Pipeline
from onefold.processor import loading
from onefold.processor.core.topology import Topology

if TYPE_CHECKING:
    import psycopg

CALL_S = 5.0  # one question; a healthy server answers in milliseconds
#: Kafka's own topic of what became of transactions. Before the first one there is none, and the broker says how it will be.
TRANSACTIONS = "__transaction_state"
_TO_BE = ("transaction.state.log.replication.factor", "transaction.state.log.min.isr")
_ASKED = (
    *("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms"),
    *("min.insync.replicas", "unclean.leader.election.enable"),
)
_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")
# In the engine's schema is what says how far everything has come; a row of it belongs to the rows of a batch.
_UNLOGGED = (
    "SELECT oid::regclass::text FROM pg_class WHERE relpersistence = 'u' AND relkind = 'r'"
    " AND (relnamespace = to_regnamespace('onefold') OR oid IN (SELECT to_regclass(name) FROM unnest(%s::text[]) AS name))"
    " ORDER BY 1"
)

Unknown = dict[str, list[str]]


def roles_of(topology: Topology, *, replicated: bool) -> list[tuple[str, Role]]:
    """The topics of a pipeline, with what each is to it. `replicated`: it has a decision log."""
    optional = [(topology.order, Role.ORDER), (topology.decisions if replicated else None, Role.DECISIONS)]
    return [
        *((topic, Role.INPUT) for topic in topology.reads),
        (topology.changelog, Role.CHANGELOG),
        *((topic, Role.OUTPUT) for topic in topology.outputs),
        *((topic, Role.DEAD) for topic in topology.dead.values()),
        *((topic, role) for topic, role in optional if topic is not None),
        (topology.replays, Role.RECEIPTS),
    ]


def of_processor(pipeline: Pipeline, settings: Settings) -> Facts:
    """What a processor's promise hangs on: all topics of its pipeline. Raises `Faulty`."""
    roles = roles_of(loading.load_topology(pipeline), replicated=settings.replicas_of(pipeline) > 1)
    return of_topics(roles, settings.client())


def of_sink(
    pipeline: Pipeline, topics: Iterable[str], settings: Settings, connection: psycopg.Connection[Any]
) -> Facts:
    """What a sink's promise hangs on: the topics that it lands, and what its own session in PostgreSQL says."""
    kafka = of_topics([(topic, Role.OUTPUT) for topic in topics], settings.client())
    postgres = of_postgres(connection, merges.written(pipeline))
    return Facts(kafka.topics, postgres, _set_aside([pipeline.name], settings), kafka.unknown)


def of_all(settings: Settings, names: Collection[str] | None = None) -> Facts:
    """End to end, of every pipeline that can be loaded; of those with these names, if some are given."""
    roles: list[tuple[str, Role]] = []
    tables: list[str] = []
    for pipeline, topology in _loaded(names):
        roles += roles_of(topology, replicated=settings.replicas_of(pipeline) > 1)
        tables += merges.written(pipeline)
    kafka = of_topics(roles, settings.client())
    postgres, unknown = _asked(settings, tables)
    known = [pipeline.name for pipeline, _ in _loaded(names)]
    return Facts(kafka.topics, postgres, _set_aside(known, settings), {**kafka.unknown, **unknown})


def topologies(names: Collection[str]) -> list[Topology]:
    """Those of these pipelines that can be loaded."""
    return [topology for _, topology in _loaded(names)]


def _set_aside(names: Sequence[str], settings: Settings) -> Sequence[str]:
    return names if UNKNOWN_CONTRACTS in settings.allowed() else ()


def without_kafka(settings: Settings, names: Collection[str] | None = None) -> Facts:
    """What PostgreSQL says, where Kafka cannot be asked. `names` as of `of_all`."""
    postgres, unknown = _asked(
        settings, [table for pipeline, _ in _loaded(names) for table in merges.written(pipeline)]
    )
    return Facts(postgres=postgres, unknown={"it cannot be asked": ["Kafka"], **unknown})


def _loaded(names: Collection[str] | None = None) -> Iterator[tuple[Pipeline, Topology]]:
    for pipeline in pipelines.found().pipelines.values():
        if names is not None and pipeline.name not in names:
            continue
        with suppress(Faulty):  # `check` says why
            yield pipeline, loading.load_topology(pipeline)


def _asked(settings: Settings, tables: Sequence[str]) -> tuple[Postgres | None, Unknown]:
    import psycopg

    from onefold import postgres as sessions

    try:
        with sessions.connect(settings.postgres(), "onefold check", settings=sessions.READ_ONLY) as connection:
            return of_postgres(connection, tables), {}
    except sessions.Unfit as error:
        return None, {str(error): [POSTGRES]}
    except psycopg.Error as error:
        return None, {f"it {sessions.unopened(error)} ({first_line(error)})": [POSTGRES]}


def of_postgres(connection: psycopg.Connection[Any], tables: Sequence[str]) -> Postgres:
    """What holds for this session, and which of these tables, or of the engine's, are unlogged.

    Raises psycopg.Error when PostgreSQL does not answer.
    """
    settings = {name: str((connection.execute(f"SHOW {name}").fetchone() or ("",))[0]) for name in _SETTINGS}
    return Postgres(settings, [name for (name,) in connection.execute(_UNLOGGED, (list(tables),))])


def of_topics(roles: Sequence[tuple[str, Role]], client: Mapping[str, str]) -> Facts:
    """How these topics are set, and the log of transactions. One that is not there is left out: it has lost nothing yet."""
    admin = kafka_client.admin(client)
    names = list(dict.fromkeys([*(name for name, _ in roles), TRANSACTIONS]))
    unknown: Unknown = defaultdict(list)
    described, configs = _answers(admin, names, unknown)
    found = [
        Topic(name, role, _replicas(described[name]), configs.get(name, {}))
        for name, role in [*roles, (TRANSACTIONS, Role.TRANSACTIONS)]
        if name in described
    ]
    if TRANSACTIONS not in described and TRANSACTIONS not in _flat(unknown):
        found += _transactions_to_be(admin, unknown)
    return Facts(found, unknown=dict(unknown))


def _answers(
    admin: AdminClient, names: list[str], unknown: Unknown
) -> tuple[dict[str, TopicDescription], dict[str, dict[str, str]]]:
    """Both questions are under way at once."""
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


def _transactions_to_be(admin: AdminClient, unknown: Unknown) -> list[Topic]:
    try:
        nodes = admin.describe_cluster(request_timeout=CALL_S).result().nodes
    except KafkaException:
        nodes = []
    if not nodes:
        unknown["Kafka does not say how it is set"].append(TRANSACTIONS)
        return []
    brokers = [ConfigResource(ResourceType.BROKER, node.id_string) for node in nodes]
    answers = [admin.describe_configs([broker], request_timeout=CALL_S)[broker] for broker in brokers]
    # Only a broker itself knows how it is set, and the cluster names a dead broker until that broker's session ends.
    first = next((one for one in as_completed(answers) if one.exception() is None), answers[0])
    config = _answer(first, TRANSACTIONS, unknown)
    if config is None or any(name not in config for name in _TO_BE):
        return []
    replicas, in_sync = (str(config[name].value) for name in _TO_BE)
    return [Topic(TRANSACTIONS, Role.TRANSACTIONS, int(replicas), {"min.insync.replicas": in_sync})]


def _answer(asked: Future[Any], name: str, unknown: Unknown) -> Any:
    """None when there is no such topic, or when it is unknown, which is noted once."""
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
