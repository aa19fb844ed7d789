"""Which rights in Kafka the login of this process lacks for each service. Nothing is tried: Kafka is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold import kafka_ask, kafka_client
from onefold.operate.acls import GROUP, TOPIC, Acl, Service
from onefold.rights import Right, Role

#: By service the role that it has in PostgreSQL. The others need no PostgreSQL.
ROLES: Mapping[Service, Role] = {
    Service.SINK: Role.SINK,
    Service.WORKER: Role.WORKER,
    Service.VERIFIER: Role.VERIFIER,
    Service.AUDITOR: Role.VERIFIER,
    Service.READER: Role.READER,
    Service.OPERATOR: Role.OWNER,
}
#: Kafka's own topic of the members and positions of groups, which is made with the first group.
MEMBERS = "__consumer_offsets"
# Of the rights in a sentence; the same command gives all.
_SHOWN = 3
_DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
_ABSENT = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Create": AclOperation.CREATE,
    "Delete": AclOperation.DELETE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}

# Kafka does not tell these of a topic that may not be described. All others include Describe.
_WITHOUT_DESCRIBE = (AclOperation.CREATE, AclOperation.DESCRIBE_CONFIGS)


def in_kafka(
    admin: AdminClient, wanted: Mapping[Service, Sequence[Acl]], timeout_s: float
) -> dict[Service, Sequence[Acl]]:
    """List by service the rights that the client does not have.

    Kafka lets a client ask for topics that exist and for groups. What it has no answer for is left out: a topic that does not
    exist, a transactional id, and groups before Kafka has made its own topic for them.

    Raises:
        KafkaException: Kafka does not answer.
    """
    everything = {acl for acls in wanted.values() for acl in acls}
    topics, groups = (sorted({acl.name for acl in everything if acl.kind == kind}) for kind in (TOPIC, GROUP))
    asked = kafka_ask.describe_topics(admin, [*topics, MEMBERS], timeout_s, operations=True)()
    allowed = {(TOPIC, name): ops for name, ops in _allowed(asked, topics)}
    error = asked[MEMBERS].exception()
    made = not (isinstance(error, KafkaException) and error.args[0].code() in _ABSENT)
    if groups and made:  # to ask for a group would make the topic
        found = admin.describe_consumer_groups(groups, include_authorized_operations=True, request_timeout=timeout_s)
        allowed |= {(GROUP, name): ops for name, ops in _allowed(found)}
    return {service: [acl for acl in acls if _lacks(acl, allowed)] for service, acls in wanted.items()}


def _allowed(answers: Mapping[str, Future[Any]], required: Collection[str] = ()) -> Iterator[tuple[str, set[Any]]]:
    """By name the operations that the client may do. Raises KafkaException if one of `required` has no answer."""
    for name, answer in answers.items():
        try:
            yield name, set(answer.result().authorized_operations or ())
        except KafkaException as error:
            code = error.args[0].code()
            if code in _DENIED:
                yield name, {*_WITHOUT_DESCRIBE}
            elif code in kafka_client.UNREACHABLE and name in required:
                raise


def _lacks(acl: Acl, allowed: Mapping[tuple[str, str], set[Any]]) -> bool:
    operations = allowed.get((acl.kind, acl.name))
    return operations is not None and _OPERATIONS[acl.operation] not in operations


def named(found: Sequence[Acl | Right]) -> str:
    """The first of the rights, and how many there are beside."""
    return ", ".join(map(str, found[:_SHOWN])) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
