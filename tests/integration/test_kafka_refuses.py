"""A Kafka that lets a client not in: each service says the true reason, and ends with the code for it."""

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation, ResourceType  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold import kafka_client
from onefold.cli import logins, main
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, UNAVAILABLE
from onefold.processor import service
from onefold.processor.core.errors import ProcessorError, Refused, Retriable, Unauthenticated
from onefold.processor.io import admin
from onefold.processor.io.group_membership import Membership
from onefold.processor.io.kafka import KafkaSession
from onefold.processor.io.partitions import check_decision_log
from onefold.processor.loading import topology_of
from onefold.spark_sink.kafka import topics
from onefold.spark_sink.kafka.topics import KafkaTopics
from onefold.stack.embedded import Infrastructure
from onefold.verify.log import Log
from onefold.verify.verdict import CannotTell
from tests.support.certificates import Authority, Identity
from tests.support.coded import code_of, raises
from tests.support.guarded import NO_SUCH_HOST, PASSWORD, ROOT, USER, Guarded, guarded
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("refused-by-kafka")

ANSWER_S = 30.0
#: Other tests allow something on the topics of `runner`.
HIDDEN = "campaigns"


@pytest.fixture(scope="module")
def broker(infrastructure: Infrastructure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(infrastructure, tmp_path_factory.mktemp("guarded")) as running:
        for pipeline in ("runner", HIDDEN):
            admin.create_topics(topology_of(pipeline), 1, {"bootstrap.servers": running.bootstrap_servers})
        yield running


@dataclass(frozen=True)
class Case:
    """How a client is kept out.

    Attributes:
        code: of a process that ends because of it.
        says: a part of the sentence, with {port} for the listener's.
    """

    listener: str
    code: int
    says: str
    changed: dict[str, str] = field(default_factory=dict)


CASES = {
    "a wrong password, by SCRAM": Case(
        "PASSWORD", REFUSED, "Kafka at 127.0.0.1:{port} refuses user ann: SASL authentication error: ", {"sasl_password": "x"}
    ),
    "a wrong password, by PLAIN": Case(
        "PASSWORD", REFUSED, "refuses user ann: SASL authentication error: ", {"sasl_mechanism": "PLAIN"}
    ),
    "a user that Kafka has not": Case("OPEN", REFUSED, "refuses user bob: ", {"sasl_username": "bob"}),
    "a mechanism that Kafka has not": Case(
        "PASSWORD", REFUSED, "broker's supported mechanisms: PLAIN,SCRAM-SHA-512", {"sasl_mechanism": "SCRAM-SHA-256"}
    ),
    "no authority": Case("TLS", REFUSED, "127.0.0.1:{port} has a certificate that this client refuses", {"ssl_ca_location": ""}),
    "an expired certificate": Case("EXPIRED", REFUSED, "this client refuses: certificate has expired"),
    "another host's certificate": Case("ELSEWHERE", REFUSED, "this client refuses: IP address mismatch"),
    "no client certificate": Case("MUTUAL", REFUSED, "127.0.0.1:{port} refuses this client in the TLS handshake"),
    "plaintext to TLS": Case(
        "TLS", REFUSED, "127.0.0.1:{port} speaks TLS, and security.protocol is plaintext", {"security_protocol": ""}
    ),
    "plaintext to SASL over TLS": Case("PASSWORD", REFUSED, "speaks TLS, and", {"security_protocol": "sasl_plaintext"}),
    "TLS to plaintext": Case("OPEN", REFUSED, "127.0.0.1:{port} speaks no TLS, and", {"security_protocol": "ssl"}),
    "no login to SASL": Case(
        "OPEN", REFUSED, "wants a SASL login (PLAIN, SCRAM-SHA-512), and", {"security_protocol": "plaintext"}
    ),
    "TLS without a login to SASL": Case("PASSWORD", REFUSED, "wants a SASL login", {"security_protocol": "ssl"}),
    "a login to TLS without SASL": Case(
        "TLS", REFUSED, "takes no SASL login, and",
        {"security_protocol": "sasl_ssl", "sasl_mechanism": "PLAIN", "sasl_username": USER, "sasl_password": PASSWORD},
    ),
    "an authority's file that is not there": Case("TLS", REFUSED, "ssl.ca.location", {"ssl_ca_location": "/none"}),
    "an advertised name that does not resolve": Case(
        "LOST", UNAVAILABLE, f"127.0.0.1:{{port}} advertises broker 1 as {NO_SUCH_HOST}:{{port}}, which does not resolve"
    ),
    "an advertised address that does not answer": Case("AWAY", UNAVAILABLE, "which does not answer: Connection refused"),
    "a name that does not resolve": Case(
        "AWAY", UNAVAILABLE, f"{NO_SUCH_HOST}:1 does not resolve", {"bootstrap_servers": f"{NO_SUCH_HOST}:1"}
    ),
    "nothing listens": Case(
        "AWAY", UNAVAILABLE, "127.0.0.1:1 does not answer: Connection refused", {"bootstrap_servers": "127.0.0.1:1"}
    ),
}  # fmt: skip
# One of each kind: a login, a certificate, a protocol, an address.
SOME = [
    "a wrong password, by SCRAM",
    "an expired certificate",
    "plaintext to TLS",
    "an advertised name that does not resolve",
]


def settings_of(case: Case, broker: Guarded) -> tuple[dict[str, str], str]:
    """The client's settings, and what has to be said."""
    return broker.client(case.listener, **case.changed), case.says.format(port=broker.ports[case.listener])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "CALL_TIMEOUT_S", 1.0)
    monkeypatch.setattr(topics, "_PATIENCE_S", 1.0)


@pytest.mark.long  # 29 s
@pytest.mark.parametrize("name", CASES)
def test_the_reason_is_found(broker: Guarded, name: str) -> None:
    client, says = settings_of(CASES[name], broker)
    found = kafka_client.trouble(client)
    assert found is not None
    assert says in found.sentence
    assert (found.exit_code, found.partial) == (CASES[name].code, False)
    assert PASSWORD not in found.sentence


@pytest.mark.long  # 20 s: a broker of its own
def test_an_authority_of_the_same_name_is_another(broker: Guarded, tmp_path: Path) -> None:
    found = kafka_client.trouble(broker.client("TLS", ssl_ca_location=str(Authority(tmp_path).file)))
    assert found is not None
    assert "has a certificate that this client refuses" in found.sentence


@pytest.mark.parametrize("fault", ["expired", "of another authority"])
def test_a_client_certificate_that_kafka_refuses_is_named(broker: Guarded, tmp_path: Path, fault: str) -> None:
    """And one that Kafka takes has no trouble."""
    authority = broker.authority if fault == "expired" else Authority(tmp_path)

    def trouble(mine: Identity) -> kafka_client.Trouble | None:
        files = {"ssl_certificate_location": str(mine.chain), "ssl_key_location": str(mine.key)}
        return kafka_client.trouble(broker.client("MUTUAL", **files))

    found = trouble(authority.issue("mine", expired=fault == "expired"))
    assert found is not None
    assert f"127.0.0.1:{broker.ports['MUTUAL']} refuses this client in the TLS handshake: " in found.sentence
    assert found.exit_code == REFUSED
    assert trouble(broker.authority.issue("good")) is None


@pytest.mark.parametrize("listener", ["PASSWORD", "OPEN", "TLS"])
def test_who_gets_in_has_no_trouble(broker: Guarded, listener: str) -> None:
    assert kafka_client.trouble(broker.client(listener)) is None


@pytest.mark.long  # 9 s
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", SOME)
def test_a_processor_ends_with_the_reason(
    broker: Guarded, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, says = settings_of(CASES[name], broker)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    status = tmp_path / "status.json"
    code = service.run("runner", client=client, instance="one", status_file=status, patience_s=1.0)
    assert says in json.loads(status.read_text(encoding="utf-8"))["detail"]
    assert code == CASES[name].code


@pytest.mark.long  # 16 s
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", SOME)
def test_a_sink_and_the_judge_give_the_reason(broker: Guarded, name: str) -> None:
    client, says = settings_of(CASES[name], broker)
    options = {name: value for name, value in client.items() if name != "bootstrap.servers"}
    with closing(KafkaTopics(client["bootstrap.servers"], options)) as looked, pytest.raises(ProcessorError) as sink:
        looked.reach(list(topology_of("runner").outputs))
    assert says in str(sink.value)
    assert isinstance(sink.value, Unauthenticated) == (CASES[name].code == REFUSED)
    with pytest.raises(CannotTell) as judged:
        Log(client, topology_of("runner").inputs, answer_s=1.0).stable_ends()
    assert says in str(judged.value)


@pytest.mark.long  # 18 s
@pytest.mark.parametrize(
    "command", [("status",), ("kafka", "topics", "--list"), ("migrate", "runner")], ids=lambda words: words[0]
)
@pytest.mark.parametrize("name", SOME)
@pytest.mark.usefixtures("impatient")
def test_commands_end_with_the_reason_and_its_code(
    broker: Guarded,
    name: str,
    command: tuple[str, ...],
    postgres_dsn: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if command[0] == "migrate" and CASES[name].code == UNAVAILABLE:
        command = (*command, "bank")  # whose topics are not there: to make them takes the advertised address
    set_up(broker.client(CASES[name].listener, **CASES[name].changed), tmp_path, monkeypatch, postgres_dsn)
    code = main.run([*command])
    assert CASES[name].says.format(port=broker.ports[CASES[name].listener]) in capsys.readouterr().err
    assert code == CASES[name].code


def set_up(client: dict[str, str], home: Path, monkeypatch: pytest.MonkeyPatch, dsn: str) -> None:
    """The settings of a command."""
    options = {name: value for name, value in client.items() if name != "bootstrap.servers"}
    monkeypatch.setenv("ONEFOLD_HOME", str(home))
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", client["bootstrap.servers"])
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS", json.dumps(options))
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", dsn)


def test_a_topic_that_one_may_not_describe_is_not_said_to_be_missing(
    broker: Guarded,
    postgres_dsn: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the processor, the sink, the judge and `status`; with the right, each goes on."""
    topology, client = topology_of(HIDDEN), broker.client("PASSWORD")
    says = f"user {USER} has no right to describe {topology.inputs[0]}"
    with pytest.raises(Refused, match=says):
        admin.partitions_of(admin.connect(client), topology)
    with raises(Refused, Code.KAFKA_RIGHT, USER):
        admin.create_topics(topology, 1, client, inputs=False)
    options = {name: value for name, value in client.items() if name != "bootstrap.servers"}
    with closing(KafkaTopics(client["bootstrap.servers"], options)) as looked, pytest.raises(Refused, match=says):
        looked.ids([topology.inputs[0]])
    with pytest.raises(CannotTell, match=says):
        Log(client, [topology.inputs[0]])
    set_up(client, tmp_path, monkeypatch, postgres_dsn)
    assert main.run(["status"]) == REFUSED
    shown = capsys.readouterr()
    assert code_of(shown.err) is Code.KAFKA_RIGHT
    assert "`onefold migrate` makes it" not in shown.out

    broker.allow(ResourceType.TOPIC, f"{HIDDEN}.", AclOperation.DESCRIBE)
    assert eventually(lambda: admin.existing(admin.connect(client)), ANSWER_S, "the right holds")
    assert admin.partitions_of(admin.connect(client), topology) == 1
    with closing(Log(client, [topology.inputs[0]])) as judged:
        assert judged.topics[topology.inputs[0]].partitions == 1
    with raises(Retriable, Code.TOPIC_MISSING, topology.decisions):
        check_decision_log(admin.connect(client), topology, 1)


def test_a_transactional_id_and_a_group_that_one_may_not_use_are_named(broker: Guarded) -> None:
    topology, client = topology_of("runner"), broker.client("PASSWORD")
    broker.allow(ResourceType.TOPIC, "runner.", AclOperation.ALL)
    with raises(Refused, Code.KAFKA_RIGHT, "onefold-runner-0"):
        KafkaSession(topology, 0, client).open()
    member = Membership(topology, client, "one", lambda tasks: None, lambda tasks: None)

    def refused() -> str:
        try:
            member.poll(0.2)
        except Refused as error:
            return str(error)
        return ""

    try:
        assert "onefold-runner" in eventually(refused, ANSWER_S, "the group refuses")
    finally:
        member.close()


def trouble_of(member: Membership) -> str:
    """Why its group cannot be asked, or ""."""
    try:
        member.poll(0.2)
    except Retriable as error:
        return str(error)
    return ""


def test_a_processor_that_runs_says_that_its_password_was_changed_and_goes_on(broker: Guarded) -> None:
    """Nothing ends by itself: the status has the reason until the password is right again."""
    client = broker.client("OPEN", sasl_username=ROOT)
    tasks = set[int]()
    member = Membership(topology_of("runner"), client, "one", tasks.update, tasks.difference_update)

    told = partial(trouble_of, member)
    try:
        eventually(lambda: told() or tasks, ANSWER_S, "it has its tasks")
        broker.set_password(ROOT, "another password")
        eventually(lambda: f"refuses user {ROOT}: " in told(), ANSWER_S, "it says why")
        broker.set_password(ROOT, PASSWORD)
        eventually(lambda: told() == "" and tasks == {0}, ANSWER_S, "it goes on")
    finally:
        broker.set_password(ROOT, PASSWORD)
        member.close()


def test_a_password_that_changes_in_its_file_counts_without_a_restart(
    broker: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For clients that run, and for those that are made later."""
    new, file = "a new password", tmp_path / "options"
    client = broker.client("OPEN", sasl_username=ROOT)

    def write(password: str) -> None:
        options = {**client, "sasl.password": password}
        del options["bootstrap.servers"]
        file.write_text(json.dumps(options), encoding="utf-8")

    write(PASSWORD)
    monkeypatch.setenv("ONEFOLD_KAFKA_OPTIONS_FILE", str(file))
    monkeypatch.setattr(kafka_client, "_logins", {})
    login = logins.Login(load())
    tasks = set[int]()
    member = Membership(topology_of("runner"), client, "two", tasks.update, tasks.difference_update)

    trouble = partial(trouble_of, member)
    try:
        eventually(lambda: trouble() == "" and tasks, ANSWER_S, "it has its tasks")
        broker.set_password(ROOT, new)
        eventually(lambda: f"refuses user {ROOT}: " in trouble(), ANSWER_S, "it says why")
        file.write_text("{", encoding="utf-8")  # half written
        login.look()
        write(new)
        login.look()
        eventually(lambda: trouble() == "" and tasks == {0}, ANSWER_S, "it goes on")
        assert kafka_client.admin(client).list_topics(timeout=ANSWER_S).brokers
    finally:
        broker.set_password(ROOT, PASSWORD)
        member.close()
