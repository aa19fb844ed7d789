"""The queue over a real broker: at least once, until it is acknowledged, whoever has the partition."""

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.error_codes import Code
from onefold.jobs import requeue, topics
from onefold.jobs.protocols import Job, Message, Place
from onefold.jobs.queue import KafkaQueue
from onefold.operate.positions import stable_ends
from onefold.pipelines import JOB_FIELDS
from onefold.processor.core.errors import Refused, Retriable
from onefold.processor.io import contracts
from onefold.processor.io.avro_encoder import encoder
from tests.support.coded import raises
from tests.support.infrastructure import transactional
from tests.support.waiting import eventually

DEADLINE_S = 40.0


class Topic:
    """A queue's topic with a contract, and queues that read it."""

    def __init__(self, client: dict[str, str], folder: Path) -> None:
        self.client = client
        self.folder = folder
        self.name = f"q{uuid.uuid4().hex[:8]}.mails"
        fields: list[dict[str, Any]] = [{"name": name, "type": kind} for name, kind in JOB_FIELDS.items()]
        fields += [{"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}]
        contract = {"type": "record", "name": "Mail", "namespace": "q", "fields": fields, "topics": [self.name]}
        (folder / "mail.avsc").write_text(json.dumps(contract), encoding="utf-8")
        self.contract = contracts.load(folder)[self.name]
        self._encode = encoder(self.contract.schema, self.contract.prefix)
        self.admin = AdminClient({**client})
        self.admin.create_topics([NewTopic(self.name, 2)])[self.name].result()
        eventually(self._made, 20, "the topics are made")
        self._open = contextlib.ExitStack()

    def _made(self) -> bool:
        with contextlib.suppress(Retriable):
            topics.create(self.admin, self.name)
            return True
        return False

    def queue(self, instance: str, **more: Any) -> KafkaQueue:
        queue = KafkaQueue(self.name, self.contract, self.client, instance, **more)
        self._open.callback(queue.close)
        return queue

    def write(
        self, *jobs: Job, aborted: bool = False, headers: Sequence[tuple[str, bytes]] = (), raw: bytes | None = None
    ) -> None:
        """`raw`: the value of each of them."""
        producer = transactional({**self.client, "partitioner": "murmur2_random"}, self.name)
        producer.begin_transaction()
        for job in jobs:
            fields = {"log_id": job.log_id, "segment": job.place.segment, "entry": job.place.entry, "price": 1}
            producer.produce(self.name, raw or self._encode(fields), job.log_id.encode(), headers=[*headers])
        producer.flush(20)  # else an abort forgets what was never sent
        producer.abort_transaction(20) if aborted else producer.commit_transaction(20)

    def committed(self) -> dict[tuple[str, int], int]:
        with contextlib.closing(Consumer({**self.client, "group.id": topics.group_of(self.name)})) as consumer:
            places = [TopicPartition(name, p) for name in (self.name, topics.again_of(self.name)) for p in range(2)]
            found = consumer.committed(places, timeout=20)
            return {(one.topic, one.partition): one.offset for one in found}

    def dead(self) -> int:
        """The number of offsets that dead letters take."""
        return sum(stable_ends(AdminClient({**self.client}), [topics.dead_of(self.name)]).values())

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def topic(client: dict[str, str], tmp_path: Path) -> Iterator[Topic]:
    made = Topic(client, tmp_path)
    yield made
    made.close()


def job(topic: Topic, log_id: str, entry: int) -> Job:
    return Job(topic.name, log_id, Place(0, entry))


def next_of(queue: KafkaQueue) -> Message:
    found = eventually(lambda: queue.receive(0.5), DEADLINE_S, "a message comes")
    assert found is not None
    return found


def some(queue: KafkaQueue, number: int) -> list[Message]:
    return [next_of(queue) for _ in range(number)]


def test_a_record_is_a_job(topic: Topic) -> None:
    """With the fields of its contract as plain JSON data; what was aborted is none."""
    topic.write(job(topic, "a", 1), aborted=True)
    topic.write(job(topic, "a", 7))
    found = next_of(topic.queue("1")).job

    assert found == job(topic, "a", 7)
    assert found.value == {"log_id": "a", "segment": 0, "entry": 7, "price": "1.00"}
    json.dumps(found.value)


@pytest.mark.parametrize("raw", [None, b"no job"], ids=["a job", "no job"])
@pytest.mark.parametrize("header", ["onefold-source", "onefold-replays"])
def test_what_a_pipeline_that_reads_the_queue_puts_there_is_no_second_job(
    topic: Topic, header: str, raw: bytes | None
) -> None:
    """A copy or a replay: neither a message, nor a dead letter, nor an intention. Other headers make no difference."""
    topic.write(job(topic, "a", 1), headers=[("onefold-source", b"in/0/0"), ("trace", b"x")])
    place = f"{topic.name}/0/0".encode()
    signed = [(header, place), ("onefold-timestamp", b"1"), ("onefold-pipeline", b"cluster/next/life")]
    topic.write(job(topic, "a", 1), headers=signed, raw=raw)
    topic.write(job(topic, "a", 2))
    queue = topic.queue("1")
    messages = some(queue, 2)
    assert [message.job.place.entry for message in messages] == [1, 2]
    for message in messages:
        queue.acknowledge(message)
    # of one key, each in a transaction of its own, whose end takes an offset
    eventually(
        lambda: queue.receive(0.1) is None and 5 in topic.committed().values(), DEADLINE_S, "all is acknowledged"
    )
    assert topic.dead() == 0
    complained: list[str] = []
    found = requeue.intentions(topic.name, topic.contract, topic.client, 0, complained.append)
    assert [one.place.entry for one in found] == [1, 2]
    assert complained == []


def test_what_is_not_acknowledged_comes_again(topic: Topic) -> None:
    """To whoever is there next; what is acknowledged does not, once all before it is."""
    topic.write(*(job(topic, "a", entry) for entry in range(1, 5)))
    queue = topic.queue("1")
    first, _, third, _ = some(queue, 4)
    queue.acknowledge(first)
    queue.acknowledge(third)
    queue.close()
    again = topic.queue("2")

    assert [message.job.place.entry for message in some(again, 3)] == [2, 3, 4]
    assert again.receive(0.0) is None


def test_the_offset_of_the_group_is_that_of_the_lowest(topic: Topic) -> None:
    topic.write(*(job(topic, "a", entry) for entry in range(1, 4)))
    queue = topic.queue("1")
    messages = some(queue, 3)
    place = messages[0].receipt[:2]
    queue.acknowledge(messages[2])
    queue.acknowledge(messages[0])
    eventually(lambda: queue.receive(0.1) or topic.committed()[place] == 1, DEADLINE_S, "the first is committed")
    queue.acknowledge(messages[1])
    eventually(lambda: queue.receive(0.1) or topic.committed()[place] == 3, DEADLINE_S, "all are committed")


def test_a_hidden_message_comes_when_its_time_has(topic: Topic) -> None:
    """And keeps nobody waiting meanwhile."""
    topic.write(job(topic, "a", 1), job(topic, "a", 2))
    queue = topic.queue("1")
    first = next_of(queue)
    hidden_at = time.monotonic()
    queue.hide(first, 1.0)
    second = next_of(queue)
    assert second.job.place.entry == 2
    queue.hide(second, 3600.0)

    assert next_of(queue).job == first.job
    assert time.monotonic() - hidden_at >= 1.0
    assert queue.receive(0.0) is None


def test_the_last_hide_of_a_message_counts(topic: Topic) -> None:
    """An earlier hide, with a shorter time, does not deliver the message."""
    topic.write(job(topic, "a", 1))
    queue = topic.queue("1")
    first = next_of(queue)
    queue.hide(first, 0.01)
    queue.hide(first, 3600.0)

    assert queue.receive(0.5) is None
    assert queue.held == 1


def test_a_call_of_the_client_may_have_several_callbacks(topic: Topic) -> None:
    """As when partitions are given and an error is told: after one that asks its own client, the next one ends the process."""
    program = """
import json, sys, time
from pathlib import Path
from onefold.jobs.queue import KafkaQueue
from onefold.processor.io import contracts

client, name, folder = json.loads(sys.argv[1])
told = []
client |= {"statistics.interval.ms": 10, "stats_cb": told.append}
queue = KafkaQueue(name, contracts.load(Path(folder))[name], client, "1")
deadline = time.monotonic() + 20
while queue.receive(1.0) is None and time.monotonic() < deadline:
    pass
queue.receive(1.0)
print(queue.held, bool(told))
queue.close()
"""
    topic.write(job(topic, "a", 1))
    asked = json.dumps([topic.client, topic.name, str(topic.folder)])
    ran = subprocess.run([sys.executable, "-c", program, asked], capture_output=True, encoding="utf-8", timeout=60)
    assert ran.stdout.split() == ["1", "True"], ran.stderr


def test_a_job_that_is_put_back_is_there_and_whole(topic: Topic) -> None:
    """In a topic beside: the queue's own holds what the fold wrote, and nothing else."""
    queue = topic.queue("1")
    put = Job(topic.name, "ä", Place(3, 4), {"price": "1.00", "text": "ü"})
    queue.put(put)
    found = next_of(queue)

    assert found.job == put
    assert found.job.value == {"price": "1.00", "text": "ü", "log_id": "ä", "segment": 3, "entry": 4}
    assert found.receipt.topic == topics.again_of(topic.name)


def test_nothing_that_is_put_back_stays_unread_where_the_queue_has_fewer_partitions(topic: Topic) -> None:
    """As where it was made anew with fewer; whoever is there, and after somebody has come and gone."""
    again = topics.again_of(topic.name)
    topic.admin.create_partitions([NewPartitions(again, 5)])[again].result()
    eventually(lambda: len(topic.admin.list_topics(again).topics[again].partitions) == 5, 20, "it has grown")
    logs = {f"log {number}" for number in range(30)}

    def all_of_them(*queues: KafkaQueue, entry: int) -> None:
        for log_id in logs:
            queues[0].put(job(topic, log_id, entry))
        seen = set[str]()

        def read_on() -> bool:
            for queue in queues:
                found = queue.receive(0.1)
                if found is not None and found.job.place.entry == entry:
                    seen.add(found.job.log_id)
                    queue.acknowledge(found)
            return seen == logs

        eventually(read_on, DEADLINE_S, "all of them come")

    first = topic.queue("1")
    all_of_them(first, entry=1)
    second = topic.queue("2")
    all_of_them(first, second, entry=2)
    second.close()
    all_of_them(first, entry=3)


def test_a_rebalance_drops_what_is_held(topic: Topic) -> None:
    """Of partitions that go to somebody else, who is given all of it; acknowledged or hidden here, nothing happens."""
    jobs = [job(topic, log_id, 1) for log_id in "abcdefgh"]
    topic.write(*jobs)
    one = topic.queue("1")
    held = some(one, len(jobs))
    assert one.held == len(jobs)
    other = topic.queue("2")

    def moved() -> bool:
        one.keep_alive()
        other.keep_alive()
        return 0 < one.held < len(jobs) and one.held + other.held == len(jobs)

    eventually(moved, DEADLINE_S, "the partitions are shared")
    theirs = {message.job.log_id for message in some(other, other.held)}
    for message in held:
        if message.job.log_id in theirs:
            one.acknowledge(message)
            one.hide(message, 0.0)
    assert one.receive(0.0) is None
    assert other.held == len(theirs)
    # A job that is put back goes where its log is, and not to whoever has room.
    for queue in (one, other):
        queue.put(job(topic, min(theirs), 2))

    def both_came() -> bool:
        one.keep_alive()
        other.keep_alive()
        return other.held == len(theirs) + 2

    eventually(both_came, DEADLINE_S, "both came")


def test_a_partition_is_paused_while_too_much_is_held(topic: Topic) -> None:
    """The rest stays in Kafka, and comes when there is room."""
    topic.write(*(job(topic, "a", entry) for entry in range(1, 3001)))
    queue = topic.queue("1", held_max=100)
    seen = some(queue, 100)
    assert queue.held < 3000
    for _ in range(40):
        queue.keep_alive()
    assert queue.held < 1500
    while len(seen) < 3000:
        for message in seen[-100:]:
            queue.acknowledge(message)
        seen.append(next_of(queue))

    assert [message.job.place.entry for message in seen] == list(range(1, 3001))


def test_what_is_no_job_is_a_dead_letter(topic: Topic) -> None:
    """With the reason, like those of the processor; and what comes after it is done."""
    producer = Producer(topic.client)
    producer.produce(topic.name, b"{}", b"a", 0)
    producer.produce(topics.again_of(topic.name), b'{"log_id": 1}', b"a", 0)
    producer.flush(20)
    queue = topic.queue("1")
    topic.write(job(topic, "a", 1))
    assert next_of(queue).job == job(topic, "a", 1)
    place = topic.name, 0
    eventually(lambda: queue.receive(0.1) or topic.committed()[place] >= 1, DEADLINE_S, "it is acknowledged")

    settings = {**topic.client, "group.id": "dead", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    with contextlib.closing(Consumer(settings)) as consumer:
        consumer.subscribe([topics.dead_of(topic.name)])

        def polled() -> Any:
            queue.keep_alive()  # of the two the one may be read long before the other
            return consumer.poll(0.5)

        found = {}
        for _ in range(2):
            message = eventually(polled, DEADLINE_S, "a dead letter")
            assert message is not None
            headers = dict(message.headers() or [])
            found[message.value()] = (headers["onefold-source"], headers["onefold-reason"])
    assert found == {
        b"{}": (f"{topic.name}/0/0".encode(), b"the value is neither JSON text nor Avro"),
        b'{"log_id": 1}': (
            f"{topics.again_of(topic.name)}/0/0".encode(),
            b"q.Mail has no log_id, segment, entry that say which job it is",
        ),
    }


def test_the_topics_beside_a_queue_are_made_once(topic: Topic) -> None:
    beside = topics.again_of(topic.name), topics.dead_of(topic.name)

    def seen() -> bool:  # the broker hears of them a moment later
        there = topic.admin.list_topics(timeout=20).topics
        return {len(there[name].partitions) if name in there else 0 for name in beside} == {2}

    eventually(seen, DEADLINE_S, "both are there, with as many partitions")
    assert topics.create(topic.admin, topic.name) == []
    with raises(Retriable, Code.TOPIC_MISSING):
        topics.create(topic.admin, "no.such")


def test_one_whose_wait_is_over_is_not_behind_all_that_come_after_it(topic: Topic) -> None:
    topic.write(job(topic, "a", 1))
    queue = topic.queue("1")
    first = next_of(queue)
    queue.hide(first, 0.01)
    over = time.monotonic() + 0.01
    eventually(lambda: time.monotonic() > over, DEADLINE_S, "its wait is over")
    topic.write(*(job(topic, "b", entry) for entry in range(1, 5)))
    queue._read(DEADLINE_S)

    assert next_of(queue).job == first.job


@pytest.mark.promise("fenced-instances")
def test_a_worker_that_was_fenced_by_a_dead_one_joins_again(topic: Topic) -> None:
    """The messages that it held come again."""
    topic.write(*(job(topic, "a", entry) for entry in range(1, 4)))
    queue = topic.queue("1", session_timeout_ms=2000)
    some(queue, 3)
    other = topic.queue("1", session_timeout_ms=2000)
    some(other, 3)

    def fenced() -> bool:
        queue.keep_alive()
        return queue.held == 0

    eventually(fenced, DEADLINE_S, "it is fenced, and has let go of all that it held")
    other.close()

    assert [message.job.place.entry for message in some(queue, 3)] == [1, 2, 3]


def test_of_two_live_workers_of_one_name_the_first_is_refused(topic: Topic) -> None:
    topic.write(job(topic, "a", 1))
    queue = topic.queue("1", session_timeout_ms=2000)
    next_of(queue)
    other = topic.queue("1", session_timeout_ms=2000)

    def both() -> bool:
        queue.keep_alive()
        other.keep_alive()
        return False

    with raises(Refused, Code.INSTANCE_TAKEN, "'1'"):
        eventually(both, DEADLINE_S, "one of them is refused")
    assert next_of(other).job.log_id == "a"
