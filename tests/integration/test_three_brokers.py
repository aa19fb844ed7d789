"""Three brokers with Kafka's own time-outs, of which one at a time ends: no processor ends, and nothing is lost or doubled."""

import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from onefold.chaos.load import Load
from onefold.config.settings import Settings
from onefold.exit_codes import UNAVAILABLE
from onefold.jobs import topics
from onefold.names import pauses_topic
from onefold.operate import pausing, pipelines, servers
from onefold.pipelines import dead_of
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import ask_topic_ids, connect, create_replays, create_topics, group_of
from onefold.processor.loading import topology_of
from tests.support.cluster import ANSWER_S, Cluster, cluster
from tests.support.command_line import Onefold
from tests.support.infrastructure import delete_topics
from tests.support.processes import drained, judge, opened
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.promise("three-brokers")]

DOMAINS = ("runner", "campaigns", "trades")
PARTITIONS = 3
# Beyond the session of a broker (9 s), the election of a controller and of a coordinator, and a task that starts over.
MOVES_S = 120.0
READY_S = 120.0
DRAINED_S = 120.0
# A third of them asks any one of three brokers first.
CLIENTS = 9
# A question costs 0.6 s when the first broker and the next one are silent; without a next one it takes 10 s and fails.
ASKED_S = 5.0


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The brokers."""
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


class Pauses:
    """Watches the outputs of a pipeline, in a thread of its own: per partition the longest time without a new record."""

    def __init__(self, topology: Topology, client: dict[str, str]) -> None:
        self._places = [TopicPartition(topic, p, 0) for topic in topology.outputs for p in range(PARTITIONS)]
        self._client = client
        self._stop = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self.last: dict[int, float] = {}
        self.longest: dict[int, float] = {}

    def __enter__(self) -> "Pauses":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def begin(self) -> None:
        """Forget what was."""
        self.longest = {}

    def moved_since(self, moment: float) -> bool:
        """Whether each partition has had a record after that moment."""
        return len(self.last) == PARTITIONS and min(self.last.values()) > moment

    def _watch(self) -> None:
        reading = {"group.id": "pauses", "isolation.level": "read_committed", "enable.auto.commit": False}
        with closing(Consumer({**self._client, **reading, "log_level": 0})) as consumer:
            consumer.assign(self._places)
            while not self._stop.is_set():
                for message in consumer.consume(500, 0.1):
                    if message.error() is None:
                        self._saw(message.partition() or 0, time.monotonic())

    def _saw(self, partition: int, now: float) -> None:
        gap = now - self.last.get(partition, now)
        self.longest[partition] = max(gap, self.longest.get(partition, 0.0))
        self.last[partition] = now


class Running:
    """The processors of all pipelines, with their load."""

    def __init__(
        self, brokers: Cluster, processors: dict[str, "subprocess.Popen[bytes]"], watched: dict[str, Pauses], home: Path
    ) -> None:
        self._brokers, self._processors, self._watched, self._home = brokers, processors, watched, home

    def go_on(self, fault: str) -> None:
        """Wait until each partition of each pipeline has new output. Fails when a processor has ended."""
        since = time.monotonic()

        def moved() -> bool:
            ended = {name: process.poll() for name, process in self._processors.items() if process.poll() is not None}
            assert not ended, (
                f"{fault}: ended: {ended}\n{(self._home / 'process.out').read_text(encoding='utf-8')[-3000:]}"
            )
            return all(watched.moved_since(since) for watched in self._watched.values())

        eventually(moved, MOVES_S, f"{fault}: each task has new output", 0.5)

    def lose(self, number: int, fault: str) -> None:
        """kill -9 of a broker."""
        for watched in self._watched.values():
            watched.begin()
        self._brokers.kill(number)
        self.go_on(fault)
        self._say(fault)

    def bring_back(self, number: int) -> None:
        """Start a broker again, and wait until it has all that was written without it."""
        self._brokers.start(number)
        eventually(self._brokers.settled, READY_S, f"broker {number} is in sync", 0.5)
        self.go_on(f"the return of broker {number}")

    def restart(self, number: int) -> None:
        """A controlled shutdown of a broker, and its return."""
        for watched in self._watched.values():
            watched.begin()
        self._brokers.stop(number)
        self.bring_back(number)
        self._say(f"the restart of broker {number}")

    def _say(self, fault: str) -> None:
        """For whoever runs this with -s: the pauses."""
        pauses = {
            name: [round(watched.longest.get(p, 0.0), 1) for p in range(PARTITIONS)]
            for name, watched in self._watched.items()
        }
        print(f"\n{fault}: longest pause of each partition, in seconds: {pauses}")  # noqa: T201 - a measurement


@contextmanager
def running(brokers: Cluster, onefold: Onefold, topologies: Sequence[Topology]) -> Iterator[Running]:
    """A processor of each pipeline, by the command and its defaults, under load."""
    settings = Settings(bootstrap_servers=brokers.bootstrap_servers)
    with ExitStack() as cleanup:
        processors = {}
        for topology in topologies:
            processors[topology.name] = process = onefold.start("process", topology.name, "--processes", "1")
            cleanup.callback(process.wait, 40)
            cleanup.callback(process.terminate)
        tasks = len(topologies) * PARTITIONS
        eventually(lambda: opened(onefold.home / "process.out").total() >= tasks, READY_S, "all tasks run", 0.5)
        watched = {one.name: cleanup.enter_context(Pauses(one, brokers.client)) for one in topologies}
        with ExitStack() as loads:
            for topology in topologies:
                loads.enter_context(Load(topology.name, settings, 1))
            made = Running(brokers, processors, watched, onefold.home)
            made.go_on("the start")
            yield made
        for topology in topologies:
            drained(topology, brokers.client, DRAINED_S)


@pytest.fixture(autouse=True)
def _all_run(three: Cluster) -> None:
    """Start the brokers that an earlier test killed."""
    three.start(*three.dead())
    eventually(three.settled, READY_S, "all replicas are in sync", 0.5)


@pytest.fixture
def onefold(three: Cluster, tmp_path: Path) -> Onefold:
    """The command, for these brokers."""
    made = Onefold(tmp_path)
    made.environment |= {"ONEFOLD_BOOTSTRAP_SERVERS": three.bootstrap_servers}
    return made


@pytest.fixture
def topologies(three: Cluster) -> list[Topology]:
    """The pipelines, with their topics."""
    made = [topology_of(name) for name in DOMAINS]
    for topology in made:
        create_topics(topology, PARTITIONS, three.client)
    eventually(three.settled, READY_S, "all topics have leaders", 0.5)
    return made


def test_new_topics_have_the_replicas_that_the_settings_say(three: Cluster) -> None:
    """The brokers' own are 3, and 2 in sync. Each part of Onefold makes some topics."""
    settings = Settings(bootstrap_servers=three.bootstrap_servers, replication_factor=2, min_insync_replicas=1)
    name, queue = "sheets", "sheets.jobs"
    topology = topology_of(name)
    made = pipelines.create_topics([name], settings)
    made += topics.create(connect(three.client), queue, settings.replication())
    create_replays(topology, three.client, settings.replication())
    pausing.pause([name], settings, "")
    pausing.resume([name], settings)
    made += [topology.replays]
    assert {*topology.inputs, topology.changelog, pauses_topic(name), dead_of(queue)} <= set(made)
    described = three.admin.describe_topics(TopicCollection(made), request_timeout=ANSWER_S)
    asked = {topic: ConfigResource(ResourceType.TOPIC, topic) for topic in made}
    configs = three.admin.describe_configs(list(asked.values()), request_timeout=ANSWER_S)
    for topic in made:
        assert {len(partition.replicas) for partition in described[topic].result().partitions} == {2}, topic
        assert configs[asked[topic]].result()["min.insync.replicas"].value == "1", topic


@pytest.mark.postgres
def test_the_check_of_the_servers_counts_replicas(three: Cluster, topologies: list[Topology], database: str) -> None:
    """Kafka's own topic of groups is made here with one replica, as with offsets.topic.replication.factor=1."""
    settings = Settings(bootstrap_servers=three.bootstrap_servers, postgres_dsn=database)
    names = [topology.name for topology in topologies]
    if "__consumer_offsets" in three.admin.list_topics().topics:
        delete_topics(three.admin, ("__consumer_offsets",))
    assert not any("one replica" in note for note in servers.check(settings, names).notes)
    one = NewTopic("__consumer_offsets", 6, 1, config={"cleanup.policy": "compact"})
    three.admin.create_topics([one])["__consumer_offsets"].result(ANSWER_S)
    eventually(
        lambda: any("__consumer_offsets has one replica" in note for note in servers.check(settings, names).notes),
        READY_S, "the brokers know it",
    )  # fmt: skip
    delete_topics(three.admin, ("__consumer_offsets",))


@pytest.mark.postgres
def test_the_check_of_the_servers_names_replicas_that_are_not_in_sync(
    three: Cluster, topologies: list[Topology], database: str
) -> None:
    settings = Settings(bootstrap_servers=three.bootstrap_servers, postgres_dsn=database)
    topology = topologies[0]
    entry = ConfigEntry("min.insync.replicas", "3", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topology.changelog, incremental_configs=[entry])
    three.admin.incremental_alter_configs([changed])[changed].result(ANSWER_S)
    assert servers.check(settings, [topology.name]).wrong == []
    three.stop(3)
    says = f"{topology.changelog}/0 has 2 of 3 replicas in sync, and Kafka takes no record with less than 3: start the brokers 3"
    try:
        eventually(lambda: says in str(servers.check(settings, [topology.name]).wrong), MOVES_S, "it is named")
        assert servers.check(settings, [topology.name]).exit_code == UNAVAILABLE
    finally:
        three.start(3)
        eventually(three.settled, MOVES_S, "all replicas are in sync")


@pytest.mark.long  # 17 s: a cluster of its own
def test_a_dead_broker_delays_no_question(three: Cluster, topologies: list[Topology]) -> None:
    """Each client has a broker that it asks, and some have the dead one."""
    reads = topologies[0].reads
    clients = [connect(three.client) for _ in range(CLIENTS)]
    asked = Counter(client.list_topics(timeout=ANSWER_S).controller_id for client in clients)
    number, _ = asked.most_common(1)[0]
    three.kill(number)
    began = time.monotonic()
    waiting = [ask_topic_ids(client, reads) for client in clients]
    assert all(set(answer()) == set(reads) for answer in waiting)
    assert time.monotonic() - began < ASKED_S


def test_no_processor_ends_with_a_broker(three: Cluster, onefold: Onefold, topologies: list[Topology]) -> None:
    """kill -9 of the broker that is the coordinator of a group. Two of three go on."""
    with running(three, onefold, topologies) as processors:
        dead, controller = three.coordinator(group_of(topologies[0])), three.controller()
        processors.lose(
            dead, f"the kill of broker {dead}, coordinator of a group; the controller is broker {controller}"
        )
    for topology in topologies:
        judge(topology, three.client)


@pytest.mark.matrix
@pytest.mark.postgres
@pytest.mark.spark
def test_every_broker_dies_and_is_restarted_in_turn(three: Cluster, onefold: Onefold, database: str) -> None:
    """The controller, the coordinators, and all others; then a rolling restart. With a sink, and judged by `verify`."""
    onefold.environment |= {"ONEFOLD_POSTGRES_DSN": database, "ONEFOLD_PARTITIONS": str(PARTITIONS)}
    onefold("migrate", *DOMAINS)
    sink = onefold.start("sink", *DOMAINS)
    try:
        with running(three, onefold, [topology_of(name) for name in DOMAINS]) as processors:
            processors.lose(controller := three.controller(), f"the kill of broker {controller}, the controller")
            processors.bring_back(controller)
            for number in three.nodes:
                processors.lose(number, f"the kill of broker {number}")
                processors.bring_back(number)
            for number in three.nodes:
                processors.restart(number)
        assert sink.poll() is None, (onefold.home / "sink.out").read_text(encoding="utf-8")[-3000:]
        for name in DOMAINS:
            assert f"{name}: valid" in onefold("verify", name)
    finally:
        sink.terminate()
        sink.wait(60)
