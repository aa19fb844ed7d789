"""Write events to Kafka in transactions: a consumer of committed records reads whole batches, and an aborted command leaves no
records.
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
# A mark between messages: no more have arrived so far, so the producer commits the previous messages.
PAUSE = None

BATCH = 5_000  # messages per transaction: large for a small cost of each message, small for early visibility
START_S = 15.0
DELIVERY_MS = 60_000
CHUNK_BYTES = 1 << 16  # the capacity of a pipe on Linux
TRANSACTION_MS = 120_000  # the broker aborts the open transaction of a killed command after this time
PATIENCE_S = 60.0
# The prefix of the transactional ids.
_IDS = "onefold-produce-"


def lines_as_they_come(stream: io.BufferedIOBase) -> Iterator[bytes | None]:
    """The lines of a pipe or a file without line ends, and PAUSE whenever no further data is available now."""
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
    """Write the messages, one transaction for each batch or up to each pause; yields the number of committed messages.

    Args:
        rate: the maximum of messages per second; 0 for as fast as possible.
        start_s: the time-out for the producer's first response.

    Raises:
        UserError: Kafka refuses the messages.
    """
    producer = _open(client, start_s)
    size = BATCH if not rate else max(1, min(BATCH, int(rate / 10)))  # ten small transactions each second
    began, committed = time.monotonic(), 0
    for batch in batches(iter(messages), size):
        if rate:
            time.sleep(max(0.0, began + committed / rate - time.monotonic()))
        _write(producer, batch, client)
        committed += len(batch)
        yield committed


def batches(messages: Iterator[Message | None], size: int) -> Iterator[list[Message]]:
    """Split the messages into transactions of at most `size` messages. A pause also ends a transaction."""
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
        # A unique id: two concurrent commands must not fence each other.
        "transactional.id": f"{_IDS}{uuid.uuid4()}",
        "transaction.timeout.ms": TRANSACTION_MS,
        "delivery.timeout.ms": DELIVERY_MS,
        "partitioner": "murmur2_random",  # the partitioner of Java's client, so a key has the same partition for all producers
        "compression.type": "lz4",
        "linger.ms": 5,
        "message.max.bytes": RECORD_BYTES_MAX,  # the topics' limit: a processor makes oversized inputs dead letters
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
    """Commit the transaction. After a time-out only the same call is allowed, so it is repeated for up to `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            producer.commit_transaction(START_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
