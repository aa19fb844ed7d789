"""The consumer group that divides the tasks between instances. The group decides who *tries* a partition; the transactional id
decides who commits."""

import time
from collections.abc import Callable, Mapping, Set
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import group_of
from onefold.processor.io.broker_watch import Away
from onefold.processor.io.static_member import StaticMember

# A reachable broker responds in milliseconds, and the calling loop has other work.
_ANSWER_S = 0.5


class Membership:
    """The membership of one instance in the group. The membership's consumer reads no records: tasks have their own consumers.

    A task is one partition of the first input, and the group subscribes to this topic alone. The other inputs have the same
    partitions, but a sticky assignor could give equal partitions of two topics to different members.

    Args:
        instance: a name that survives a restart, so that a restarted instance gets its tasks back at once.
        assigned, revoked: called from `poll` with the assigned or revoked partition numbers only.
            After `revoked` returns, another instance may own the partitions.
    """

    def __init__(
        self,
        topology: Topology,
        client: Mapping[str, str],
        instance: str,
        assigned: Callable[[list[int]], None],
        revoked: Callable[[list[int]], None],
        session_timeout_ms: int | None = None,
    ) -> None:
        self._topology = topology
        self._assigned, self._revoked = assigned, revoked
        self._committed: dict[tuple[str, int], int] = {}
        self._committing = False
        self._has: Set[int] = frozenset()
        self.assigned_once = False
        self._away = Away(topology.inputs[0], _ANSWER_S, client)
        self._member = StaticMember(
            client,
            group_of(topology),
            instance,
            f"processor of {topology.name}",
            session_timeout_ms,
            {
                # During a rebalance, unmoved tasks continue (docs/decisions/processes-and-rebalancing.md).
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "error_cb": self._away.heard,
                "on_commit": self._on_commit,
            },
            self._subscribe,
        )

    def _subscribe(self, consumer: Consumer) -> None:
        self._committing = False
        consumer.subscribe([self._topology.inputs[0]], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def poll(self, timeout_s: float) -> None:
        """Remain a member, and process assigned and revoked tasks.

        Raises:
            Refused: another live process uses the same instance name.
            Retriable: the group cannot be reached, or has fenced this member.
        """
        if not self._member.rejoin() or (consumer := self._member.consumer) is None:
            time.sleep(timeout_s)
            raise Retriable(Code.GROUP_LEFT, self._member.fenced)
        message = consumer.poll(timeout_s)
        error = message.error() if message is not None else None
        if error is None:
            self._away.check(consumer)
            return
        if self._member.is_fence(error):
            self._take_away(self._has)
            raise Retriable(Code.GROUP_LEFT, self._member.fenced)
        self._member.check(error, message.topic() if message is not None else None)
        if error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            raise Retriable(
                Code.GROUP_LEFT,
                f"a processor of another version has tasks of {self._topology.name} and shares them in another way; "
                f"this one begins when the last of those has ended",
            )
        raise Retriable(Code.KAFKA_CALL_FAILED, f"the group {group_of(self._topology)}: {error.name()}: {error.str()}")

    def publish(self, offsets_next: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets to the group for Kafka's own tools. No task reads these offsets as its progress."""
        consumer = self._member.consumer
        # Called each time, even without a commit, so that the member records each of its ids.
        has_place = self._member.has_place()
        changed = {at: offset for at, offset in offsets_next.items() if self._committed.get(at) != offset}
        if not changed or consumer is None or not has_place or self._committing:
            return
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in changed.items()]
        # Asynchronous: without a coordinator a synchronous commit would wait for a whole session.
        with suppress(KafkaException):
            consumer.commit(offsets=offsets, asynchronous=True)
            self._committing = True

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        """Handle the result of a commit, called from `poll`. After an error the next round commits again."""
        self._committing = False
        if error is None:
            self._committed |= {(at.topic, at.partition): at.offset for at in offsets}

    def close(self) -> None:
        """Close the consumer. The group reserves the tasks for the instance name until the session times out."""
        self._member.close()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)
        # Another owner may have committed later offsets meanwhile.
        self._committed.clear()
        self.assigned_once = True
        self._has |= (assigned := {at.partition for at in partitions})
        self._assigned(sorted(assigned))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Give up partitions. Also called with all partitions if the group has dropped this member."""
        self._take_away({at.partition for at in partitions})

    def _take_away(self, partitions: Set[int]) -> None:
        self._has -= partitions
        self._revoked(sorted(partitions))
