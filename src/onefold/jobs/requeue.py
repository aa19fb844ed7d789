"""Putting jobs back whose effects are missing, from what the fold once wrote into the queue's topic.

That topic is the log of intentions. Whatever else is lost, messages, rows or objects, it says what has to be done.
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
    """A job that has to be done (again), and why; `first`: none of its log before it has to."""

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
    """The jobs that were put into a queue from a time on, partition by partition, in the order of each.

    Args:
        since_ms: milliseconds since 1970.
        complain: told of each record that is no job.

    Raises:
        Retriable: Kafka does not answer.
        Refused: Kafka does not allow it.
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
    """Of these jobs, in the order in which they were put, those that have to be done.

    Those of a log with order build on one another: all that come after one that is missing have to be done again.
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
    """Have one done. Cut off anywhere, the next requeue finds it again, not done; and a job that has to wait for it puts it into
    the queue (`Worker`).
    """
    if found.first:
        rows.forget(found.job, later=effect.ordered)
    rows.add(found.job)
    put(found.job)
