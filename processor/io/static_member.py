"""Static membership in a consumer group: a member under a name, whose place survives a restart.

The group fences a member when its name joins again. A fence alone does not prove that a second process has the name. A client
whose session timed out has no member id any more, and the group fences a request of this client under the name.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured, Refused
from onefold.processor.io.kafka_errors import again_or_never

log = structlog.get_logger()

# With one broker no coordinator takes over, and a short session finds a killed process early. The smallest value that brokers
# allow by default.
ONE_BROKER_MS = 6_000
# With more brokers a session outlives the failover of its coordinator. Kafka's defaults: 2 s until the controllers miss a dead
# leader, 1 s for the election, 9 s until the new leader gives up a dead broker. Then the new coordinator reads the group.
MORE_BROKERS_MS = 20_000
# A member learns of a rebalance in the response to its next heartbeat. All wait until the last one has learned of the
# rebalance, twice when a task moves. Heartbeats are cheap.
HEARTBEAT_MS = 500
# A dead member stays in the group for one session, and longer if its last response was late.
_DEAD_AFTER_SESSIONS = 1.5
_ANSWER_S = 5.0
_LOOK_AGAIN_S = 1.0

_FENCED = (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)

# librdkafka writes a fatal error to stderr at every log level, unless the client has a logger. The error is raised as well.
SILENT = logging.getLogger("librdkafka.group")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


def session_ms(client: Mapping[str, str], wanted_ms: int | None) -> int:
    """Return the session timeout in this cluster, in milliseconds.

    Args:
        wanted_ms: the configured value; None: the default for the number of brokers, or for several brokers if none responds.
    """
    if wanted_ms is not None:
        return wanted_ms
    with suppress(KafkaException):
        if len(kafka_client.admin(client).list_topics(timeout=_ANSWER_S).brokers) == 1:
            return ONE_BROKER_MS
    return MORE_BROKERS_MS


def session_settings(session_timeout_ms: int) -> dict[str, int]:
    """Return librdkafka's settings of a session."""
    return {
        "session.timeout.ms": session_timeout_ms,
        "heartbeat.interval.ms": min(HEARTBEAT_MS, session_timeout_ms // 3),
    }


def check_session(error: KafkaError, session_timeout_ms: int) -> None:
    """Raise `Misconfigured` if the error says that the brokers do not allow this session timeout."""
    if error.code() == KafkaError.INVALID_SESSION_TIMEOUT:
        raise Misconfigured(
            Code.SESSION_LIMIT,
            f"the brokers do not allow a session of {session_timeout_ms / 1000:g} s: it is not between their "
            f"group.min.session.timeout.ms and group.max.session.timeout.ms. Set ONEFOLD_SESSION_TIMEOUT_S",
        )


class StaticMember:
    """A member of a group. When the group fences the member's consumer, the member joins again with a new consumer.

    If another live process has the name, the member stays out and raises `Refused`. The group shows a live process twice: at
    the fence, and one and a half sessions later, when a dead process would be gone.

    Args:
        client: librdkafka settings, at least `bootstrap.servers`.
        who: the role of the named process, for messages, such as "processor of orders".
        instance: the name.
        session_timeout_ms: see `session_ms`.
        settings: further settings of the consumer, besides the group's.
        subscribe: subscribes a new consumer.
        clock: monotonic seconds.

    Attributes:
        consumer: the consumer of the present membership; None between a fence and the next join.
    """

    def __init__(
        self,
        client: Mapping[str, str],
        group: str,
        instance: str,
        who: str,
        session_timeout_ms: int | None,
        settings: Mapping[str, Any],
        subscribe: Callable[[Consumer], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._group, self._instance, self._who = dict(client), group, instance, who
        self._name = f"{group}-{instance}"
        self._session_ms = session_ms(client, session_timeout_ms)
        self._settings = {
            **client,
            "group.id": group,
            "group.instance.id": self._name,
            **session_settings(self._session_ms),
        }
        self._settings |= {"logger": SILENT, **settings}
        self._subscribe = subscribe
        self._clock = clock
        self._ours: set[str] = set()
        self._seen_by: int | None = None
        self._look_at = 0.0
        self.consumer: Consumer | None = self._new()

    def _new(self) -> Consumer:
        consumer = kafka_client.member(self._settings)
        self._subscribe(consumer)
        return consumer

    def has_place(self) -> bool:
        """Return whether the consumer has a member id and, as far as the client knows, a valid session. Without a member id no
        offset may be committed: the group would fence the name.
        """
        member_id = self.consumer.memberid() if self.consumer is not None else None
        if member_id:
            self._ours.add(member_id)
        return bool(member_id)

    @property
    def fenced(self) -> str:
        """The reason for the missing consumer, as a sentence."""
        return (
            f"the group {self._group} has fenced this {self._who}; it joins again, unless the group shows another live one of "
            f"the same name"
        )

    def check(self, error: KafkaError, topic: str | None) -> None:
        """Raise `Misconfigured` for a session timeout that the brokers do not allow, and `Refused` for a missing right.

        Args:
            topic: the topic of the error, if any.
        """
        check_session(error, self._session_ms)
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED and topic:
            raise Refused(Code.KAFKA_RIGHT, kafka_client.cannot(self._client, f"read {topic}").sentence)
        if error.code() in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            raise Refused(Code.KAFKA_RIGHT, f"not allowed in the group {self._group}: {error.str()}")

    def is_fence(self, error: KafkaError) -> bool:
        """Return whether the error is a fence. If so, close the consumer, without a call of its revocation callback."""
        if error.code() not in _FENCED:
            return False
        log.warning("fenced in its group", group=self._group, instance=self._instance, reason=error.str())
        consumer, self.consumer = self.consumer, None
        self._look_at = 0.0
        if consumer is not None:
            self._leave(consumer)
        return True

    def rejoin(self) -> bool:
        """Join again, unless another process has the name. Return whether the member is in the group; if not, call again later.

        Raises:
            Refused: another live process has the name, or the client may not describe the group.
        """
        if self.consumer is not None:
            return True
        if self._clock() < self._look_at:
            return False
        try:
            coordinator = self._shows_another()
        except KafkaException as error:
            failed = again_or_never(error.args[0], f"describing the group {self._group}")
            if isinstance(failed, Refused):
                raise failed from error
            self._look_at = self._clock() + _LOOK_AGAIN_S
            return False
        if coordinator is None:
            self._seen_by = None
            self.consumer = self._new()
            return True
        if coordinator == self._seen_by:
            raise Refused(
                Code.INSTANCE_TAKEN,
                f"another live {self._who} has the instance name {self._instance!r} in the group {self._group}. "
                f"Stop it, or start this one with another --instance",
            )
        # A new coordinator gives each member a whole session, dead members too.
        self._seen_by = coordinator
        self._look_at = self._clock() + _DEAD_AFTER_SESSIONS * self._session_ms / 1000
        return False

    def close(self) -> None:
        """Close the consumer for good. The group reserves the name's place until the session times out."""
        consumer, self.consumer, self._look_at = self.consumer, None, math.inf
        if consumer is not None:
            self._leave(consumer)

    def _leave(self, consumer: Consumer) -> None:
        if not kafka_client.leave(consumer):
            log.warning("a closed consumer did not end", group=self._group, instance=self._instance)

    def _shows_another(self) -> int | None:
        """Return the group's coordinator if another process's member has the name; else None."""
        admin = kafka_client.admin(self._client)
        try:
            asked = admin.describe_consumer_groups([self._group], request_timeout=_ANSWER_S)
            described = asked[self._group].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            raise
        named = {member.member_id for member in described.members if member.group_instance_id == self._name}
        return int(described.coordinator.id) if named - self._ours else None
