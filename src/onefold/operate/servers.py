"""Find faults of a user's servers before the start of any service, for `onefold check --servers`."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold import kafka_ask, kafka_probe, rights
from onefold.config import redaction
from onefold.config.guarantee import END_TO_END, TopicSettings, judge
from onefold.config.settings import Settings
from onefold.exit_codes import OK, REFUSED, UNAVAILABLE, USAGE
from onefold.operate import acls, grants, lacking, offsets, partitions, ping, pipelines, server_settings
from onefold.operate.acls import Acl, KafkaService
from onefold.pipelines import Pipeline
from onefold.processor.core.topology import Topology
from onefold.rights import Right

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

#: The major versions of PostgreSQL in Onefold's tests.
POSTGRES_VERSIONS = (15, 18)
# Ages of records are differences between clocks of several machines, shown in tenths of a second. NTP keeps a clock right
# within milliseconds.
_CLOCK_S = 1.0
# The first version of the metadata request with topic ids, of Kafka 2.8.
_IDS_OF_TOPICS = 10
# The first MetadataVersion level of each Kafka release from 3.3 on.
_LEVELS = (1, 8, 9, 12, 15, 20, 21, 22, 26, 28, 30, 31, 34)
_RELEASES = (
    *("before 3.3", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "4.0", "4.1", "4.2", "4.3", "4.4"),
    "after 4.4",
)
# Some of these releases lose the end of a transaction.
_AVOIDED = ("4.3", "4.4")


@dataclass
class ServerCheck:
    """The result of the check.

    Attributes:
        servers: a line for each answering server.
        wrong: faults that prevent the work of a service, a sentence each.
        notes: minor remarks, a sentence each.
        exit_code: for the command.
    """

    servers: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exit_code: int = OK

    def fail(self, sentence: str, exit_code: int = USAGE) -> None:
        """Add a fault. The first exit code stays: faults of the servers come before faults of their contents."""
        self.wrong.append(sentence)
        self.exit_code = self.exit_code or exit_code


def check(
    settings: Settings,
    names: Sequence[str],
    clock: Callable[[], float] = time.time,
    services: Sequence[KafkaService] = (),
) -> ServerCheck:
    """Check Kafka and PostgreSQL; takes seconds. The check changes nothing.

    Args:
        names: the pipelines whose topics and tables are checked.
        clock: of this machine, in seconds since 1970.
        services: the services with the logins of these settings; empty: any service with sufficient rights.

    Raises:
        UserError: no server is set, and the embedded stack is not running.
    """
    found = ServerCheck()
    kafka_answers = _kafka(settings, names, found, services)
    _postgres(settings, names, found, clock, services)
    known = server_settings.of_all(settings, names) if kafka_answers else server_settings.without_kafka(settings, names)
    for topic in known.topics:
        if int(topic.config.get("min.insync.replicas", "1")) > topic.replicas:
            more = f"min.insync.replicas of {topic.name} is more than its {topic.replicas} replicas"
            found.fail(f"{more}: Kafka takes no record there; set it to less, or add replicas", REFUSED)
    for sentence in _parking(server_settings.topologies(names), known.topics):
        found.fail(sentence, REFUSED)
    guarantee = judge(known, settings.allowed())
    if refusal := guarantee.refusal():
        found.fail(refusal, REFUSED)
    found.notes += [line for line in guarantee.lines(END_TO_END) if not (refusal and line.startswith("broken"))]
    return found


def _parking(topologies: Iterable[Topology], topics: Sequence[TopicSettings]) -> Iterator[str]:
    """Find inputs where parked events cannot be replayed."""
    compacted = {topic.name for topic in topics if "compact" in topic.config.get("cleanup.policy", "")}
    for topology in topologies:
        if topology.on_dead_letter == "park" and (inputs := sorted(compacted & {*topology.reads})):
            yield (
                f"{topology.name} parks keys, and its input {inputs[0]} is compacted: Kafka removes events that wait, and they "
                f"can only be dropped; set cleanup.policy=delete, or on_dead_letter='pass'"
            )


def _kafka(settings: Settings, names: Sequence[str], found: ServerCheck, services: Sequence[KafkaService]) -> bool:
    """Returns whether Kafka accepts further requests."""
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    client = settings.usable_client()
    trouble = ping.kafka(settings)
    if trouble is not None:
        found.fail(trouble.sentence, REFUSED if trouble.refused else UNAVAILABLE)
        if not trouble.partial:
            return False
    admin = kafka_client.admin(client)
    chosen = _pipelines(names)
    wanted = {
        service: of
        for service in services or KafkaService
        if (of := acls.acls_of(service, chosen, lambda pipeline: settings.replicas_of(pipeline) > 1))
    }
    try:
        cluster = admin.list_topics(timeout=offsets.CALL_S)
        lacks = lacking.in_kafka(admin, wanted, offsets.CALL_S)
    except KafkaException:
        found.fail(ping.why_silent(settings), UNAVAILABLE)
        return False
    brokers = len(cluster.brokers)
    releases = _releases(client, cluster, found)
    found.servers.append(f"Kafka at {settings.kafka()}: {brokers} broker{'s' if brokers > 1 else ''}{releases}")
    if (settings.replication_factor or 0) > brokers:
        wanted_factor = f"ONEFOLD_REPLICATION_FACTOR is {settings.replication_factor}"
        found.fail(f"{wanted_factor}, and Kafka has {brokers} of the brokers for it: no topic can be made")
    _lacks(found, f"{kafka_client.identity(client)} in Kafka", lacks, services, "`onefold acls` prints the ACLs")
    found.notes += _groups(cluster)
    for sentence in _out_of_sync(
        admin, cluster, {*acls.topics_of(chosen), lacking.MEMBERS, server_settings.TRANSACTIONS}
    ):
        found.fail(sentence, UNAVAILABLE)
    found.notes += _topics(settings, names)
    for name, sentence in partitions.added(settings).items():
        if name in names:
            found.fail(f"{name}: {sentence}", REFUSED)
    return True


def _pipelines(names: Sequence[str]) -> list[Pipeline]:
    """The loadable pipelines: `check` reports the faults of the rest."""
    return [
        pipelines.found()[name] for name in names if name in {one.name for one in server_settings.topologies([name])}
    ]


def _releases(client: Mapping[str, str], cluster: ClusterMetadata, found: ServerCheck) -> str:
    """The releases of the brokers, for the end of a line; "" if unknown."""
    releases = set()
    for broker in cluster.brokers.values():
        # The client's type stubs permit a broker without an address.
        supports = kafka_probe.supported(client, broker.host or "", broker.port or 0)
        if supports is None:
            continue
        at = f"at {broker.host}:{broker.port}"
        if supports.metadata_api < _IDS_OF_TOPICS:
            found.fail(
                f"Kafka {at} is older than 2.8 and gives topics no ids, by which Onefold finds that a topic was recreated: "
                f"upgrade the broker"
            )
            continue
        release = _RELEASES[bisect_right(_LEVELS, supports.metadata_level)]
        releases.add(release)
        if release in _AVOIDED:
            found.notes.append(
                f"Kafka {release} {at}: 4.3.0 to 4.4.0 may block committed records for ever (KAFKA-20734); use 4.2"
            )
    return f", version {' and '.join(sorted(releases))}" if releases else ""


def _lacks(
    found: ServerCheck,
    login: str,
    lacks: Mapping[KafkaService, Sequence[Acl] | Sequence[Right]],
    services: Sequence[KafkaService],
    remedy: str,
) -> None:
    """Report the missing rights of the requested services, else the services that the login cannot run."""
    for service in services:
        if missing := lacks.get(service):
            found.fail(f"{login} lacks for {service.value}: {lacking.named(missing)}. {remedy}", REFUSED)
    unable = [service for service, missing in lacks.items() if missing]
    if services or not unable:
        return
    names = [service.value for service in unable]
    sentence = f"{login} lacks rights for {', '.join(names)}: `onefold check --servers --service {names[0]}` lists them"
    if len(unable) == len(lacks):
        found.fail(sentence, REFUSED)
    else:
        found.notes.append(sentence)


def _out_of_sync(admin: AdminClient, cluster: ClusterMetadata, names: Iterable[str]) -> Iterator[str]:
    """Find partitions that accept no records: with too few replicas in sync, or without a leader. If the settings of a topic
    are unreadable, one replica is assumed to be enough.
    """
    there = {name: cluster.topics[name] for name in sorted(names) if name in cluster.topics}
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in there}
    configs = kafka_ask.describe_configs(admin, list(resources.values()), offsets.CALL_S)() if there else {}
    for name, topic in there.items():
        asked = configs[resources[name]]
        needs = int(asked.result()["min.insync.replicas"].value) if asked.exception() is None else 1
        for number, partition in sorted(topic.partitions.items()):
            replicas, in_sync = len(partition.replicas), len(partition.isrs)
            if name == lacking.MEMBERS and needs > replicas:
                yield (
                    f"min.insync.replicas of {name} is more than its {replicas} replicas: no group can begin; "
                    f"set it to less, or add replicas with kafka-reassign-partitions.sh"
                )
                break
            if partition.leader < 0:
                yield f"{name}/{number} has no leader: start the brokers {', '.join(map(str, partition.replicas))}"
                break
            if in_sync < needs <= replicas:
                away = sorted({*partition.replicas} - {*partition.isrs})
                yield (
                    f"{name}/{number} has {in_sync} of {replicas} replicas in sync, and Kafka takes no record with less than "
                    f"{needs}: start the brokers {', '.join(map(str, away))}, or wait until they have caught up"
                )
                break


def _groups(cluster: ClusterMetadata) -> Iterator[str]:
    """Find faults of Kafka's own topic for groups. Kafka creates the topic with the first group."""
    groups = cluster.topics.get(lacking.MEMBERS)
    if groups is None or len(cluster.brokers) == 1 or all(len(one.replicas) > 1 for one in groups.partitions.values()):
        return
    yield (
        f"{lacking.MEMBERS} has one replica: while its broker is away, processors and workers whose groups lie there stand "
        f"still; give it three with kafka-reassign-partitions.sh, and set offsets.topic.replication.factor=3"
    )


def _topics(settings: Settings, names: Sequence[str]) -> Iterator[str]:
    missing = {name: topics for name, topics in (offsets.missing_topics(settings) or {}).items() if name in names}
    hidden = ping.hidden(missing, settings)
    for name, topics in missing.items():
        more = f" and {len(topics) - 1} more" if len(topics) > 1 else ""
        yield f"{name}: " + hidden.get(name, f"Kafka has no topic {topics[0]}{more}: `onefold migrate` makes it")


def _postgres(
    settings: Settings,
    names: Sequence[str],
    found: ServerCheck,
    clock: Callable[[], float],
    services: Sequence[KafkaService],
) -> None:
    import psycopg

    from onefold import postgres

    dsn = settings.postgres()
    chosen = _pipelines(names)
    wanted = {
        service: grants.rights_of(role, chosen)
        for service, role in lacking.ROLES.items()
        if service in (services or KafkaService)
    }
    try:
        with closing(
            postgres.connect(dsn, "onefold check", settings=postgres.READ_ONLY, patience_s=offsets.CALL_S)
        ) as connection:
            asked = clock()
            row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
            answered, version = clock(), connection.info.server_version // 10_000
            lacks = {
                service: rights.missing(
                    connection, [*of, *grants.of_sequences(connection, lacking.ROLES[service], chosen)]
                )
                for service, of in wanted.items()
            }
            found.notes += [
                f"{table} has the trigger {trigger}, whose function may use what `onefold grants` gives no right on: give the "
                f"sink's role those rights, or declare the function SECURITY DEFINER"
                for table, trigger in grants.triggers(connection, chosen)
            ]
            login = f"the role {rights.role_of(connection)} of PostgreSQL"
    except postgres.Unfit as error:
        found.fail(str(error))
        return
    except psycopg.Error as error:
        found.fail(ping.silent(dsn, error), REFUSED if isinstance(error, postgres.NoLogin) else UNAVAILABLE)
        return
    (there,) = row or (asked,)
    found.servers.append(f"PostgreSQL at {redaction.dsn(dsn)}: version {version}")
    _lacks(found, login, lacks, services, rights.REMEDY)
    first, last = POSTGRES_VERSIONS
    if not first <= version <= last:
        found.notes.append(f"PostgreSQL {version} is not tested with Onefold, {first} to {last} are")
    if (differ := max(asked - there, there - answered)) > _CLOCK_S:
        found.notes.append(
            f"the clocks of PostgreSQL and of this machine differ by {differ:.0f} s, and ages of records are wrong by as much; "
            f"set both by NTP"
        )
