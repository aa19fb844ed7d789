"""Processor instances as real processes, and an independent verifier of their records in Kafka."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from onefold.config import logs
from onefold.operate import state_check
from onefold.processor import loading
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import high_watermark, lag
from onefold.verify.column_types import KINDS
from onefold.verify.contracts import contracts
from onefold.verify.decode import decode_output
from onefold.verify.expect import Expected, Oracle
from onefold.verify.loading import workload
from onefold.verify.log import Log
from onefold.verify.matching import Matching
from onefold.verify.order import Order
from onefold.verify.outputs import Outputs
from onefold.verify.record import ReadRecord
from onefold.verify.replays import Replays, read
from onefold.verify.writer_identity import WriterIdentity
from onefold.workloads.shaping import Input
from tests.support.infrastructure import transactional
from tests.support.waiting import eventually

_CHILD = """
import json, sys
from pathlib import Path
from onefold.chaos import failpoint
from onefold.processor import service, tasks
from onefold.processor.runtime import takeover
from threading import Event
options = json.loads(sys.argv[1])
hang_at = options.pop("hang_at", None)
if version := options.pop("version", None):
    from tests.support import versions
    of_this_version = service.topology_of
    service.topology_of = lambda name: getattr(versions, version)(of_this_version(name))
tasks.TAKEOVER_S = options.pop("publishes_after_s", tasks.TAKEOVER_S)
takeover.BACKOFF_MAX_S = options.pop("backoff_max_s", takeover.BACKOFF_MAX_S)
if port := options.pop("metrics_port", 0):
    from onefold.config import metrics_server
    options["telemetry"] = metrics_server.Exposed("processor", [options["domain"]], options.pop("stall_s"))
    metrics_server.serve(options["telemetry"], "127.0.0.1", port)
if "states" in options:
    kind, folder, memory_bytes = options["states"]
    options["states"] = tasks.StateSettings(kind, Path(folder), memory_bytes)
if file := options.pop("status_file", None):
    options["status_file"] = Path(file)
step = failpoint.from_environment()
sys.exit(service.run(**options, step=lambda name: Event().wait() if name == hang_at else step(name)))
"""


# Lines of a processor's log shown for a failed test.
_SAID_LAST = 30


@contextmanager
def instance(
    topology: Topology, client: dict[str, str], log: Path, *, name: str = "", failpoint: str = "", **options: Any
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a processor of the pipeline, and kill it at the end if still running. `log` gets the output.

    The instance name is unique per test, so that no test inherits tasks of another test's instance.
    """
    asked = {
        "domain": topology.name,
        "client": client,
        "instance": log.parent.name + name,
        "session_timeout_ms": 2000,
        **options,
    }
    root = Path(__file__).parents[2]
    # The second path is for `tests.support.versions`, which replaces the program by another version.
    paths = os.pathsep.join((str(root / "src"), str(root)))
    environment = {**os.environ, "ONEFOLD_FAILPOINT": failpoint, "PYTHONPATH": paths}
    with log.open("ab") as out:
        process = _start(asked, environment, out)
        try:
            yield process
        except BaseException as error:
            said = log.read_text(encoding="utf-8").splitlines()[-_SAID_LAST:]
            error.add_note("\n".join([f"the processor {log.name}, exit code {process.poll()}, said last:", *said]))
            raise
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)


def _start(asked: dict[str, Any], environment: dict[str, str], out: IO[bytes]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", _CHILD, json.dumps(asked)], env=environment, stdout=out, stderr=out)


def opened(log: Path) -> Counter[int]:
    """Number of openings of each task by an instance, by partition."""
    said = "\n".join(part for line in log.read_text(encoding="utf-8").splitlines() for part in logs.readable(line))
    plain = re.sub(r"\x1b\[[\d;]*m", "", said)
    return Counter(int(found) for found in re.findall(r"task runs .*partition=(\d+)", plain))


def produce(
    client: dict[str, str], topic: str, values: list[tuple[bytes | None, bytes | None]], partition: int = -1
) -> None:
    """Produce keys and values in one transaction."""
    settings = {**client, "partitioner": "murmur2_random", "message.max.bytes": 4_000_000}
    producer = transactional(settings, f"test-{topic}")
    producer.begin_transaction()
    for key, value in values:
        producer.produce(topic, value, key, partition)
    producer.commit_transaction(20)


def send(client: dict[str, str], inputs: list[Input]) -> None:
    """Send generated inputs, each to its topic, as a producer without transactions does."""
    producer = Producer({**client, "partitioner": "murmur2_random", "message.max.bytes": 4_000_000})
    for made in inputs:
        producer.produce(made.topic, made.value, made.key)
    assert producer.flush(30) == 0


def drained(topology: Topology, client: dict[str, str], deadline_s: float = 30) -> None:
    """Wait until everything is processed, also records that are not readable yet, which `lag` does not count."""
    for topic in topology.inputs:
        records(client, topic)
    eventually(lambda: lag(topology, client) == 0, deadline_s, f"{topology.name} drained")


def nobody_in(client: dict[str, str], *groups: str) -> None:
    """Wait until consumer groups have no members. A killed process remains a member until its session ends."""
    admin = AdminClient({**client})

    def members(group: str) -> Sequence[object]:
        try:
            return admin.describe_consumer_groups([group])[group].result().members or ()
        except KafkaException:
            return ()  # the group does not exist

    eventually(lambda: not any(map(members, groups)), 60, f"nobody is in {', '.join(groups)}")


# A killed process may leave an open transaction, which the broker aborts after 15 s, with a check every 10 s.
UNMARKED_S = 40.0

# The broker answers a fetch with records at once, but waits this long if only a marker is left.
FETCH_WAIT_MS = 10


def records(client: dict[str, str], topic: str) -> list[ReadRecord]:
    """Read all committed records of a topic, partition by partition, up to the high watermark.

    Kafka confirms a commit before its markers are written, and until then its records are not readable.
    """
    admin = AdminClient({**client})
    settings = {
        "group.id": "judge",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
    }
    partitions = sorted(admin.list_topics().topics[topic].partitions)
    ends = {partition: high_watermark(admin, topic, partition) for partition in partitions}
    found: dict[int, list[ReadRecord]] = {partition: [] for partition in partitions}
    unread = {partition for partition, end in ends.items() if end}
    with closing(Consumer({**client, **settings})) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in sorted(unread)])
        while unread:
            message = consumer.poll(UNMARKED_S)
            assert message is not None, f"{topic}: partitions {unread} cannot be read up to their ends, {ends}"
            error, partition, position = message.error(), message.partition(), message.offset()
            assert error is None or error.code() == KafkaError._PARTITION_EOF, error
            assert partition is not None
            assert position is not None
            if error is None and partition in unread:
                headers: Any = message.headers() or []
                sent_ms = message.timestamp()[1]
                found[partition].append(
                    ReadRecord(topic, partition, position, message.key(), message.value(), headers, sent_ms)
                )
                position += 1
            if position >= ends[partition]:
                unread.discard(partition)
    return [record for partition in partitions for record in found[partition]]


def judge(topology: Topology, client: dict[str, str]) -> Expected:
    """Check that every row, dead letter, repartitioned record and state exists once. Returns the expected records."""
    work = workload(topology.name)
    partitions = {name: len(found.partitions) for name, found in AdminClient({**client}).list_topics().topics.items()}
    with closing(Log(client, [*topology.inputs, topology.changelog])) as log:
        owner = WriterIdentity(log.cluster_id, topology.name, log.topics[topology.changelog].topic_id)
        oracle = Oracle(work, partitions[topology.inputs[0]], owner=owner, queues=partitions)
        receipts = read(client, owner, {name: topic.topic_id for name, topic in log.topics.items()})
        replays = Replays(receipts, owner)
    matching = Matching(work, partitions, oracle.expected.model, oracle.expected.fate)
    oracle.withdrawn, oracle.parked, oracle.changed = replays.withdrawn, replays.parked, matching.changed
    order = Order(topology.inputs, oracle.feed) if topology.order else None
    for topic in topology.inputs:
        for record in records(client, topic):
            if not owner.is_of_another(record):
                order.feed(record) if order else oracle.feed(record)
    if order and topology.order:
        for record in records(client, topology.order):
            order.add(record)
    assert not (order and order.left_over()), "all that was folded is in the order"
    for topic in work.queues:
        for record in records(client, topic):
            oracle.take_job(record)
    expected = oracle.settled()
    outputs = Outputs(work, owner, partitions)
    outputs.heard = matching.wrote
    for topic in topology.dead.values():
        for record in records(client, topic):
            outputs.feed(record)
    for table in work.outputs.values():
        latest: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        columns = [column for column in table.columns if not column.generated]
        for record in records(client, table.topic):
            outputs.feed(record)
            fields = decode_output(contracts()[table.topic], record.value)
            row = tuple(
                None if fields[column.name] is None else KINDS[column.kind].from_output(fields[column.name])
                for column in columns
            )
            key = row[: len(table.key)]
            latest[key] = _added(row, latest.get(key), [column.name in table.adds for column in columns])
        wanted = {key: values[: len(columns)] for key, (values, _) in expected.model.rows[table.name].items()}
        keys = sorted(wanted.keys() | latest.keys(), key=repr)
        wrong = {key: (wanted.get(key), latest.get(key)) for key in keys if wanted.get(key) != latest.get(key)}
        assert not wrong, f"rows of {table.name}, as they should be and as they are: {wrong}"
    findings = [*outputs.judge(expected), *expected.fed.findings(), *replays.findings()]
    findings += [*matching.findings, *matching.left()]
    assert not findings, findings
    assert not expected.uncopied, "misrouted records without a copy"
    assert not expected.doubled(), "copies of nothing"
    codec = loading.codec_of(topology)
    states, _, unknown = state_check.compare(topology, codec, dict(client), lambda what, records: None)
    assert not states, states
    assert unknown is None, unknown
    return expected


def _added(row: tuple[Any, ...], before: tuple[Any, ...] | None, adds: list[bool]) -> tuple[Any, ...]:
    """Add a record to a row, whose columns in `adds` hold increments."""
    if before is None:
        return row
    return tuple(was + now if grows else now for was, now, grows in zip(before, row, adds, strict=True))
