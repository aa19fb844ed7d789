"""Interleaved runs: a topic is filled once, and each program in turn drains all of the topic, beginning without state."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.peers import answers, streams
from onefold.bench.peers.drain import drain
from onefold.processor import loading
from onefold.processor.io import admin as topics
from onefold.processor.io.range_reader import between
from onefold.stack.child import Child
from onefold.workloads.trade_feed import TOPIC, Feed, Mix

PIPELINE = "trades"
PEER = "Kafka Streams"
RIGHT = "right"
# Nine of ten trades are new, so that state grows with every message. Others change, repeat or arrive late.
_MIX = Mix(changes=0.1, duplicates=0.02, late=0.02)
_DRAIN_S = 600.0
# A running broker answers in milliseconds.
_ANSWER_S = 15.0


@dataclass(frozen=True)
class PeersPlan:
    """Parameters of a comparison.

    Attributes:
        processes: numbers of Onefold processes, each with a turn in every round.
        options: of Kafka Streams.
    """

    events: int
    rounds: int
    processes: Sequence[int]
    options: streams.Options
    seed: int


def take(place: BenchmarkEnvironment, plan: PeersPlan) -> Iterator[dict[str, Any]]:
    """Yield the figures of every turn: {"program", "round", "answer", ...} and those of `Drained.figures`.

    Raises RuntimeError if a measurement fails.
    """
    application = streams.compiled(place.infrastructure, place.home / "classes")
    feed = Feed(plan.seed, plan.events, _MIX)
    place.say(f"filling {TOPIC} with {plan.events:,} messages")
    place.fill(iter(feed))
    table = _SharedServers(place, feed.truth())
    for number in range(1, plan.rounds + 1):
        place.say(f"round {number}: {PEER}")
        yield {"program": PEER, "round": number, **table.kafka_streams(application, plan.options, number)}
        for processes in plan.processes:
            name = onefold_with(processes)
            place.say(f"round {number}: {name}")
            yield {"program": name, "round": number, **table.onefold(processes)}


def onefold_with(processes: int) -> str:
    """Name of a turn with this many processes."""
    return f"Onefold, {processes} process{'es' * (processes > 1)}"


class _SharedServers:
    """The servers that all programs share. One program runs at a time, and its state is removed before the next."""

    def __init__(self, place: BenchmarkEnvironment, truth: answers.Sums) -> None:
        self._place = place
        self._truth = truth
        self._admin: AdminClient = topics.connect(place.client)
        self._topology = loading.topology_of(PIPELINE)
        self._had_onefold = False
        partitions = range(topics.existing(self._admin)[TOPIC])
        self._ends = {(TOPIC, number): topics.high_watermark(self._admin, TOPIC, number) for number in partitions}

    def kafka_streams(self, application: streams.Streams, options: streams.Options, number: int) -> dict[str, Any]:
        # A new name in each round, because an ended member remains in the group for a while.
        name = f"onefold-bench-streams-{number}"
        output = f"{name}-deltas"
        _each(self._admin.create_topics([NewTopic(output, len(self._ends), 1)], operation_timeout=_ANSWER_S))
        bootstrap = self._place.infrastructure.bootstrap_servers
        child = Child(application.service(self._place.home / name, bootstrap, name, (TOPIC, output), options))
        try:
            child.start()
            return self._drained(name, child, output, answers.from_json)
        finally:
            child.stop()
            mine = [topic for topic in topics.existing(self._admin) if topic.startswith(name)]
            _each(self._admin.delete_topics(mine, operation_timeout=_ANSWER_S))

    def onefold(self, processes: int) -> dict[str, Any]:
        if self._had_onefold:
            self._place.run("reset", PIPELINE, "--yes")
        self._had_onefold = True
        (output,) = self._topology.outputs
        child = self._place.begin("processor", "process", PIPELINE, "--processes", str(processes))
        return self._drained(topics.group_of(self._topology), child, output, answers.from_avro(output))

    def _drained(
        self, group: str, child: Child, output: str, read: Callable[[bytes | None], dict[str, Any]]
    ) -> dict[str, Any]:
        broker = self._place.infrastructure.kafka.pid or 0
        drained = drain(self._place.client, group, self._ends, child, broker, _DRAIN_S)
        child.stop()
        ends = {
            (output, partition): (0, topics.stable_end(self._admin, output, partition))
            for partition in range(len(self._ends))
        }
        deltas = (read(message.value()) for message in between(self._place.client, ends))
        return {"answer": answers.wrong(self._truth, answers.sums(deltas)) or RIGHT, **drained.figures()}


def _each(answers: Mapping[str, Future[None]]) -> None:
    """Wait for an admin request. Raises RuntimeError if the broker refuses."""
    for name, answer in answers.items():
        try:
            answer.result()
        except KafkaException as error:
            raise RuntimeError(f"{name}: {error.args[0].str()}") from None


def ratios(turns: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Ratios of Onefold to Kafka Streams in the same round, for warm rate and CPU time, by program in the order of the rounds.

    A greater ratio of rates and a smaller ratio of CPU times are better for Onefold.
    """
    peers = {turn["round"]: turn for turn in turns if turn["program"] == PEER}
    found: dict[str, dict[str, list[float]]] = {}
    for turn in turns:
        if turn["program"] != PEER:
            peer, of = peers[turn["round"]], found.setdefault(turn["program"], {"warm_rate": [], "cpu": []})
            of["warm_rate"].append(round(turn["warm_events_per_second"] / peer["warm_events_per_second"], 2))
            of["cpu"].append(round(turn["cpu_us"] / peer["cpu_us"], 2))
    return found
