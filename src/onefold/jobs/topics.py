"""The topics of a queue, and the encoding of its messages.

    orders.mails         The jobs written by the processor, kept without a time limit.
    orders.mails.again   Jobs delivered again: woken, found missing, or requeued. A separate topic of the workers, so that the
                         first topic only has the processor's records.
    orders.mails.dead    Undecodable records, with the reason, as dead letters.

Records of the first topic have the topic's schema, with the fields log_id, segment and entry. Records of the second are JSON.
"""

import json
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from onefold.error_codes import Code
from onefold.jobs.protocols import Job, Place
from onefold.pipelines import JOB_FIELDS
from onefold.pipelines import again_of as again_of
from onefold.pipelines import dead_of as dead_of
from onefold.processor.core.errors import Rejected, Retriable
from onefold.processor.core.owner import PIPELINE_HEADER
from onefold.processor.io.admin import create_missing, existing
from onefold.processor.io.contracts import RecordSchema
from onefold.processor.io.kafka_errors import check_visible
from onefold.processor.io.serde import decode_plain
from onefold.processor.io.topics import of_queue
from onefold.replication import AS_BROKERS, Replication

#: Below the limit of a key in a PostgreSQL index (2,700 bytes), which also has the queue's name.
LOG_ID_BYTES_MAX = 1_000


def group_of(queue: str) -> str:
    """The consumer group of a queue's workers. The first word after `onefold` is the pipeline."""
    return f"onefold.{queue}"


def decode(queue: str, contract: RecordSchema, topic: str, value: bytes | None) -> Job:
    """Decode a job from a record of the first or the second topic. Raises `Rejected`."""
    fields = _put_back(value) if topic == again_of(queue) else decode_plain(contract, value)
    log_id, segment, entry = (fields.get(name) for name in JOB_FIELDS)
    if isinstance(log_id, str) and len(log_id.encode()) > LOG_ID_BYTES_MAX:
        raise Rejected(f"its log_id has more than {LOG_ID_BYTES_MAX:,} bytes", Code.JOB_WRONG)
    if not (isinstance(log_id, str) and type(segment) is int and type(entry) is int):
        raise Rejected(f"{contract.name} has no {', '.join(JOB_FIELDS)} that say which job it is", Code.JOB_WRONG)
    return Job(queue, log_id, Place(segment, entry), fields)


def is_copy(message: Message) -> bool:
    """Whether the record is a copy, written by another pipeline with the queue as an input: repartitioned or replayed.

    The queue also has the original record. An output record of the processor lacks the header
    (docs/decisions/repartitioned-records.md).
    """
    return PIPELINE_HEADER in dict(message.headers() or ())


def encode(job: Job) -> tuple[bytes, bytes]:
    """Return the key and value of a job for the topic of requeued jobs."""
    named = {"log_id": job.log_id, "segment": job.place.segment, "entry": job.place.entry}
    return job.log_id.encode(), json.dumps({**job.value, **named}, ensure_ascii=False).encode()


def _put_back(value: bytes | None) -> Mapping[str, Any]:
    try:
        found = json.loads(value or b"")
    except ValueError as error:
        raise Rejected(f"not JSON: {error}", Code.JOB_WRONG) from None
    if not isinstance(found, dict):
        raise Rejected("not a JSON object", Code.JOB_WRONG)
    return found


def create(admin: AdminClient, queue: str, replication: Replication = AS_BROKERS) -> list[str]:
    """Create the missing topics of the queue with the partition count of the queue's own topic. Returns their names.

    Raises:
        Retriable: the queue's own topic is missing, or the cluster does not respond.
        Refused: a right in Kafka is missing.
    """
    there = existing(admin)
    if queue not in there:
        check_visible(admin, [queue])
        raise Retriable(Code.TOPIC_MISSING, f"topic {queue} does not exist; `onefold migrate` makes it")
    wanted = of_queue(queue, there[queue])
    return create_missing(admin, {topic: how for topic, how in wanted.items() if topic not in there}, replication)
