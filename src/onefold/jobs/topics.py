"""The topics of a queue, and what its messages look like.

    orders.mails         what the fold says has to be done: its intentions, for ever
    orders.mails.again   the same jobs once more: woken, found missing, or requeued. Only workers write and read it, so that the
                         first one holds what the fold wrote and nothing else
    orders.mails.dead    what cannot be read, with the reason, as dead letters are elsewhere

A record of the first is in the topic's contract, with the fields log_id, segment and entry; one of the second is JSON.
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
from onefold.processor.io.contracts import Contract
from onefold.processor.io.kafka_errors import check_visible
from onefold.processor.io.serde import decode_plain
from onefold.processor.io.topics import of_queue
from onefold.replication import AS_BROKERS, Replication

#: What a key of an index in PostgreSQL can have is 2,700; the queue's name is in it as well.
LOG_ID_BYTES_MAX = 1_000


def group_of(queue: str) -> str:
    """The consumer group whose members share a queue; its first word after onefold is the pipeline."""
    return f"onefold.{queue}"


def decode(queue: str, contract: Contract, topic: str, value: bytes | None) -> Job:
    """The job of a record of one of both topics. Raises `Rejected`."""
    fields = _put_back(value) if topic == again_of(queue) else decode_plain(contract, value)
    log_id, segment, entry = (fields.get(name) for name in JOB_FIELDS)
    if isinstance(log_id, str) and len(log_id.encode()) > LOG_ID_BYTES_MAX:
        raise Rejected(f"its log_id has more than {LOG_ID_BYTES_MAX:,} bytes", Code.JOB_WRONG)
    if not (isinstance(log_id, str) and type(segment) is int and type(entry) is int):
        raise Rejected(f"{contract.name} has no {', '.join(JOB_FIELDS)} that say which job it is", Code.JOB_WRONG)
    return Job(queue, log_id, Place(segment, entry), fields)


def is_copy(message: Message) -> bool:
    """Is the record a copy or a replay that a pipeline which reads the queue as its input has put there? The job of its original
    lies in the queue as well. An output has no such header (docs/decisions/repartitioned-records.md).
    """
    return PIPELINE_HEADER in dict(message.headers() or ())


def encode(job: Job) -> tuple[bytes, bytes]:
    """Key and value of a job that is put back."""
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
    """Make the topics beside the queue's own that are missing, with its number of partitions; says which.

    Raises:
        Retriable: the queue's own is not there yet, or the cluster does not answer.
        Refused: it is not allowed to.
    """
    there = existing(admin)
    if queue not in there:
        check_visible(admin, [queue])
        raise Retriable(Code.TOPIC_MISSING, f"topic {queue} does not exist; `onefold migrate` makes it")
    wanted = of_queue(queue, there[queue])
    return create_missing(admin, {topic: how for topic, how in wanted.items() if topic not in there}, replication)
