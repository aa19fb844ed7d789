"""Putting jobs back whose effects are missing, from what the fold once wrote into the queue's topic.

That topic is the log of intentions. Whatever else is lost, messages, rows or objects, it says what has to be done.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onefold import kafka_client
from onefold.error_codes import Code
from onefold.jobs import topics
from onefold.jobs.protocols import Done, Effect, Job
from onefold.processor.core.errors import Rejected, Retriable
from onefold.processor.io.contracts import Contract
from onefold.processor.io.kafka_errors import CALL_TIMEOUT_S


class Lacking(NamedTuple):
    """A job that has to be done (again), and why; `first`: none of its log before it has to."""

    job: Job
    why: str
    first: bool


class Rows(Protocol):
    """What of the rows a redrive needs."""

    def done(self, job: Job) -> Done | None:
        """What came of it, when it is done."""

    def add(self, job: Job) -> None:
        """Insert its row, if there is none."""

    def forget(self, job: Job, *, later: bool) -> int:
        """Delete from `done` this job, and with `later` those of its log that come after it."""


def intentions(
    queue: str,
    contract: Contract,
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
    """
    settings = {
        **client,
        "group.id": f"{topics.group_of(queue)}.redrive",  # required by the client; nothing is committed
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    with closing(kafka_client.consumer(settings)) as consumer:
        try:
            found = consumer.list_topics(queue, timeout=CALL_TIMEOUT_S).topics[queue]
            places = [TopicPartition(queue, partition, since_ms) for partition in found.partitions]
            starts = consumer.offsets_for_times(places, timeout=CALL_TIMEOUT_S) if places else []
        except KafkaException as error:
            found = kafka_client.explain(error.args[0], client)
            code, sentence = (
                (found.code, found.sentence)
                if found
                else (Code.KAFKA_CALL_FAILED, f"{queue} cannot be read: {error.args[0].str()}")
            )
            raise Retriable(code, sentence) from error
        for start in starts:
            yield from _of_partition(consumer, start, queue, contract, complain)


def _of_partition(
    consumer: Consumer, start: TopicPartition, queue: str, contract: Contract, complain: Callable[[str], None]
) -> Iterator[Job]:
    consumer.assign([start])
    while True:
        message = consumer.poll(CALL_TIMEOUT_S)
        if message is None:
            raise Retriable(Code.TOPIC_UNREADABLE, f"the end of {queue}/{start.partition} cannot be read")
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return
        if error is not None:
            raise Retriable(Code.KAFKA_CALL_FAILED, f"{queue} cannot be read: {error.str()}")
        if topics.is_copy(message):
            continue
        try:
            yield topics.decode(queue, contract, queue, message.value())
        except Rejected as rejected:
            complain(f"{queue}/{message.partition()}/{message.offset()} is no job: {rejected}")


def lacking(jobs: Iterable[Job], effect: Effect, rows: Rows) -> Iterator[Lacking]:
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


def put_back(found: Lacking, effect: Effect, rows: Rows, put: Callable[[Job], None]) -> None:
    """Have one done. Cut off anywhere, the next redrive finds it again, not done; and a job that has to wait for it puts it into
    the queue (`Worker`).
    """
    if found.first:
        rows.forget(found.job, later=effect.ordered)
    rows.add(found.job)
    put(found.job)
