"""The consumer group in which instances share the tasks. It decides who *tries* a partition; the transactional id decides
who wins."""

import time
from collections.abc import Callable, Mapping, Set
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onefold.error_codes import Code
from onefold.processor.core.errors import Retriable
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import group_of
from onefold.processor.io.away import Away
from onefold.processor.io.static_member import StaticMember

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
                # A task that stays is left alone while others move (docs/decisions/processes-and-rebalancing.md).
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
        """Stay a member, and let the group give and take.

        Raises:
            Refused: another live process uses the same instance name.
            Retriable: the group cannot be reached, or it has fenced this member.
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
        """Commit positions to the group, as a courtesy to Kafka's own tools. Nothing reads them back as the truth."""
        consumer = self._member.consumer
        # Asked each time, also when nothing is committed: so the member knows each id that it has had.
        has_place = self._member.has_place()
        changed = {at: offset for at, offset in offsets_next.items() if self._committed.get(at) != offset}
        if not changed or consumer is None or not has_place or self._committing:
            return
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in changed.items()]
        # Not waited for: without a coordinator the client would wait for a whole session.
        with suppress(KafkaException):
            consumer.commit(offsets=offsets, asynchronous=True)
            self._committing = True

    def _on_commit(self, error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        """Called from `poll`. After an error the next round commits again."""
        self._committing = False
        if error is None:
            self._committed |= {(at.topic, at.partition): at.offset for at in offsets}

    def close(self) -> None:
        """Leave the loop; as a named instance the tasks stay reserved until the session times out."""
        self._member.close()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        if partitions:
            consumer.pause(partitions)
        # Others may have said more of them meanwhile.
        self._committed.clear()
        self.assigned_once = True
        self._has |= (assigned := {at.partition for at in partitions})
        self._assigned(sorted(assigned))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Also called when the group has given up on us, with all that we had."""
        self._take_away({at.partition for at in partitions})

    def _take_away(self, partitions: Set[int]) -> None:
        self._has -= partitions
        self._revoked(sorted(partitions))
