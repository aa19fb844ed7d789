"""Each service on a broker with an authorizer: with exactly the ACLs that `onefold acls` prints, and with each taken away."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from onefold.cli import main
from onefold.config.settings import Settings
from onefold.dashboard import tasks
from onefold.error_codes import Code, CodedError
from onefold.exit_codes import OK, REFUSED, USAGE
from onefold.jobs import topics as job_topics
from onefold.jobs.loading import contract_of
from onefold.jobs.queue import KafkaQueue
from onefold.jobs.writer import Writer
from onefold.names import pauses_topic
from onefold.operate import facts, held, lag, producing
from onefold.operate.acls import CONFIGS, DESCRIBE, GROUP, TOPIC, TRANSACTIONAL_ID, Acl, Service, acls_of
from onefold.operate.dead_letters.letters import DeadLetters, Wanted
from onefold.operate.facts import TRANSACTIONS
from onefold.pauses import Pauses
from onefold.pipelines import again_of, find
from onefold.processor.io import admin, replays
from onefold.processor.io.kafka import KafkaSession
from onefold.processor.io.membership import Membership
from onefold.processor.loading import topology_of
from onefold.replication import AS_BROKERS
from onefold.spark_sink.kafka.topics import Topics
from onefold.stack.embedded import Infrastructure
from onefold.verify.log import Log
from onefold.verify.verdict import CannotTell
from tests.integration.test_kafka_refuses import set_up
from tests.support.guarded import USER, Guarded, binding, guarded
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("least-acls")

ANSWER_S = 30.0
PIPELINE, JOBS, OPERATED = "campaigns", "sheets", "averages"
_ANY: Any = None  # the stub knows no name that stands for all
EVERY = AclBindingFilter(
    ResourceType.ANY, _ANY, ResourcePatternType.ANY, _ANY, _ANY, AclOperation.ANY, AclPermissionType.ANY
)


class Rights:
    """What `USER` may do on a broker."""

    def __init__(self, broker: Guarded) -> None:
        self._broker = broker
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        self.client = broker.client("PASSWORD")

    def give(self, wanted: Sequence[Acl]) -> None:
        self._broker.grant(USER, wanted)
        eventually(lambda: self._held() >= len(set(wanted)), ANSWER_S, "the rights are given")

    def take(self, acl: Acl) -> None:
        before = self._held()
        wanted = binding(acl, kind=AclBindingFilter)
        self._admin.delete_acls([wanted])[wanted].result(ANSWER_S)
        eventually(lambda: self._held() == before - 1, ANSWER_S, "the right is gone")

    def take_all(self) -> None:
        self._admin.delete_acls([EVERY])[EVERY].result(ANSWER_S)
        eventually(lambda: not self._held(), ANSWER_S, "all rights are gone")

    def _held(self) -> int:
        return len(self._admin.describe_acls(EVERY).result(ANSWER_S))


@pytest.fixture(scope="module")
def broker(infrastructure: Infrastructure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Has the topics of two pipelines, also those of replays and jobs, and a log of transactions."""
    with guarded(infrastructure, tmp_path_factory.mktemp("acls")) as running:
        root = {"bootstrap.servers": running.bootstrap_servers}
        for name in (PIPELINE, JOBS):
            admin.create_topics(topology_of(name), 1, root)
            admin.create_replays(topology_of(name), root, AS_BROKERS)
        for queue in find()[JOBS].jobs:
            job_topics.create(admin.connect(root), queue)
        list(producing.produce([(topology_of(PIPELINE).inputs[0], b"key", b"value")], root))
        yield running


@pytest.fixture
def rights(broker: Guarded) -> Iterator[Rights]:
    made = Rights(broker)
    yield made
    made.take_all()


def processor(client: dict[str, str]) -> None:
    """From the look for its topics to a transaction, as a member of its group."""
    topology = topology_of(PIPELINE)
    assert admin.create_topics(topology, 1, client, inputs=False) == []
    admin.partitions_of(admin.connect(client), topology)
    replays.withdrawn(topology, client)
    session = KafkaSession(topology, 0, client)
    with closing(session):
        session.open()
        at = {topic: identity.start for topic, identity in session.identities().items()}
        session.changelog_is()
        session.begin()
        session.produce([(topic, 0, b"key", b"value", None) for topic in sorted(topology.written)])
        session.commit()
        list(session.restore())
        session.seek(at)
        ends = {topic: identity.end for topic, identity in session.identities().items()}
        eventually(lambda: session.poll(9, 0.2) is not None and session.positions() == ends, ANSWER_S, "it reads all")
    given: list[bool] = []
    member = Membership(topology, client, "one", lambda tasks: given.append(True), lambda tasks: None)
    with closing(member):

        def has_task() -> bool:
            member.poll(0.2)
            return bool(given)

        eventually(has_task, ANSWER_S, "it has a task")


def sink(client: dict[str, str]) -> None:
    """What a sink asks Kafka; the batches are Spark's (tests/integration/test_secure_kafka.py)."""
    pipeline, topology = find()[PIPELINE], topology_of(PIPELINE)
    reads = [topic for topic in topology.outputs if topic not in pipeline.kafka_only]
    servers, options = (
        client["bootstrap.servers"],
        {name: client[name] for name in client if name != "bootstrap.servers"},
    )
    with closing(Topics(servers, options)) as topics:
        topics.ids(reads)
        reach = topics.reach(reads)
        for topic, number in reach:
            topics.record_from(topic, number, reach[topic, number].start)
            topics.is_compacted(topic)
        topics.ends(reads)


def worker(client: dict[str, str]) -> None:
    """A queue that is read, a job that is put back, a dead letter and a report."""
    pipeline = find()[JOBS]
    for queue in pipeline.jobs:
        job_topics.create(admin.connect(client), queue)
        writer = Writer(client, lambda: None)
        # No job: the worker that reads it writes a dead letter.
        for topic in (again_of(queue), *(pipeline.reports or ())):
            writer.write(topic, b"key", b"{}", [])
        with closing(KafkaQueue(queue, contract_of(pipeline, queue), client, "one")) as opened:

            def has_read(opened: KafkaQueue = opened, place: tuple[str, int] = (again_of(queue), 0)) -> bool:
                opened.receive(0.2)
                return place in opened._partitions and opened._partitions[place].position > 0

            eventually(has_read, ANSWER_S, "it has read what was put back")


def verifier(client: dict[str, str]) -> None:
    """Every topic is read to its end, and inputs and outputs are asked whether they are compacted."""
    names = dict.fromkeys(acl.name for acl in acls_of(Service.VERIFIER, [find()[PIPELINE]]))
    topology = topology_of(PIPELINE)
    with closing(Log(client, names)) as log:
        log.compacted([*topology.reads, *topology.outputs])
        log.read(log.stable_ends(), lambda record: None)


def reader(client: dict[str, str]) -> None:
    """What `status` and the page ask. Raises where they would name a right."""
    settings = _settings(client)
    found = lag.of_all(settings, ask_database=False)[PIPELINE]
    if found.refused:
        raise kafka_error(found.refused[0])
    held.held(settings)
    letters = DeadLetters(PIPELINE, settings)
    letters.receipts()
    list(letters.select(Wanted()))


def _settings(client: dict[str, str]) -> Settings:
    options = {name: client[name] for name in client if name != "bootstrap.servers"}
    return Settings(bootstrap_servers=client["bootstrap.servers"], kafka_options=options, postgres_dsn="dbname=x")


def kafka_error(sentence: str) -> CodedError:
    return CodedError(Code.KAFKA_RIGHT, sentence)


def producer(client: dict[str, str]) -> None:
    """`onefold produce` to each input."""
    for topic in topology_of(PIPELINE).inputs:
        list(producing.produce([(topic, b"key", b"value")], client))


PARTS: dict[Service, Callable[[dict[str, str]], None]] = {
    Service.PROCESSOR: processor,
    Service.SINK: sink,
    Service.WORKER: worker,
    Service.VERIFIER: verifier,
    Service.READER: reader,
    Service.PRODUCER: producer,
}


def needed(service: Service) -> list[Acl]:
    return acls_of(service, [find()[JOBS if service is Service.WORKER else PIPELINE]])


def refusal(part: Callable[[], None]) -> str:
    try:
        part()
    except CodedError as error:
        return str(error) if error.code is Code.KAFKA_RIGHT else f"{error.code}: {error}"
    return "nothing is refused"


@pytest.mark.parametrize("service", PARTS)
def test_each_service_runs_with_exactly_what_is_printed(rights: Rights, service: Service) -> None:
    rights.give(needed(service))
    PARTS[service](rights.client)
    assert facts.of_topics([], rights.client) is not None


@pytest.mark.long
@pytest.mark.parametrize("service", PARTS)
def test_each_right_that_is_missing_is_named(rights: Rights, service: Service) -> None:
    """With the topic, the group or the transactional id; none is called missing, and Kafka not silent."""
    every = needed(service)
    wrong = {}
    for acl in every:
        rights.give(every)
        rights.take(acl)
        said = _said(service, acl, rights.client)
        ok = acl.name.removesuffix("-") in said and "OF-" not in said and "not answer" not in said
        if not ok:
            wrong[str(acl)] = said
    rights.give(every)
    PARTS[service](rights.client)
    if wrong:
        pytest.fail(json.dumps(wrong, indent=1))


def _said(service: Service, acl: Acl, client: dict[str, str]) -> str:
    pipeline = find()[JOBS if service is Service.WORKER else PIPELINE]
    is_setting = acl.operation in (CONFIGS, DESCRIBE) and acl.kind == TOPIC
    if is_setting and service is not Service.VERIFIER:  # the guarantee is unknown then
        roles = facts.roles_of(topology_of(PIPELINE), replicated=False)
        return str({**facts.of_topics(roles, client).unknown})
    if acl.operation == "Create":  # of a topic that is there
        return acl.name
    if acl.kind == GROUP and acl.operation == DESCRIBE:  # the page shows nobody at the tasks
        settings = _settings(client)
        with pytest.MonkeyPatch.context() as patched:
            replicas = 2 if acl.name.endswith(".replicas") else 1
            patched.setattr(Settings, "replicas_of", lambda self, pipeline: replicas)
            return acl.name if tasks.of(PIPELINE, settings) is None else "the tasks are shown"
    if acl.name == TRANSACTIONS:  # the owner of a transaction is unknown
        with pytest.raises(CannotTell) as told, closing(Log(client, [TRANSACTIONS])) as log:
            log.read(log.stable_ends(), lambda record: None)
        return str(told.value)
    if acl.name == pauses_topic(pipeline.name):
        with closing(Pauses(client, [pipeline.name])) as looked:

            def is_known() -> bool:
                looked.look(0.1)
                return looked.knows(pipeline.name)

            eventually(is_known, ANSWER_S, "it is known")
            return looked.trouble.get(pipeline.name, "")
    return refusal(partial(PARTS[service], client))


def test_the_check_of_the_servers_names_what_a_service_lacks(
    rights: Rights, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(rights.client, tmp_path, monkeypatch, database)
    words = ["check", PIPELINE, "--servers", "--json"]

    def check(*more: str) -> tuple[int, dict[str, Any]]:
        code = main.run([*words, *more])
        return code, json.loads(capsys.readouterr().out)["servers"]

    every = needed(Service.PROCESSOR)
    rights.give(every)
    code, said = check()
    assert code == OK, said
    (note,) = [one for one in said["notes"] if one.startswith(f"user {USER} in Kafka lacks rights for ")]
    assert "processor" not in note
    assert "sink" in note
    assert check("--service", "processor") == (OK, {**said, "notes": [one for one in said["notes"] if one != note]})
    topic, group = next(one for one in every if one.operation == "Write" and one.kind == TOPIC), f"onefold-{PIPELINE}"
    rights.take(topic)
    rights.take(Acl(GROUP, group, "Read"))
    code, said = check("--service", "processor")
    assert code == REFUSED
    (sentence,) = [one for one in said["wrong"] if "`onefold acls`" in one]
    assert f"lacks for processor: Read on group {group}, Write on topic {topic.name}. " in sentence
    rights.take_all()
    code, said = check()
    assert code == REFUSED
    assert main.run(["check", PIPELINE, "--servers", "--service", "nobody"]) == USAGE


def test_the_operators_verbs_run_and_name_a_right_that_is_missing(
    rights: Rights,
    tmp_path: Path,
    database: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a pipeline whose topics it makes by itself."""
    set_up(rights.client, tmp_path, monkeypatch, database)
    every = acls_of(Service.OPERATOR, [find()[OPERATED]])
    rights.give(every)
    verbs = {
        "migrate": ["migrate", OPERATED],
        "pause": ["pause", OPERATED],
        "reset": ["reset", OPERATED, "--yes"],
        "resume": ["resume", OPERATED],
    }
    for words in (*verbs.values(), ["dead-letters", "list", OPERATED]):
        assert main.run(words) == OK, capsys.readouterr()
    changelog, group = f"{OPERATED}.changelog", f"onefold-{OPERATED}"
    wrong = {}
    for verb, acl in (
        ("pause", Acl(TOPIC, pauses_topic(OPERATED), "Write")),
        ("reset", Acl(TRANSACTIONAL_ID, f"{group}-", "Write", prefixed=True)),
        ("reset", Acl(TOPIC, changelog, "Write")),
        ("reset", Acl(TOPIC, f"{OPERATED}.alarms", "Delete")),
        ("reset", Acl(GROUP, group, "Delete")),
        ("reset", Acl(TOPIC, changelog, "Create")),
        ("migrate", Acl(TOPIC, changelog, "Create")),
    ):
        assert acl in every
        rights.take(acl)
        code, said = main.run(verbs[verb]), capsys.readouterr()
        text = said.out + said.err
        if (code, acl.name.removesuffix("-") in text, "not answer" in text) != (REFUSED, True, False):
            wrong[f"{verb}: {acl}"] = f"{code}: {text}"
        rights.give(every)
    assert main.run(verbs["reset"]) == OK, capsys.readouterr()
    assert main.run(verbs["resume"]) == OK, capsys.readouterr()
    if wrong:
        pytest.fail(json.dumps(wrong, indent=1))


def test_the_command_prints_for_kafka_and_for_strimzi(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["acls", "runner", "--servers", "kafka-1:9093", "--user", "sink=CN=a sink"]
    assert main.run(words) == OK
    printed = capsys.readouterr().out.splitlines()
    assert (
        "kafka-acls.sh --bootstrap-server kafka-1:9093 --add --allow-principal 'User:CN=a sink'"
        " --operation DescribeConfigs --operation Read --topic runner.stats"
    ) in printed
    assert any(line.endswith("--transactional-id onefold-runner- --resource-pattern-type prefixed") for line in printed)
    assert main.run(["acls", "runner", "--format", "strimzi", "--cluster", "mine"]) == OK
    users = capsys.readouterr().out.split("---\n")[1:]
    (made,) = [user for user in users if '  name: "onefold-processor"\n' in user]
    resource = '{type: transactionalId, name: "onefold-runner-", patternType: prefix}'
    assert f"      - resource: {resource}\n        operations: [Write]\n" in made
    assert main.run(["acls", "runner", "--user", "nobody=x"]) == 2
