"""Requeues jobs with missing results, from the processor's records in the queue's topic.

The topic has every job written by the processor, even if rows, objects or messages are lost.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaException

from onefold import kafka_client, kafka_offsets
from onefold.jobs import topics
from onefold.jobs.pending import PostgresPending
from onefold.jobs.protocols import Effect, Job
from onefold.processor.core.errors import Rejected
from onefold.processor.io.contracts import RecordSchema
from onefold.processor.io.kafka_errors import CALL_TIMEOUT_S, unanswered
from onefold.processor.io.range_reader import between


class Lacking(NamedTuple):
    """A job to do, possibly again, with the reason. `first`: no earlier job of its ordered log is in the list."""

    job: Job
    why: str
    first: bool


def intentions(
    queue: str,
    contract: RecordSchema,
    client: Mapping[str, str],
    since_ms: int,
    complain: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Job]:
    """Yield the jobs in a queue's topic since a time, partition by partition, in order of offsets.

    Args:
        since_ms: milliseconds since 1970.
        complain: called with a sentence about each record that is not a job.

    Raises:
        Retriable: Kafka does not respond.
        Refused: a right in Kafka is missing.
    """
    admin = kafka_client.admin(client)
    try:
        places = kafka_offsets.partitions(admin, [queue], CALL_TIMEOUT_S)
        starts = kafka_offsets.since(admin, places, since_ms, CALL_TIMEOUT_S)
        ends = kafka_offsets.stable_ends(admin, places, CALL_TIMEOUT_S)
    except KafkaException as error:
        raise unanswered(error, f"{queue} cannot be read", admin) from error
    for place, start in starts.items():
        for message in between(client, {place: (start, ends[place])} if start >= 0 else {}):
            if topics.is_copy(message):
                continue
            try:
                yield topics.decode(queue, contract, queue, message.value())
            except Rejected as rejected:
                complain(f"{queue}/{message.partition()}/{message.offset()} is no job: {rejected}")


def lacking(jobs: Iterable[Job], effect: Effect, rows: PostgresPending) -> Iterator[Lacking]:
    """Yield the missing jobs in order.

    In an ordered log, each job depends on the earlier jobs, so workers must do all jobs after a missing job again.
    """
    begun: set[str] = set()
    for job in jobs:
        if effect.ordered and job.log_id in begun:
            yield Lacking(job, "an earlier one of its log has to be done", False)
            continue
        done = rows.done(job)
        if done is not None and effect.stands(job, done.result):
            continue
        begun.add(job.log_id)
        yield Lacking(job, "it is not done" if done is None else "what it did is not there any more", True)


def put_back(found: Lacking, effect: Effect, rows: PostgresPending, put: Callable[[Job], None]) -> None:
    """Requeue a job.

    After an interruption at any point, the next requeue finds the job again as not done. A waiting later job also makes the
    `Worker` put the job into the queue.
    """
    if found.first:
        rows.forget(found.job, later=effect.ordered)
    rows.add(found.job)
    put(found.job)
