"""Translate Kafka's errors: every error of a call becomes an error of `core.errors`."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.processor.core.errors import (
    Abortable,
    Corrupted,
    Fenced,
    Forbidden,
    ProcessorError,
    Refused,
    Retriable,
    TooMuch,
    Unauthenticated,
)

# For one call to the cluster. A reachable broker responds in milliseconds.
CALL_TIMEOUT_S = 10.0

#: Another process has initialised the transactional id.
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
# Errors that a transaction with fewer or smaller records may avoid, including a record's delivery timeout: the cluster may be
# away, or too slow for this number of records.
TOO_MUCH = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._QUEUE_FULL,
    # "Local: Erroneous state" of a produce: an earlier record of the transaction has failed, for an unknown reason.
    # _INCONSISTENT of a commit: some records failed, for an unknown reason.
    KafkaError._STATE,
    KafkaError._INCONSISTENT,
)
#: The exceptions that may replace the exception of a callback. If another callback follows, the client looks up its logger
#: while the exception is set. Python then reports a missing attribute, or a failed call within the interpreter.
LOST_IN_A_CALLBACK = (SystemError, AttributeError)


def translate(error: KafkaError, doing: str) -> ProcessorError:
    """Translate an error of Kafka. An error without a flag is fatal to the producer, as librdkafka's header advises."""
    sentence = f"{doing}: {error.name()}: {error.str()}"
    if error.code() in kafka_client.FORBIDDEN:
        return Forbidden(Code.KAFKA_RIGHT, sentence)
    if error.code() in FENCED:
        return Fenced(Code.FENCED, sentence)
    if error.txn_requires_abort():
        if error.code() in TOO_MUCH:
            return TooMuch(Code.TOO_LARGE, sentence)
        return Abortable(Code.TRANSACTION_LOST, sentence)
    if error.retriable():
        return Retriable(Code.KAFKA_CALL_FAILED, sentence)
    return Corrupted(Code.KAFKA_CALL_FAILED, sentence)


def again_or_never(error: KafkaError, doing: str) -> Retriable | Refused:
    """Translate an error for a caller that can repeat the call: only `Refused` is final, such as for a missing right."""
    found = translate(error, doing)
    return found if isinstance(found, Refused) else Retriable(found.code, str(found))


def check_reachable(client: Mapping[str, Any]) -> None:
    """Connect once with these settings, to at least one broker.

    Raises:
        Unauthenticated: Kafka rejects the client.
        Retriable: no broker is reachable.
    """
    found = kafka_client.trouble(client)
    if found is not None and not found.partial:
        raise (Unauthenticated if found.refused else Retriable)(found.code, found.sentence)


def check_visible(admin: AdminClient, topics: Sequence[str]) -> None:
    """Check, for topics absent from the list of all topics, that Kafka does not hide the topics from the client.

    Raises:
        Forbidden: the client has no right to describe one of the topics.
        Retriable: the cluster does not respond.
    """
    try:
        hidden = kafka_client.undescribable(admin, topics, CALL_TIMEOUT_S)
    except KafkaException as error:
        raise unanswered(error, f"{', '.join(topics)} cannot be described", admin) from error
    if hidden:
        raise Forbidden(Code.KAFKA_RIGHT, kafka_client.cannot_describe(admin, hidden).sentence)


def unanswered(error: KafkaException, what: str, admin: AdminClient) -> Refused | Retriable:
    """Translate a failed call: `Forbidden` without a right, `Unauthenticated` if Kafka rejects the client, else as above.

    Args:
        what: the failure, for the message; used only if Kafka itself has responded.
    """
    cause = error.args[0]
    if found := kafka_client.explain(cause, admin):
        return (Unauthenticated if found.refused else Retriable)(found.code, found.sentence)
    return again_or_never(cause, what)


@contextlib.contextmanager
def raising(doing: str) -> Iterator[None]:
    """Translate the exceptions of a call to Kafka, including those lost in a callback."""
    try:
        yield
    except KafkaException as error:
        raise translate(error.args[0], doing) from error
    except LOST_IN_A_CALLBACK as error:
        raise Corrupted(Code.KAFKA_CALL_FAILED, f"{doing}: the Kafka client failed in a callback: {error}") from error
