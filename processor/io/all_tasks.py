"""The assignment of a process with replicas: every process has every task.

Replicas do not divide tasks, so they need no group for the assignment. But `onefold reset` must know the live replicas, even
idle ones. So each process joins a group that assigns no task. After the session timeout, the broker removes a member that was
killed, paused or partitioned from the broker. No processing depends on this group.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onefold import kafka_client
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import replicas_group_of
from onefold.processor.io.static_member import check_session, session_ms, session_settings

log = structlog.get_logger()


class EveryTask:
    """The membership of one process in the group, and its tasks (see `core.abc.Assignment`).

    Args:
        instance: the process's name in the group.
        partitions: the number of tasks.
        assigned: called once, from the first `poll`, with all partition numbers.
        wait: called with seconds; returns after this time, or earlier if the process is to stop.
    """

    def __init__(
        self,
        topology: Topology,
        client: Mapping[str, str],
        instance: str,
        partitions: int,
        assigned: Callable[[list[int]], None],
        wait: Callable[[float], object],
        session_timeout_ms: int | None = None,
    ) -> None:
        self.assigned_once = False
        self._partitions, self._assigned, self._wait = partitions, assigned, wait
        self._name = topology.name
        self._said = False
        self._session_ms = session_ms(client, session_timeout_ms)
        self._consumer = kafka_client.member(
            {
                **client,
                "group.id": replicas_group_of(topology),
                # No `group.instance.id`, so a member that leaves properly disappears at once.
                "client.id": instance,
                **session_settings(self._session_ms),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "latest",
            }
        )
        # A member must subscribe to a topic, and the first input exists.
        self._consumer.subscribe([topology.inputs[0]], on_assign=_take_nothing)

    def poll(self, timeout_s: float) -> None:
        """Remain a member. A replica without membership still works, and no task is ever reassigned.

        Raises:
            Misconfigured: the brokers do not allow the session timeout. `onefold reset` could not see this process, and would
                delete its topics.
        """
        self._stay()
        if self.assigned_once:
            self._wait(timeout_s)
        else:
            self.assigned_once = True
            self._assigned(list(range(self._partitions)))

    def publish(self, offsets_next: Mapping[tuple[str, int], int]) -> None:
        """Do nothing: no group divides the tasks, so Kafka's own tools show no offsets of replicas."""

    def _stay(self) -> None:
        with suppress(KafkaException):
            message = self._consumer.poll(0)
            error = message.error() if message is not None else None
            if error is not None:
                check_session(error, self._session_ms)
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._said:
                self._said = True
                log.warning("`onefold reset` does not see this process", domain=self._name, reason=error.str())

    def close(self) -> None:
        """Leave the group."""
        kafka_client.leave(self._consumer)


def _take_nothing(consumer: Consumer, _: list[TopicPartition]) -> None:
    consumer.assign([])
