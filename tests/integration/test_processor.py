"""Processor instances as real processes on a real broker: killed, paused, hung, fed with bad input, and judged."""

import json
import random
import signal
import subprocess
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import fastavro
import pytest
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.processor.core.steps import STEPS
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, create_topics
from onefold.processor.io.kafka import KafkaSession
from onefold.processor.loading import topology_of
from onefold.stack.embedded import Infrastructure
from onefold.workloads import campaigns, runner, trades
from onefold.workloads.hostile import BROKEN, ODD, Good
from tests.support.coded import raises
from tests.support.infrastructure import delete_topics
from tests.support.needs import first_of
from tests.support.processes import drained, instance, judge, opened, produce, records
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
# Longer than `drained` waits, and what librdkafka allows: what has come by then did not wait for the session.
LONG_SESSION_MS = 200_000
WORKLOADS = {"runner": runner, "campaigns": campaigns, "trades": trades}


def wave(domain: str, seed: int, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Generated input with duplicates, late updates and corrections."""
    return [(made.key, made.value) for made in WORKLOADS[domain].generate(seed, count)]


@pytest.mark.promise("crash-at-any-step")
@pytest.mark.long  # 25 s
@pytest.mark.parametrize("domain", first_of(WORKLOADS))
def test_kill_9_at_every_step(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path, domain: str) -> None:
    """One process after the other is killed, each at another step and with input under way; the last one finishes.

    Every fifth one is let live: a third kill while one and the same record is folded alone would be put down to the record.
    """
    topology = fresh_domain(domain)
    for number, step in enumerate(STEPS):
        produce(client, topology.inputs[0], wave(domain, number, 300))
        hit = 1 if step in ("after_open", "after_restore") else 3
        with instance(topology, client, tmp_path / "log", failpoint=f"{step}:{hit}") as process:
            assert process.wait(30) == -signal.SIGKILL, f"killed at {step}"
        if number % 4 == 3:
            with instance(topology, client, tmp_path / "log"):
                drained(topology, client)

    expected = judge(topology, client)
    assert expected.counts.accepted > 100


@pytest.mark.promise("joining-leaves-others-alone")
def test_who_joins_leaves_the_tasks_that_stay_alone(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """The second instance takes half of the tasks; the first goes on with the others, and has opened them once."""
    topology = fresh_domain("runner", 4)
    with instance(topology, client, tmp_path / "a", name="a"):
        produce(client, "runner.updates", wave("runner", 1, 3000))
        eventually(lambda: opened(tmp_path / "a").keys() == {0, 1, 2, 3}, 30, "the first one has all tasks")
        with instance(topology, client, tmp_path / "b", name="b"):
            produce(client, "runner.updates", wave("runner", 2, 3000))
            eventually(lambda: len(opened(tmp_path / "b")) == 2, 30, "the second one has its share")
            produce(client, "runner.updates", wave("runner", 3, 3000))
            drained(topology, client)
            assert opened(tmp_path / "a") == {0: 1, 1: 1, 2: 1, 3: 1}
            assert set(opened(tmp_path / "b").values()) == {1}

    judge(topology, client)


@pytest.mark.promise("crash-at-any-step")
def test_instances_share_the_tasks_and_one_goes_on_for_the_other(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """Both work; one is killed with a transaction open; the other takes its partitions and misses nothing.

    What the other had before it goes on with as if nothing had happened.
    """
    topology = fresh_domain("runner", 4)
    with instance(topology, client, tmp_path / "b", name="b"):
        eventually(lambda: len(opened(tmp_path / "b")) == 4, 30, "one instance has all tasks")
        with instance(topology, client, tmp_path / "a", name="a") as killed:
            produce(client, "runner.updates", wave("runner", 1, 3000))
            eventually(lambda: len(opened(tmp_path / "a")) == 2, 30, "both have tasks")
            drained(topology, client)
            killed.kill()
            produce(client, "runner.updates", wave("runner", 2, 3000))
            drained(topology, client)
            assert opened(tmp_path / "b") == {task: 2 if task in opened(tmp_path / "a") else 1 for task in range(4)}

    judge(topology, client)


@pytest.mark.promise("crash-at-any-step")
def test_a_zombie_wakes_up_after_its_partitions_were_taken(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """Paused past the group's timeout while it works, and continued while its successor does: fenced, not doubled."""
    topology = fresh_domain("runner", 1)
    produce(client, "runner.updates", wave("runner", 1, 2000))
    with instance(topology, client, tmp_path / "a", name="a") as zombie:
        eventually(lambda: b"task runs" in (tmp_path / "a").read_bytes(), 30, "the first instance works")
        zombie.send_signal(signal.SIGSTOP)
        with instance(topology, client, tmp_path / "b", name="b"):
            produce(client, "runner.updates", wave("runner", 2, 2000))
            drained(topology, client)
            zombie.send_signal(signal.SIGCONT)
            produce(client, "runner.updates", wave("runner", 3, 2000))
            drained(topology, client)

    judge(topology, client)


def test_a_hang_is_ended_by_the_watchdog(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path) -> None:
    """It prints where every thread stands, and the process ends; the next one finishes the work."""
    topology = fresh_domain("runner", 1)
    produce(client, "runner.updates", wave("runner", 1, 100))
    with instance(topology, client, tmp_path / "log", hang_at="before_commit", watchdog_s=2.0) as process:
        assert process.wait(30) == 1
    assert "Timeout" in (tmp_path / "log").read_text(encoding="utf-8")
    assert "task.py" in (tmp_path / "log").read_text(encoding="utf-8")
    with instance(topology, client, tmp_path / "log"):
        drained(topology, client)

    judge(topology, client)


@pytest.mark.promise("bad-input")
def test_bad_input_becomes_dead_letters_and_nothing_else(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """Every hostile value there is, among good ones: a dead letter each with its reason, and the good ones unaffected."""
    for domain in WORKLOADS:
        topology = fresh_domain(domain)
        made = list(WORKLOADS[domain].generate(5, 2000))
        hostile = list(hostile_values(domain, made))
        produce(client, topology.inputs[0], hostile)
        with instance(topology, client, tmp_path / domain) as process:
            drained(topology, client)
            assert process.poll() is None, "nothing crashed"

        expected = judge(topology, client)
        letters = records(client, f"{topology.inputs[0]}.dead")
        assert expected.counts.dead > 20
        assert all(letter.header("onefold-reason") for letter in letters)
        assert all(len(letter.header("onefold-sha256") or b"") == 64 for letter in letters)


def hostile_values(domain: str, made: list[Any]) -> list[tuple[bytes | None, bytes | None]]:
    """Good records with every broken and every odd variant of some of them in between."""
    rng = random.Random(11)
    mixed: list[tuple[bytes | None, bytes | None]] = [(record.key, record.value) for record in made]
    for variants in (BROKEN, ODD):
        for variant in variants.values():
            record = rng.choice(made)
            mixed.insert(rng.randrange(len(mixed)), (record.key, variant(rng, Good(record.topic, record.value))))
    return mixed


def test_lines_typed_into_kafkas_own_producer(
    fresh_domain: MakeDomain, client: dict[str, str], infrastructure: Infrastructure, tmp_path: Path
) -> None:
    """JSON lines without keys, so they lie in any partition: forwarded home, folded once."""
    topology = fresh_domain("runner", 4)
    lines = b"".join((value or b"") + b"\n" for _, value in wave("runner", 3, 400))
    tool = infrastructure.broker.tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", client["bootstrap.servers"], "--topic", "runner.updates"),
        *("--producer-property", "batch.size=200"),
    )
    subprocess.run(tool, input=lines, check=True, timeout=60)
    with instance(topology, client, tmp_path / "log"):
        drained(topology, client)

    expected = judge(topology, client)
    assert expected.counts.repartitioned > 0
    assert expected.counts.records - expected.counts.repartitioned == 400


def test_confluent_wire_format_by_a_registrys_schemas(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """A writer with its fields in another order and one more; an unknown id and a bomb's schema are dead letters."""
    fields = [
        {"name": name, "type": "long"}
        for name in ("run_id", "sequence_id", "timestamp_utc", "distance_meters", "user_id")
    ]
    update = {
        "type": "record",
        "name": "Update",
        "namespace": "runner",
        "fields": [*fields, {"name": "shoe", "type": "string"}],
    }
    body = BytesIO()
    value = {"user_id": 7, "distance_meters": 120, "timestamp_utc": 5, "sequence_id": 1, "run_id": 3, "shoe": "left"}
    fastavro.schemaless_writer(body, fastavro.parse_schema(update), value)
    empty = {"type": "record", "name": "Empty", "fields": []}
    tree = {"type": "record", "name": "Tree", "namespace": "n", "fields": [{"name": "more", "type": ["null", "Tree"]}]}

    def with_field(kind: Any) -> dict[str, Any]:
        return {**update, "fields": [*fields, {"name": "more", "type": kind}]}

    schemas = {
        1: update,
        2: with_field({"type": "array", "items": "null"}),
        3: with_field({"type": "record", "name": "Pair", "fields": [
            {"name": "one", "type": empty}, {"name": "many", "type": {"type": "array", "items": "Empty"}}]}),
        4: with_field(tree),
        5: {**update, "fields": [{"name": "user_id", "type": "string"}, *fields[:-1]]},
    }  # fmt: skip
    topology = fresh_domain("runner", 1)
    magic = [b"\x00" + schema_id.to_bytes(4, "big") + body.getvalue() for schema_id in (1, 2, 3, 4, 5, 404)]
    produce(client, "runner.updates", [(b"7", data) for data in magic])
    registry = _Registry(schemas)
    with instance(topology, client, tmp_path / "log", schema_registry_url=registry.url) as process:
        drained(topology, client)
        assert process.poll() is None, "nothing crashed"
    registry.close()

    (message,) = records(client, "runner.messages")
    assert message.header("onefold-source") == b"runner.updates/0/0"
    letters = records(client, "runner.updates.dead")
    reasons = [(letter.header("onefold-reason") or b"").decode() for letter in letters]
    for reason, part in zip(reasons, ("take no bytes", "take no bytes", "recursive", "", "no schema 404"), strict=True):
        assert part in reason


class _Registry:
    """A schema registry as far as a reader sees one: schemas by id, over HTTP."""

    def __init__(self, schemas: dict[int, Any]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(self.path.split("?")[0].rsplit("/", 1)[1])
                found = (
                    {"schema": json.dumps(schemas[number])}
                    if number in schemas
                    else {"error_code": 40403, "message": "?"}
                )
                data = json.dumps(found).encode()
                self.send_response(200 if number in schemas else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.slow  # a request is given ten seconds before it counts as unanswered
def test_a_broker_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    """After a bounded wait: what is missing, no stack trace, exit code 69."""
    topology = topology_of("runner")
    with instance(topology, {"bootstrap.servers": "127.0.0.1:9"}, tmp_path / "log", patience_s=0.5) as process:
        assert process.wait(60) == 69
    said = (tmp_path / "log").read_text(encoding="utf-8")
    assert "Kafka at 127.0.0.1:9 does not answer" in said
    assert "Traceback" not in said


def test_a_missing_topic_is_one_sentence(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path) -> None:
    """It names the topic, and says how to make it."""
    topology = fresh_domain("runner", 1)
    delete_topics(connect(client), ("runner.updates",))
    with instance(topology, client, tmp_path / "log", patience_s=0.5) as process:
        assert process.wait(60) == 69
    said = (tmp_path / "log").read_text(encoding="utf-8")
    assert "runner.updates does not exist; make it with" in said
    assert "Traceback" not in said


@pytest.mark.promise("recreated-topics")
def test_a_recreated_input_is_refused(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path) -> None:
    """The stored state belongs to the topic that is gone: a human decides. Exit code 3."""
    topology = fresh_domain("runner", 1)
    produce(client, "runner.updates", wave("runner", 1, 50))
    with instance(topology, client, tmp_path / "log"):
        drained(topology, client)
    delete_topics(connect(client), ("runner.updates",))
    eventually(lambda: create_topics(topology, 1, client), 10, "made again")
    with instance(topology, client, tmp_path / "log") as process:
        assert process.wait(60) == 3
    said = (tmp_path / "log").read_text(encoding="utf-8")
    assert "deleted and created again" in said
    assert "Traceback" not in said


def test_a_restart_takes_over_before_the_groups_session_ends(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """An instance of the same name has its tasks back without waiting for that."""
    topology = fresh_domain("runner", 2)
    produce(client, "runner.updates", wave("runner", 1, 500))
    with instance(topology, client, tmp_path / "log", session_timeout_ms=LONG_SESSION_MS) as first:
        drained(topology, client)
        first.kill()
        first.wait(10)
        produce(client, "runner.updates", wave("runner", 2, 500))
        with instance(topology, client, tmp_path / "log", session_timeout_ms=LONG_SESSION_MS):
            drained(topology, client)
    # The group would keep the dead member for the long session, and no test after this one would have its tasks.
    with instance(topology, client, tmp_path / "log"):
        eventually(lambda: opened(tmp_path / "log").total() == 6, 60, "it has joined with a short session")

    judge(topology, client)


def test_the_session_refuses_unequal_partition_counts(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """More partitions than the changelog has: keys would move away from their states."""
    topology = fresh_domain("runner", 2)
    admin = connect(client)
    admin.create_partitions([NewPartitions("runner.updates", 3)])["runner.updates"].result()
    eventually(lambda: len(admin.list_topics().topics["runner.updates"].partitions) == 3, 10, "three partitions")

    with raises(Refused, Code.PARTITIONS_CHANGED):
        KafkaSession(topology, 0, client)
