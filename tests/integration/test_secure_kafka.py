"""A Kafka with logins: the processor's session and the sink's readers get in with the same settings."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.config.setting_sources import java_variable
from onefold.processor.core.errors import Retriable
from onefold.processor.io.admin import create_topics
from onefold.processor.io.kafka import KafkaSession
from onefold.processor.loading import topology_of
from onefold.spark_sink.errors import sentence
from onefold.spark_sink.kafka import client, topics
from onefold.spark_sink.kafka.topics import KafkaTopics
from onefold.stack.broker import Broker
from onefold.stack.child import Child
from onefold.stack.embedded import Infrastructure
from onefold.stack.ports import free_ports
from tests.support.certificates import Authority, Identity
from tests.support.command_line import Onefold
from tests.support.needs import first_of
from tests.support.waiting import eventually

NASTY = 'a "quoted" \\ back\\\\slash $HOME ${x} = ; \'it\' {} // /* ünï\t\n end\\"'
SCRAM = "SCRAM-SHA-512"
ANSWER_S = 30.0


@dataclass(frozen=True)
class SecureBroker(Broker):
    """The embedded broker with three more listeners: a password, a certificate and a token open one each."""

    password_port: int
    certificate_port: int
    token_port: int
    authority: Path
    identity: Path

    def configuration(self, data: Path) -> str:
        """What comes last counts."""
        ports = {"PASSWORD": self.password_port, "CERTIFICATE": self.certificate_port, "TOKEN": self.token_port}
        more = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        plain = f"PLAINTEXT://{self.bootstrap_servers}"
        modules = "org.apache.kafka.common.security"
        # each character by its number: no rule of Java's about quoting can be wrong here as it may be in the product
        password = "".join(f"\\\\{ord(letter):03o}" for letter in NASTY)
        lines = {
            "listeners": f"{plain},CONTROLLER://127.0.0.1:{self.controller_port},{more}",
            "advertised.listeners": f"{plain},{more}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PASSWORD:SASL_SSL,"
            "CERTIFICATE:SSL,TOKEN:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.identity,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            "listener.name.certificate.ssl.client.auth": "required",
            "listener.name.password.sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
            f"listener.name.password.{SCRAM.lower()}.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
            "listener.name.password.plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required "
            f'user_ann="{password}";',
            "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.token.oauthbearer.sasl.jaas.config": f"{modules}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";',
        }
        return super().configuration(data) + "".join(f"{name}={value}\n" for name, value in lines.items())


@dataclass(frozen=True)
class Secured:
    """The broker, and what is needed to get in."""

    broker: SecureBroker
    authority: Path
    mine: Identity

    def way(self, name: str) -> tuple[str, dict[str, str], dict[str, str]]:
        """Servers and settings for one way in, and those of the Java client that have no translation."""
        trust = {"ssl.ca.location": str(self.authority)}
        password = {"security.protocol": "sasl_ssl", "sasl.username": "ann", "sasl.password": NASTY, **trust}
        token = {"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER", **trust}
        files = {"ssl.certificate.location": str(self.mine.chain), "ssl.key.location": str(self.mine.key)}
        texts = {
            "ssl.certificate.pem": self.mine.chain.read_text(encoding="utf-8"),
            "ssl.key.pem": self.mine.key.read_text(encoding="utf-8"),
        }
        packed = {"ssl.keystore.location": str(self.mine.pkcs12), "ssl.keystore.password": NASTY}
        tls = {"security.protocol": "ssl", "client.id": "me"}
        port, settings = {
            "scram": (self.broker.password_port, {**password, "sasl.mechanism": SCRAM}),
            "plain": (self.broker.password_port, {**password, "sasl.mechanisms": "PLAIN"}),
            "files": (self.broker.certificate_port, {**tls, **trust, **files, "ssl.key.password": NASTY}),
            "texts": (
                self.broker.certificate_port,
                {**tls, **texts, "ssl.key.password": NASTY, "ssl.ca.pem": self.authority.read_text(encoding="utf-8")},
            ),
            "packed": (self.broker.certificate_port, {**tls, **trust, **packed}),
            "token": (
                self.broker.token_port,
                {
                    **token,
                    "enable.sasl.oauthbearer.unsecure.jwt": "true",
                    "sasl.oauthbearer.config": "principal=ann scope=a,b",
                },
            ),
        }[name]
        java = {
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="ann" unsecuredLoginListClaim_scope=",a,b";'
        }
        return f"127.0.0.1:{port}", settings, java if name == "token" else {}


@pytest.fixture(scope="module")
def secured(infrastructure: Infrastructure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secure")
    authority = Authority(home)
    ours = infrastructure.broker
    port, controller, password, certificate, token = free_ports(5)
    broker = SecureBroker(
        home / "kafka", port, controller, ours.java, ours.jars, password, certificate, token, authority.file,
        authority.issue("broker").both,
    )  # fmt: skip
    broker.prepare()
    child = Child(broker.service(home / "kafka.log"))
    child.start()
    try:
        child.wait_ready()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        ann = UserScramCredentialUpsertion(
            "ann", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), NASTY.encode(), secrets.token_bytes(16)
        )
        admin.alter_user_scram_credentials([ann])["ann"].result(ANSWER_S)
        mine = authority.issue("ann", shape="TraditionalOpenSSL", password=NASTY)
        yield Secured(broker, authority.file, mine)
    finally:
        child.ask_to_stop()
        child.stop()


@pytest.mark.parametrize("way", ["scram", "plain", "files", "texts", "packed", "token"])
def test_both_clients_get_in_with_the_same_settings(secured: Secured, spark: Any, way: str) -> None:
    """The processor's session and Spark's Kafka source read the record that the session wrote in a transaction."""
    servers, settings, own = secured.way(way)
    client.translate(settings, own)
    topology = topology_of("runner")
    theirs = {"bootstrap.servers": servers, **settings}
    create_topics(topology, 1, theirs)
    topic = topology.inputs[0]

    session = KafkaSession(topology, 0, theirs)
    session.open()
    at = session.identities()[topic].end
    session.begin()
    session.produce([(topic, 0, b"key", way.encode(), None)])
    session.commit()
    session.seek({topic: at})
    (read,) = eventually(lambda: session.poll(1, 1.0), ANSWER_S, "the session reads")
    session.close()
    assert (read.offset, read.value) == (at, way.encode())

    topics = KafkaTopics(servers, settings)
    found = topics.record_from(topic, 0, at)
    topics.close()
    assert found is not None
    assert found.value == way.encode()

    java = client.java_client_options(servers, settings, own)
    frame = spark.read.format("kafka").options(**{f"kafka.{name}": value for name, value in java.items()})
    rows = frame.option("subscribe", topic).option("startingOffsets", f'{{"{topic}":{{"0":{at}}}}}').load().collect()
    assert [(row["offset"], bytes(row["value"])) for row in rows] == [(at, way.encode())]


@pytest.mark.parametrize("way", first_of(("scram", "texts", "token", "files")))
def test_kafkas_own_tools_get_in_too(secured: Secured, tmp_path: Path, way: str) -> None:
    """By the settings that are set, with no file of them left behind."""
    servers, settings, own = secured.way(way)
    topic = f"by-tools-{way}"
    onefold = Onefold(tmp_path)
    onefold.environment |= {
        "ONEFOLD_BOOTSTRAP_SERVERS": servers,
        "ONEFOLD_KAFKA_OPTIONS": json.dumps(settings),
        "TMPDIR": str(tmp_path),
        **{java_variable("ONEFOLD_", name): value for name, value in own.items()},
    }
    onefold("kafka", "topics", "--create", "--topic", topic, "--partitions", "1")
    onefold("kafka", "console-producer", "--topic", topic, says=b"from a tool\n")
    consumer = ("--topic", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "30000")
    assert onefold("kafka", "console-consumer", *consumer) == "from a tool\n"
    assert f"{topic}:0:1" in onefold("kafka", "get-offsets", "--topic", topic)
    onefold("kafka", "consumer-groups", "--list")
    onefold("kafka", "transactions", "list")
    left = [file for file in tmp_path.rglob("*") if file.is_file() and b"sasl" in file.read_bytes()]
    assert left == []


@pytest.mark.parametrize(
    ("way", "change"),
    [
        ("scram", {"sasl.password": NASTY[:-1]}),
        ("plain", {"sasl.password": NASTY.replace("\\", "")}),
        ("scram", {"ssl.ca.location": ""}),
    ],
    ids=["scram", "plain", "an authority that nobody knows"],
)
def test_others_do_not_get_in(
    secured: Secured, spark: Any, way: str, change: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the tests above would prove nothing."""
    monkeypatch.setattr(topics, "_PATIENCE_S", 1.0)
    servers, settings, own = secured.way(way)
    settings = {name: value for name, value in {**settings, **change}.items() if value}
    with pytest.raises(Retriable):
        KafkaTopics(servers, settings).ids(list(topology_of("runner").inputs))
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": servers, **settings}).list_topics(timeout=1)
    java = client.java_client_options(servers, settings, own)
    frame = spark.read.format("kafka").options(**{f"kafka.{name}": value for name, value in java.items()})
    with pytest.raises(
        Exception, match=r"(?i)authentication failed|SSL handshake failed|Failed to create new Kafka"
    ) as caught:
        frame.option("subscribe", topology_of("runner").inputs[0]).load().collect()
    assert sentence(caught.value).startswith("Kafka's client in Spark: ")
