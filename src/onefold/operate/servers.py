"""What is wrong with the servers of a user, before anything is started: for `onefold check --servers`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onefold.config import redaction
from onefold.config.guarantee import END_TO_END, Topic, judge
from onefold.config.settings import Settings
from onefold.exit_codes import OK, REFUSED, UNAVAILABLE, USAGE
from onefold.operate import answering, facts, partitions, positions
from onefold.processor.core.topology import Topology

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

#: The major versions that Onefold is tested with.
POSTGRES_VERSIONS = (15, 18)
# Ages of records are differences between clocks of several machines, and are shown in tenths of a second. A clock that NTP
# keeps is right within some milliseconds.
_CLOCK_S = 1.0
# Kafka's own topic of the members and positions of groups.
_GROUPS = "__consumer_offsets"


@dataclass
class Checked:
    """What was found.

    Attributes:
        servers: a line for each that answers.
        wrong: what keeps a service from its work, a sentence each.
        notes: what does not, a sentence each.
        exit_code: of a command that says so.
    """

    servers: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exit_code: int = OK

    def fail(self, sentence: str, exit_code: int = USAGE) -> None:
        """Something is wrong. Of several exit codes the first one stays: the servers are asked before what they hold."""
        self.wrong.append(sentence)
        self.exit_code = self.exit_code or exit_code


def check(settings: Settings, names: Sequence[str], clock: Callable[[], float] = time.time) -> Checked:
    """Ask Kafka and PostgreSQL; seconds. Nothing is changed.

    Args:
        names: pipelines whose topics and tables are looked at.
        clock: of this machine, in seconds since 1970.

    Raises:
        UserError: no server is set, and the embedded stack is not running.
    """
    found = Checked()
    kafka_answers = _kafka(settings, names, found)
    _postgres(settings, found, clock)
    known = facts.of_all(settings, names) if kafka_answers else facts.without_kafka(settings, names)
    for topic in known.topics:
        if int(topic.config.get("min.insync.replicas", "1")) > topic.replicas:
            more = f"min.insync.replicas of {topic.name} is more than its {topic.replicas} replicas"
            found.fail(f"{more}: Kafka takes no record there; set it to less, or add replicas", REFUSED)
    for sentence in _parking(facts.topologies(names), known.topics):
        found.fail(sentence, REFUSED)
    guarantee = judge(known, settings.allowed())
    if refusal := guarantee.refusal():
        found.fail(refusal, REFUSED)
    found.notes += [line for line in guarantee.lines(END_TO_END) if not (refusal and line.startswith("broken"))]
    return found


def _parking(topologies: Iterable[Topology], topics: Sequence[Topic]) -> Iterator[str]:
    """What keeps parked events from being replayed."""
    compacted = {topic.name for topic in topics if "compact" in topic.config.get("cleanup.policy", "")}
    for topology in topologies:
        if topology.on_dead_letter == "park" and (inputs := sorted(compacted & {*topology.reads})):
            yield (
                f"{topology.name} parks keys, and its input {inputs[0]} is compacted: Kafka removes events that wait, and they "
                f"can only be dropped; set cleanup.policy=delete, or on_dead_letter='pass'"
            )


def _kafka(settings: Settings, names: Sequence[str], found: Checked) -> bool:
    """Returns whether Kafka can be asked for more."""
    from confluent_kafka import KafkaException

    from onefold import kafka_client

    client = settings.usable_client()
    trouble = answering.kafka(settings)
    if trouble is not None:
        found.fail(trouble.sentence, REFUSED if trouble.refused else UNAVAILABLE)
        if not trouble.partial:
            return False
    try:
        cluster = kafka_client.admin(client).list_topics(timeout=positions.CALL_S)
    except KafkaException:
        found.fail(answering.why_silent(settings), UNAVAILABLE)
        return False
    brokers = len(cluster.brokers)
    found.servers.append(f"Kafka at {settings.kafka()}: {brokers} broker{'s' if brokers > 1 else ''}")
    if (settings.replication_factor or 0) > brokers:
        wanted = f"ONEFOLD_REPLICATION_FACTOR is {settings.replication_factor}"
        found.fail(f"{wanted}, and Kafka has {brokers} of the brokers for it: no topic can be made")
    found.notes += _groups(cluster)
    found.notes += _topics(settings, names)
    for name, sentence in partitions.added(settings).items():
        if name in names:
            found.fail(f"{name}: {sentence}", REFUSED)
    return True


def _groups(cluster: ClusterMetadata) -> Iterator[str]:
    """What is wrong with Kafka's own topic of groups, which is made with the first group."""
    groups = cluster.topics.get(_GROUPS)
    if groups is None or len(cluster.brokers) == 1 or all(len(one.replicas) > 1 for one in groups.partitions.values()):
        return
    yield (
        f"{_GROUPS} has one replica: while its broker is away, processors and workers whose groups lie there stand still; "
        f"give it three with kafka-reassign-partitions.sh, and set offsets.topic.replication.factor=3"
    )


def _topics(settings: Settings, names: Sequence[str]) -> Iterator[str]:
    missing = {name: topics for name, topics in (positions.missing_topics(settings) or {}).items() if name in names}
    hidden = answering.hidden(missing, settings)
    for name, topics in missing.items():
        more = f" and {len(topics) - 1} more" if len(topics) > 1 else ""
        yield f"{name}: " + hidden.get(name, f"Kafka has no topic {topics[0]}{more}: `onefold migrate` makes it")


def _postgres(settings: Settings, found: Checked, clock: Callable[[], float]) -> None:
    import psycopg

    from onefold import postgres

    dsn = settings.postgres()
    try:
        with closing(
            postgres.connect(dsn, "onefold check", settings=postgres.READ_ONLY, patience_s=positions.CALL_S)
        ) as connection:
            asked = clock()
            row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
            answered, version = clock(), connection.info.server_version // 10_000
    except postgres.Unfit as error:
        found.fail(str(error))
        return
    except psycopg.Error as error:
        found.fail(answering.silent(dsn, error), UNAVAILABLE)
        return
    (there,) = row or (asked,)
    found.servers.append(f"PostgreSQL at {redaction.dsn(dsn)}: version {version}")
    first, last = POSTGRES_VERSIONS
    if not first <= version <= last:
        found.notes.append(f"PostgreSQL {version} is not tested with Onefold, {first} to {last} are")
    if (differ := max(asked - there, there - answered)) > _CLOCK_S:
        found.notes.append(
            f"the clocks of PostgreSQL and of this machine differ by {differ:.0f} s, and ages of records are wrong by as much; "
            f"set both by NTP"
        )
