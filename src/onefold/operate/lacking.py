"""Find the Kafka rights that the login of this process lacks for each service. The check asks Kafka, and tries no operation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold import kafka_ask, kafka_client
from onefold.operate.acls import GROUP, TOPIC, Acl, KafkaService
from onefold.rights import DatabaseRole, Right

#: The PostgreSQL role of each service. Other services use no PostgreSQL.
ROLES: Mapping[KafkaService, DatabaseRole] = {
    KafkaService.SINK: DatabaseRole.SINK,
    KafkaService.WORKER: DatabaseRole.WORKER,
    KafkaService.VERIFIER: DatabaseRole.VERIFIER,
    KafkaService.AUDITOR: DatabaseRole.VERIFIER,
    KafkaService.READER: DatabaseRole.READER,
    KafkaService.OPERATOR: DatabaseRole.OWNER,
}
#: Kafka's own topic with the members and positions of groups. Kafka creates the topic with the first group.
MEMBERS = "__consumer_offsets"
# The number of rights in a sentence; the full list comes from the same command.
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

# For a topic that the client may not describe, Kafka does not report these rights. All other rights include Describe.
_WITHOUT_DESCRIBE = (AclOperation.CREATE, AclOperation.DESCRIBE_CONFIGS)


def in_kafka(
    admin: AdminClient, wanted: Mapping[KafkaService, Sequence[Acl]], timeout_s: float
) -> dict[KafkaService, Sequence[Acl]]:
    """The missing rights of the client by service.

    Kafka reports rights for existing topics and for groups. Rights without an answer are left out: for missing topics, for
    transactional ids, and for groups before Kafka has created its own topic for groups.

    Raises:
        KafkaException: Kafka does not answer.
    """
    everything = {acl for acls in wanted.values() for acl in acls}
    topics, groups = (sorted({acl.name for acl in everything if acl.kind == kind}) for kind in (TOPIC, GROUP))
    asked = kafka_ask.describe_topics(admin, [*topics, MEMBERS], timeout_s, operations=True)()
    allowed = {(TOPIC, name): ops for name, ops in _allowed(asked, topics)}
    error = asked[MEMBERS].exception()
    made = not (isinstance(error, KafkaException) and error.args[0].code() in _ABSENT)
    if groups and made:  # the request for a group would create the topic
        found = admin.describe_consumer_groups(groups, include_authorized_operations=True, request_timeout=timeout_s)
        allowed |= {(GROUP, name): ops for name, ops in _allowed(found)}
    return {service: [acl for acl in acls if _lacks(acl, allowed)] for service, acls in wanted.items()}


def _allowed(answers: Mapping[str, Future[Any]], required: Collection[str] = ()) -> Iterator[tuple[str, set[Any]]]:
    """Yield the permitted operations by name. Raises KafkaException if a name in `required` has no answer."""
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
    """The first of the rights, and the number of the rest."""
    return ", ".join(map(str, found[:_SHOWN])) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
