"""What Kafka's errors mean for the loop: every error of a call becomes one of `core.errors`."""

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

# One call to the cluster; a broker that is there answers in milliseconds.
CALL_TIMEOUT_S = 10.0

#: Somebody else has initialised the transactional id.
FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
# What a transaction with fewer or smaller records may get around. A record that timed out on its way is among them: the
# cluster may be away, but the way may also be too slow for so many.
TOO_MUCH = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._QUEUE_FULL,
    # "Local: Erroneous state" of a produce: an earlier record of the transaction has failed, and only the commit could tell
    # of what. And what the commit says when it does not know either: some records failed on their way.
    KafkaError._STATE,
    KafkaError._INCONSISTENT,
)
#: As what an exception of a callback may come: when another callback follows, the client looks its logger up with the exception
#: set, and Python takes that for an attribute that is not there, or for a call that failed within the interpreter.
LOST_IN_A_CALLBACK = (SystemError, AttributeError)


def translate(error: KafkaError, doing: str) -> ProcessorError:
    """What a Kafka error means for the loop. Without a flag it is fatal to the producer, as librdkafka's header advises."""
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
    """The same for whoever can simply do it again: a right that is missing comes by no waiting, and all else may pass."""
    found = translate(error, doing)
    return found if isinstance(found, Refused) else Retriable(found.code, str(found))


def check_reachable(client: Mapping[str, Any]) -> None:
    """Connect once with these settings, to one broker at least.

    Raises:
        Unauthenticated: Kafka does not let the client in.
        Retriable: no broker is within reach.
    """
    found = kafka_client.trouble(client)
    if found is not None and not found.partial:
        raise (Unauthenticated if found.refused else Retriable)(found.code, found.sentence)


def check_visible(admin: AdminClient, topics: Sequence[str]) -> None:
    """Tell topics that do not exist from those that Kafka hides, for topics that a list of all topics has not.

    Raises:
        Forbidden: the client has no right to describe one of them.
        Retriable: the cluster does not answer.
    """
    try:
        hidden = kafka_client.undescribable(admin, topics, CALL_TIMEOUT_S)
    except KafkaException as error:
        raise unanswered(error, f"{', '.join(topics)} cannot be described", admin) from error
    if hidden:
        raise Forbidden(Code.KAFKA_RIGHT, kafka_client.cannot_describe(admin, hidden).sentence)


def unanswered(error: KafkaException, what: str, admin: AdminClient) -> Refused | Retriable:
    """What a failed call means: `Forbidden` without a right, `Unauthenticated` where Kafka does not let the client in.

    Args:
        what: has failed, for a sentence; said only where Kafka itself has answered.
    """
    cause = error.args[0]
    if found := kafka_client.explain(cause, admin):
        return (Unauthenticated if found.refused else Retriable)(found.code, found.sentence)
    return again_or_never(cause, what)


@contextlib.contextmanager
def raising(doing: str) -> Iterator[None]:
    """Translates what a call to Kafka raises, also what the client has lost of it."""
    try:
        yield
    except KafkaException as error:
        raise translate(error.args[0], doing) from error
    except LOST_IN_A_CALLBACK as error:
        raise Corrupted(Code.KAFKA_CALL_FAILED, f"{doing}: the Kafka client failed in a callback: {error}") from error
