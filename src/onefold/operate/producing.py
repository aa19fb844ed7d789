"""Writes events to Kafka in transactions: a reader of committed records sees whole batches, and an aborted command
leaves none.
"""

from __future__ import annotations

import contextlib
import io
import logging
import select
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping

from confluent_kafka import KafkaError, KafkaException, Producer

from onefold import kafka_client
from onefold.config import redaction
from onefold.config.errors import UserError, of_kafka
from onefold.error_codes import Code
from onefold.exit_codes import FAILED
from onefold.operate import pacing
from onefold.processor.io.topics import RECORD_BYTES_MAX

Message = tuple[str, bytes | None, bytes | None]  # topic, key, value
# Among messages: nothing more has arrived so far, so what has should be sent.
PAUSE = None

BATCH = 5_000  # messages a transaction: large enough to cost nothing each, small enough to be seen soon
START_S = 15.0
DELIVERY_MS = 60_000
CHUNK_BYTES = 1 << 16  # what a pipe holds on Linux
TRANSACTION_MS = 120_000  # the broker ends what a killed command left open after this
PATIENCE_S = 60.0
# The beginning of the transactional ids.
_IDS = "onefold-produce-"


def lines_as_they_come(stream: io.BufferedIOBase) -> Iterator[bytes | None]:
    """Lines of a pipe or a file without their ends, and PAUSE whenever whoever writes it has no more for now."""
    rest = b""
    while chunk := stream.read1(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if not select.select([stream], [], [], 0)[0]:
            yield PAUSE
    if rest:
        yield rest


def produce(
    messages: Iterable[Message | None], client: Mapping[str, str], rate: float = 0.0, start_s: float = START_S
) -> Iterator[int]:
    """Writes the messages, a transaction a batch or what has come until a pause; yields the number committed so far.

    Args:
        rate: messages a second at most; 0 for as fast as possible.
        start_s: how long Kafka may take for the producer's first answer.

    Raises:
        UserError: Kafka does not take them.
    """
    producer = _open(client, start_s)
    size = BATCH if not rate else max(1, min(BATCH, int(rate / 10)))  # paced: ten small transactions a second
    began, committed = time.monotonic(), 0
    for batch in batches(iter(messages), size):
        if rate:
            time.sleep(max(0.0, began + committed / rate - time.monotonic()))
        _write(producer, batch, client)
        committed += len(batch)
        yield committed


def batches(messages: Iterator[Message | None], size: int) -> Iterator[list[Message]]:
    """Cut the messages into transactions: each has so many messages at most, and ends at a pause."""
    batch: list[Message] = []
    for message in messages:
        if message is not PAUSE:
            batch.append(message)
        if batch and (message is PAUSE or len(batch) == size):
            yield batch
            batch = []
    if batch:
        yield batch


def _open(client: Mapping[str, str], start_s: float) -> Producer:
    producer = kafka_client.producer(_settings(client), logger=logging.getLogger("onefold.produce"))
    try:
        producer.init_transactions(start_s)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise UserError.of(kafka_client.cannot(client, f"write with the transactional ids {_IDS}*")) from None
        what = f"Kafka at {redaction.address(client['bootstrap.servers'])} gave no transaction within {start_s:.0f} s"
        raise of_kafka(error, what, client) from None
    return producer


def _settings(client: Mapping[str, str]) -> dict[str, str | int]:
    return {
        **client,
        # A name of its own: two of these commands at once must not fence each other.
        "transactional.id": f"{_IDS}{uuid.uuid4()}",
        "transaction.timeout.ms": TRANSACTION_MS,
        "delivery.timeout.ms": DELIVERY_MS,
        "partitioner": "murmur2_random",  # Java's, so that a key lives where every other producer puts it
        "compression.type": "lz4",
        "linger.ms": 5,
        "message.max.bytes": RECORD_BYTES_MAX,  # as the topics: what is too large becomes a dead letter there
    }


def _write(producer: Producer, batch: list[Message], client: Mapping[str, str]) -> None:
    try:
        producer.begin_transaction()
        for topic, key, value in batch:
            pacing.produce(producer, topic, key, value)
        commit(producer)
    except KafkaException as error:
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(START_S)
        cause: KafkaError = error.args[0]
        # The error of a commit does not say why the records were not written.
        written = {topic for topic, _, _ in batch}
        if topics := kafka_client.unwritable(kafka_client.admin(client), sorted(written), START_S):
            raise UserError.of(kafka_client.cannot(client, f"write {', '.join(topics)}")) from None
        sentence = f"Kafka did not take the events: {cause.str()}"
        raise UserError(Code.TOPIC_UNWRITABLE, sentence, "The last batch was taken back as a whole.", FAILED) from None
    except BaseException:
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(START_S)
        raise


def commit(producer: Producer) -> None:
    """Commits; after a timeout only the same call is allowed, so it is repeated while there is patience."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            producer.commit_transaction(START_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
