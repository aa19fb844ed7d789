"""Follow what comes true: in a decision log by the rule, else in the changelog.

The follower shares the cores with what is measured. It reads what it can after the measurement.
"""

import json
import threading
import time
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from onefold import kafka_client
from onefold.processor.core.decision import Kind, Position, Proposal, decide
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.io.reading import between

# How soon it sees that it is to end.
_LOOK_S = 0.1
# What is true counts from the moment at which it is read.
_AT_ONCE = {"fetch.wait.max.ms": 20, "fetch.min.bytes": 1}

#: Partition, and per input topic the offset to read next.
Moment = tuple[int, dict[str, int]]


class Follower:
    """Follows what is true in a thread of its own.

    Args:
        topic: the decision log, or the changelog.
        starts: (topic, partition) of the inputs to where they begin.
        partitions: how many the inputs, and the topic, have.

    Attributes:
        moments: by partition when something of it became true, in seconds since 1970.
        reached: up to which offset the inputs are true.
        winners: by the name of a replica how many decisions it has won.
    """

    def __init__(self, client: dict[str, str], topic: str, starts: dict[tuple[str, int], int], partitions: int) -> None:
        self._client = client
        self._topic = topic
        self._done = threading.Event()
        self._positions: dict[int, Position | None] = {}
        self._proposals = MsgpackProposals()
        self._hot = topic.endswith(".decisions")
        self.moments: dict[int, list[float]] = {partition: [] for partition in range(partitions)}
        self.reached = dict(starts)
        self._true: list[tuple[str, int, int, int, float]] = []  # topic, partition, from, to, when
        self.winners: dict[str, int] = {}
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End; what was read is there."""
        self._done.set()
        self._thread.join(5.0)

    def latencies(self, since: float, until: float) -> list[float]:
        """In order, of the events that became true between these moments. It has to have ended: only now the inputs are read, of
        which nothing but their own timestamps matters, as beside what is measured that would take a part of its cores.

        Raises:
            ProcessorError: Kafka does not give them in time.
        """
        true = [one for one in self._true if since < one[-1] < until]
        made = self._timestamps(true)
        return sorted(
            now - made[topic, partition][offset]
            for topic, partition, start, end, now in true
            for offset in range(start, end)
            if offset in made[topic, partition]
        )

    def _timestamps(self, true: list[tuple[str, int, int, int, float]]) -> dict[tuple[str, int], dict[int, float]]:
        """By partition and offset, in seconds since 1970, from the first to the last offset that became true."""
        begin: dict[tuple[str, int], int] = {}
        ends: dict[tuple[str, int], int] = {}
        for topic, partition, start, end, _ in true:
            begin.setdefault((topic, partition), start)
            ends[topic, partition] = end
        made: dict[tuple[str, int], dict[int, float]] = {place: {} for place in begin}
        for message in between(self._client, {place: (start, ends[place]) for place, start in begin.items()}):
            place = message.topic() or "", message.partition() or 0
            made[place][message.offset() or 0] = message.timestamp()[1] / 1000
        return made

    def _consumer(self, starts: dict[tuple[str, int], int], fetches: dict[str, int]) -> Consumer:
        consumer = kafka_client.consumer({**self._client, **fetches})
        consumer.assign([TopicPartition(topic, partition, at) for (topic, partition), at in starts.items()])
        return consumer

    def _follow(self) -> None:
        whole = {(self._topic, partition): 0 for partition in self.moments}
        with closing(self._consumer(whole, _AT_ONCE)) as consumer:
            while not self._done.is_set():
                # Whoever asks for many waits the whole time for them, and looks at the clock then.
                messages = consumer.consume(1, _LOOK_S)
                for message in messages + consumer.consume(1_000, 0):
                    if message.error() is not None:
                        continue
                    moment = self._decided(message.value()) if self._hot else _progress(message)
                    if moment is not None:
                        self._note(moment, time.time())

    def _decided(self, value: bytes | None) -> Moment | None:
        proposal = self._proposals.decode(value)
        if not isinstance(proposal, Proposal):
            return None
        position = decide(self._positions.get(proposal.task), proposal)
        if position is None:
            return None
        self._positions[proposal.task] = position
        if proposal.kind is not Kind.STEP:
            return None
        self.winners[proposal.proposer] = self.winners.get(proposal.proposer, 0) + 1
        return proposal.task, {topic: at.offset for topic, at in position.inputs.items()}

    def _note(self, moment: Moment, now: float) -> None:
        partition, offsets = moment
        self.moments[partition].append(now)
        for topic, offset in offsets.items():
            self._true.append((topic, partition, self.reached[topic, partition], offset, now))
            self.reached[topic, partition] = offset


def _progress(message: Any) -> Moment | None:
    if message.key() != b"p":
        return None
    inputs = json.loads(message.value())["inputs"]
    return message.partition(), {topic: at["next_offset"] for topic, at in inputs.items()}
