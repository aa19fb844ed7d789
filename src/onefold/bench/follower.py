"""Follow the accepted records: in a decision log by the rule of `decide`, otherwise in the changelog.

The follower shares the cores with the measured processes, so the inputs are read after the measurement.
"""

import json
import threading
import time
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from onefold import kafka_client
from onefold.processor.core.decision import Proposal, ProposalKind, TaskPosition, decide
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.io.range_reader import between

# Delay until the thread notices `stop`.
_LOOK_S = 0.1
# A record counts from the time of its reading, so fetches must not wait.
_AT_ONCE = {"fetch.wait.max.ms": 20, "fetch.min.bytes": 1}

#: Partition, and per input topic the next offset.
Moment = tuple[int, dict[str, int]]


class Follower:
    """Follower of accepted records in a separate thread.

    Args:
        topic: the decision log, or the changelog.
        starts: first offset of each input, by (topic, partition).
        partitions: number of partitions of the inputs, and of the topic.

    Attributes:
        moments: unix times of accepted records, by partition.
        reached: next offset of each input after the accepted records.
        winners: number of accepted proposals by replica.
    """

    def __init__(self, client: dict[str, str], topic: str, starts: dict[tuple[str, int], int], partitions: int) -> None:
        self._client = client
        self._topic = topic
        self._done = threading.Event()
        self._positions: dict[int, TaskPosition | None] = {}
        self._proposals = MsgpackProposals()
        self._hot = topic.endswith(".decisions")
        self.moments: dict[int, list[float]] = {partition: [] for partition in range(partitions)}
        self.reached = dict(starts)
        self._true: list[tuple[str, int, int, int, float]] = []  # topic, partition, from, to, unix time
        self.winners: dict[str, int] = {}
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; the results remain."""
        self._done.set()
        self._thread.join(5.0)

    def latencies(self, since: float, until: float) -> list[float]:
        """Return the sorted latencies in seconds of the events accepted between two unix times. Call after `stop`.

        The inputs, whose timestamps are needed, are read only now. During the measurement, the reading would take a share
        of the cores.

        Raises:
            ProcessorError: Kafka does not return the inputs in time.
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
        """Timestamps by partition and offset, in unix seconds, from the first to the last accepted offset."""
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
                # A request for many messages waits the full time, which would delay the timestamp. So wait for one, then take
                # the rest.
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
        if proposal.kind is not ProposalKind.STEP:
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
