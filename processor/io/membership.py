"""The consumer group in which instances share the tasks. It decides who *tries* a partition; the transactional id decides
who wins."""

from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onefold import kafka_client
from onefold.processor.core.errors import Refused, Retriable
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import group_of
from onefold.processor.io.away import Away

# A killed instance is missed after this long; the smallest value that brokers allow by default.
SESSION_TIMEOUT_MS = 6_000
# A member hears of a rebalance in the answer to its next heartbeat, and all wait until the last one has heard: twice when
# a task moves. A heartbeat costs next to nothing.
HEARTBEAT_MS = 500
# A broker that is there answers in milliseconds; the loop that asks has other things to do.
_ANSWER_S = 0.5


class Membership:
    """One instance's place in the group. Its consumer never reads a record: tasks have their own.

    A task is one partition of the first input: the group is subscribed to that one alone. The other inputs have the same
    partitions, and a sticky assignor would put the same number of two topics into different hands.

    Args:
        instance: a name that survives a restart, so that a restarted instance gets its tasks back at once.
        assigned, revoked: called from `poll` with the partition numbers that come and go; the others stay as they are.
            After `revoked` returns they are somebody else's.
    """

    def __init__(
        self,
        topology: Topology,
        client: Mapping[str, str],
        instance: str,
        assigned: Callable[[list[int]], None],
        revoked: Callable[[list[int]], None],
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        self._topology = topology
        self._assigned, self._revoked = assigned, revoked
        self._committed: dict[tuple[str, int], int] = {}
        self.assigned_once = False
        self._away = Away(topology.inputs[0], _ANSWER_S, client)
        self._consumer = kafka_client.consumer(
            {
                **client,
                "group.id": group_of(topology),
                "group.instance.id": f"{group_of(topology)}-{instance}",
                "session.timeout.ms": session_timeout_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                # A task that stays is left alone while others move (docs/decisions/0018).
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
                "error_cb": self._away.heard,
            }
        )
        self._consumer.subscribe([topology.inputs[0]], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def poll(self, timeout_s: float) -> None:
        """Stay a member, and let the group give and take.

        Raises:
            Refused: another process uses the same instance name.
            Retriable: the group cannot be reached.
        """
        message = self._consumer.poll(timeout_s)
        error = message.error() if message is not None else None
        if error is None:
            self._away.check(self._consumer)
            return
        if error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL):
            raise Refused(f"another process is the same instance of {self._topology.name}: {error.str()}")
        if error.code() in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            raise Refused(f"not allowed in the group {group_of(self._topology)}: {error.str()}")
        if error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            raise Retriable(
                f"a processor of another version has tasks of {self._topology.name} and shares them in another way; "
                f"this one begins when the last of those has ended"
            )
        raise Retriable(f"the group {group_of(self._topology)}: {error.name()}: {error.str()}")

    def publish(self, offsets_next: Mapping[tuple[str, int], int]) -> None:
        """Commit positions to the group, as a courtesy to Kafka's own tools. Nothing reads them back as the truth."""
        changed = {at: offset for at, offset in offsets_next.items() if self._committed.get(at) != offset}
        if not changed:
            return
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in changed.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            # A rebalance is under way, or the broker is; the next round says it again.
            return
        self._committed.update(changed)

    def close(self) -> None:
        """Leave the loop; as a named instance the tasks stay reserved until the session times out."""
        self._consumer.close()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)
        # Others may have said more of them meanwhile.
        self._committed.clear()
        self.assigned_once = True
        self._assigned(sorted({at.partition for at in partitions}))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Also called when the group has given up on us, with all that we had."""
        self._revoked(sorted({at.partition for at in partitions}))
