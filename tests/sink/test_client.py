"""Kafka's Java client: the translation of librdkafka's settings, the refusal of others, and settings by Java's own names."""

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from hypothesis import given
from hypothesis import strategies as st

from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.kafka.client import java_client_options, translate
from tests.support.certificates import Authority
from tests.support.coded import raises

NASTY = """a "quoted" \\ back\\\\slash $HOME = ; 'it' {} // /* ünï\t\n end\\"""
PLAIN = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": "secret"}
OIDC = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": 'a"b',
    "sasl.oauthbearer.token.endpoint.url": "https://login/token",
}
UNSIGNED = {
    "sasl.mechanism": "OAUTHBEARER",
    "enable.sasl.oauthbearer.unsecure.jwt": "true",
    "sasl.oauthbearer.config": "principal=ann",
}
MODULES = "org.apache.kafka.common.security"


def login(mechanism: str, module: str, **options: str) -> dict[str, str]:
    given = " ".join(f'{name}="{value}"' for name, value in options.items())
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{MODULES}.{module} required {given};"}


def java_is_asked(variable: str) -> str:
    return f"cannot be translated for the sink: set ONEFOLD_SPARK_KAFKA_{variable} to the value for Kafka's Java client"


@pytest.mark.parametrize(
    ("librdkafka", "java"),
    [
        ({}, {}),
        ({"security.protocol": "plaintext"}, {"security.protocol": "PLAINTEXT"}),
        ({"security.protocol": "Ssl"}, {"security.protocol": "SSL"}),
        ({"client.id": "me", "client.rack": "r1"}, {"client.id": "me", "client.rack": "r1"}),
        ({"client.dns.lookup": "use_all_dns_ips"}, {"client.dns.lookup": "use_all_dns_ips"}),
        ({"metadata.max.age.ms": "9000"}, {"metadata.max.age.ms": "9000"}),
        ({"socket.connection.setup.timeout.ms": "9000"}, {"socket.connection.setup.timeout.ms": "9000"}),
        ({"reconnect.backoff.ms": "9", "reconnect.backoff.max.ms": "90"},) * 2,
        ({"connections.max.idle.ms": "9000"}, {"connections.max.idle.ms": "9000"}),
        ({"connections.max.idle.ms": "0"}, {"connections.max.idle.ms": "-1"}),
        (PLAIN, login("PLAIN", "plain.PlainLoginModule", username="ann", password="secret")),
        (
            {**PLAIN, "sasl.mechanisms": "PLAIN"},
            login("PLAIN", "plain.PlainLoginModule", username="ann", password="secret"),
        ),
        (
            {**PLAIN, "sasl.mechanism": "SCRAM-SHA-256", "security.protocol": "sasl_plaintext"},
            {
                "security.protocol": "SASL_PLAINTEXT",
                **login("SCRAM-SHA-256", "scram.ScramLoginModule", username="ann", password="secret"),
            },
        ),
        (
            {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": 'a"n', "sasl.password": "\\\n\t\x01$ 7"},
            login("SCRAM-SHA-512", "scram.ScramLoginModule", username=r"a\042n", password=r"\134\012\011\001$ 7"),
        ),
        ({"ssl.ca.location": "/ca.pem"}, {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}),
        ({"ssl.ca.pem": "---CA---"}, {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "---CA---"}),
        ({"ssl.endpoint.identification.algorithm": "none"}, {"ssl.endpoint.identification.algorithm": ""}),
        ({"ssl.endpoint.identification.algorithm": "https"}, {"ssl.endpoint.identification.algorithm": "https"}),
        ({"enable.ssl.certificate.verification": "true"}, {}),
        (
            {**OIDC, "sasl.oauthbearer.scope": "a b", "sasl.oauthbearer.extensions": "one=1,two=a=b"},
            {
                **login(
                    "OAUTHBEARER",
                    "oauthbearer.OAuthBearerLoginModule",
                    clientId="me",
                    clientSecret=r"a\042b",
                    scope="a b",
                    extension_one="1",
                    extension_two="a=b",
                ),
                "sasl.oauthbearer.token.endpoint.url": "https://login/token",
                "sasl.login.callback.handler.class": f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
            },
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_settings_are_translated_for_java(librdkafka: dict[str, str], java: dict[str, str]) -> None:
    translate(librdkafka, {})
    assert java_client_options("k:1", librdkafka, {}) == {"bootstrap.servers": "k:1", **java}
    if not any(name.endswith(".location") for name in librdkafka) and "ssl.ca.pem" not in librdkafka:
        Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **librdkafka})  # librdkafka has these names


@pytest.mark.parametrize(
    ("librdkafka", "sentence"),
    [
        ({"enable.idempotence": "false"}, "'enable.idempotence' is Onefold's own"),
        ({"isolation.level": "read_uncommitted"}, "'isolation.level' is Onefold's own"),
        ({"transactional.id": "x"}, "'transactional.id' is Onefold's own"),
        ({"group.id": "x"}, "'group.id' is Onefold's own"),
        ({"auto.offset.reset": "latest"}, "'auto.offset.reset' is Onefold's own"),
        ({"acks": "1"}, "'acks' is Onefold's own"),
        ({"partitioner": "random"}, "'partitioner' is Onefold's own"),
        ({"bootstrap.servers": "x:1"}, "ONEFOLD_BOOTSTRAP_SERVERS"),
        ({"metadata.broker.list": "x:1"}, "ONEFOLD_BOOTSTRAP_SERVERS"),
        ({"no.such": "1"}, "'no.such' is Onefold's own or unknown, and cannot be set"),
        (
            {"socket.timeout.ms": "1"},
            java_is_asked("SOCKET_TIMEOUT_MS"),
        ),
        ({"ssl.cipher.suites": "x"}, java_is_asked("SSL_CIPHER_SUITES")),
        ({"security.protocol": "tls"}, "has to be one of plaintext, ssl, sasl_plaintext, sasl_ssl"),
        ({"security.protocol": "sasl_ssl"}, "'sasl.mechanism' is missing"),
        ({"sasl.username": "ann", "sasl.password": "secret"}, java_is_asked("SASL_JAAS_CONFIG")),
        ({"sasl.mechanism": "GSSAPI"}, java_is_asked("SASL_JAAS_CONFIG")),
        ({**PLAIN, "sasl.mechanisms": "SCRAM-SHA-256"}, "is the same one as 'sasl.mechanisms': give one"),
        ({**PLAIN, "sasl.password": ""}, "'sasl.password' is missing: PLAIN needs it"),
        ({"sasl.mechanism": "PLAIN", "sasl.password": "x"}, "'sasl.username' is missing"),
        ({**PLAIN, "sasl.oauthbearer.scope": "x"}, "'sasl.oauthbearer.scope' cannot be translated"),
        ({"sasl.mechanism": "OAUTHBEARER"}, java_is_asked("SASL_JAAS_CONFIG")),
        (UNSIGNED, "'enable.sasl.oauthbearer.unsecure.jwt' cannot be translated"),
        ({**OIDC, "sasl.oauthbearer.client.secret": ""}, "'sasl.oauthbearer.client.secret' is missing"),
        ({**OIDC, "sasl.oauthbearer.extensions": "a b=c"}, "'sasl.oauthbearer.extensions' is not a list of name=value"),
        ({**OIDC, "sasl.oauthbearer.config": "principal=a"}, "'sasl.oauthbearer.config' cannot be translated"),
        ({"enable.ssl.certificate.verification": "false"}, "cannot be false"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, java_is_asked("SSL_ENDPOINT_IDENTIFICATION_ALGORITHM")),
        ({"ssl.ca.location": "/ca.pem", "ssl.ca.pem": "x"}, "'ssl.ca.location' says the same as 'ssl.ca.pem'"),
        ({"ssl.ca.location": "probe"}, java_is_asked("SSL_TRUSTSTORE_LOCATION")),
        ({"ssl.ca.location": "/"}, java_is_asked("SSL_TRUSTSTORE_LOCATION")),
        ({"ssl.certificate.location": "/c.pem"}, "'ssl.certificate.location' needs the other half"),
        ({"ssl.key.pem": "x"}, "'ssl.key.pem' needs the other half"),
        ({"ssl.key.pem": "x", "ssl.key.location": "/k.pem"}, "'ssl.key.location' says the same as 'ssl.key.pem'"),
        ({"ssl.key.password": "x"}, java_is_asked("SSL_KEYSTORE_LOCATION")),
        ({"ssl.keystore.password": "x"}, java_is_asked("SSL_KEYSTORE_LOCATION")),
        (
            {"ssl.keystore.location": "/me.p12", "ssl.key.password": "secret"},
            "'ssl.key.password' cannot be translated",
        ),
        (
            {"ssl.keystore.location": "/me.p12", "ssl.certificate.pem": "x", "ssl.key.pem": "x"},
            "'ssl.keystore.location' cannot be translated",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_a_setting_without_a_translation_is_refused(librdkafka: dict[str, str], sentence: str) -> None:
    for refuses in (translate, lambda *settings: java_client_options("k:1", *settings)):
        with pytest.raises(Misconfigured, match=re.escape(sentence)) as caught:
            refuses(librdkafka, {})
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value).replace("client.secret", "")


KERBEROS = {
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "GSSAPI",
    "sasl.kerberos.keytab": "/keytab",
    "sasl.kerberos.service.name": "kafka",
}
OWN_FILES = {"ssl.certificate.location": "/no/such", "ssl.key.location": "/no/such"}


@pytest.mark.parametrize(
    ("librdkafka", "java", "options"),
    [
        ({}, {"max.partition.fetch.bytes": "9"}, {"max.partition.fetch.bytes": "9"}),
        ({"client.id": "a"}, {"client.id": "b"}, {"client.id": "b"}),
        (
            PLAIN,
            {"sasl.mechanism": "SCRAM-SHA-256"},
            login("SCRAM-SHA-256", "scram.ScramLoginModule", username="ann", password="secret"),
        ),
        (
            OIDC,
            {"sasl.oauthbearer.token.endpoint.url": "https://other"},
            {
                **login("OAUTHBEARER", "oauthbearer.OAuthBearerLoginModule", clientId="me", clientSecret=r"a\042b"),
                "sasl.oauthbearer.token.endpoint.url": "https://other",
                "sasl.login.callback.handler.class": f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
            },
        ),
        ({"ssl.cipher.suites": "x"}, {"ssl.cipher.suites": "Y"}, {"ssl.cipher.suites": "Y"}),
        (
            KERBEROS,
            {"sasl.jaas.config": "Krb5 required;"},
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.jaas.config": "Krb5 required;"},
        ),
        (
            {"security.protocol": "sasl_ssl", **UNSIGNED},
            {"sasl.jaas.config": "OAuth required;"},
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": "OAuth required;"},
        ),
        (
            {"security.protocol": "sasl_ssl"},
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": "Plain required;"},
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "Plain required;"},
        ),
        (
            {"security.protocol": "ssl", "ssl.ca.location": "/etc/ssl"},
            {"ssl.truststore.type": "JKS", "ssl.truststore.location": "/store", "ssl.truststore.password": "x"},
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "JKS",
                "ssl.truststore.location": "/store",
                "ssl.truststore.password": "x",
            },
        ),
        (
            {"ssl.key.password": "x", **OWN_FILES},
            {"ssl.keystore.location": "/store"},
            {"ssl.keystore.location": "/store"},
        ),
    ],
    ids=[
        *("another", "same name", "translated mechanism", "endpoint", "untranslated", "Kerberos", "unsigned token"),
        *("mechanism", "truststore", "keystore"),
    ],
)
def test_a_setting_by_javas_own_name_wins(
    librdkafka: dict[str, str], java: dict[str, str], options: dict[str, str]
) -> None:
    """The Java client gets it, and none of the translated settings that it replaces."""
    assert java_client_options("k:1", librdkafka, java) == {"bootstrap.servers": "k:1", **options}


@pytest.mark.parametrize(
    ("librdkafka", "java", "sentence"),
    [
        ({}, {"group.id": "x"}, "'group.id' is Onefold's own"),
        ({}, {"isolation.level": "read_uncommitted"}, "'isolation.level' is Onefold's own"),
        ({}, {"value.deserializer": "x"}, "'value.deserializer' is Onefold's own"),
        ({}, {"auto.offset.reset": "latest"}, "'auto.offset.reset' is Onefold's own"),
        ({}, {"startingoffsets": "latest"}, "'startingoffsets' is Onefold's own"),
        ({}, {"subscribe": "x"}, "'subscribe' is Onefold's own"),
        ({}, {"assign": "x"}, "'assign' is Onefold's own"),
        ({}, {"bootstrap.servers": "x:1"}, "ONEFOLD_BOOTSTRAP_SERVERS"),
        ({"acks": "1"}, {"acks": "1"}, "'acks' is Onefold's own"),
        ({"ssl.cipher.suites": "x"}, {"ssl.protocol": "Y"}, java_is_asked("SSL_CIPHER_SUITES")),
        (PLAIN, {"sasl.mechanism": "GSSAPI"}, java_is_asked("SASL_JAAS_CONFIG")),
        (
            {"enable.ssl.certificate.verification": "false"},
            {"enable.ssl.certificate.verification": ""},
            "cannot be false",
        ),
        (UNSIGNED, {"ssl.truststore.location": "/store"}, java_is_asked("SASL_JAAS_CONFIG")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_onefolds_own_settings_are_refused_by_javas_names_too(
    librdkafka: dict[str, str], java: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Misconfigured, match=re.escape(sentence)):
        translate(librdkafka, java)


@given(st.text() | st.text('\\"\n\r\t\0abn017'))
def test_java_reads_the_password_that_was_written(password: str) -> None:
    """By the rules of java.io.StreamTokenizer, written down once more."""
    if not password:
        return
    jaas = java_client_options("k:1", {**PLAIN, "sasl.password": password}, {})["sasl.jaas.config"]
    quoted = jaas.partition(' password="')[2]
    assert _tokenized(quoted) == (password, ";")


def _tokenized(text: str) -> tuple[str, str]:
    """The string up to its closing quote, and what follows."""
    plain, at = "", 0
    while text[at] != '"':
        assert text[at] not in "\n\r", "a line's end ends a string"
        if text[at] != "\\":
            plain, at = plain + text[at], at + 1
            continue
        at += 1
        if octal := re.match("[0-3][0-7]{0,2}|[4-7][0-7]?", text[at:]):
            plain, at = plain + chr(int(octal[0], 8)), at + len(octal[0])
        else:
            letters = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
            plain, at = plain + letters.get(text[at], text[at]), at + 1
    return plain, text[at + 1 :]


# --- certificates of our own


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


SHAPES = ["PKCS8", "TraditionalOpenSSL"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("password", [None, NASTY.replace("\n", "")], ids=["open", "locked"])
@pytest.mark.parametrize("inline", [True, False], ids=["text", "files"])
def test_a_key_in_any_shape_becomes_one_that_java_reads(
    authority: Authority, shape: str, password: str | None, inline: bool
) -> None:
    """With the whole chain, and nothing else that stands in the file."""
    mine = authority.issue("me", shape=shape, password=password)
    settings = {"ssl.certificate.location": str(mine.chain), "ssl.key.location": str(mine.key)}
    if inline:
        settings = {
            "ssl.certificate.pem": mine.chain.read_text(encoding="utf-8"),
            "ssl.key.pem": "x\n" + mine.key.read_text(encoding="utf-8"),
        }
    if password:
        settings["ssl.key.password"] = password
    translate(settings, {})
    options = java_client_options("k:1", settings, {})
    assert sorted(options) == [
        "bootstrap.servers", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.type"
    ]  # fmt: skip
    assert options["ssl.keystore.type"] == "PEM"
    assert options["ssl.keystore.key"].startswith("-----BEGIN PRIVATE KEY-----\n")
    found = serialization.load_pem_private_key(options["ssl.keystore.key"].encode(), None)
    assert found.public_key() == mine.public
    assert options["ssl.keystore.certificate.chain"].count("BEGIN CERTIFICATE") == 2
    assert "PRIVATE" not in options["ssl.keystore.certificate.chain"]


@pytest.mark.parametrize("password", [None, NASTY], ids=["open", "locked"])
def test_a_packed_store_is_unpacked_for_java(authority: Authority, password: str | None) -> None:
    """It would not take every password."""
    mine = authority.issue("me", password=password)
    settings = {"ssl.keystore.location": str(mine.pkcs12)}
    if password:
        settings["ssl.keystore.password"] = password
    translate(settings, {})
    options = java_client_options("k:1", settings, {})
    found = serialization.load_pem_private_key(options["ssl.keystore.key"].encode(), None)
    assert found.public_key() == mine.public
    assert options["ssl.keystore.certificate.chain"].strip() == mine.chain.read_text(encoding="utf-8").strip()
    with raises(Misconfigured, Code.KAFKA_SETTING_WRONG, "ssl.keystore.location", "PKCS#12"):
        java_client_options("k:1", {**settings, "ssl.keystore.password": "wrong"}, {})


def test_a_packed_store_without_a_key_is_named(authority: Authority, tmp_path: Path) -> None:
    signer = x509.load_pem_x509_certificate(authority.file.read_bytes())
    store = tmp_path / "signers.p12"
    store.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [signer], serialization.NoEncryption()))
    with raises(Misconfigured, Code.KAFKA_SETTING_WRONG, "ssl.keystore.location"):
        java_client_options("k:1", {"ssl.keystore.location": str(store)}, {})


def test_a_password_for_a_key_that_has_none_is_not_minded(authority: Authority) -> None:
    mine = authority.issue("me")
    settings = {"ssl.certificate.location": str(mine.chain), "ssl.key.location": str(mine.key)}
    options = java_client_options("k:1", settings, {})
    assert java_client_options("k:1", {**settings, "ssl.key.password": "x"}, {}) == options


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ssl.key.location": "/no/such"}, "ssl.key.location"),
        ({"ssl.certificate.location": "/"}, "ssl.certificate.location"),
        ({"ssl.key.password": "wrong"}, "ssl.key.location"),
        ({}, "ssl.key.location"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named(
    authority: Authority, change: dict[str, str], sentence: str
) -> None:
    mine = authority.issue("me", password="right")
    settings = {"ssl.certificate.location": str(mine.chain), "ssl.key.location": str(mine.key), **change}
    with raises(Misconfigured, Code.KAFKA_SETTING_WRONG, sentence):
        java_client_options("k:1", settings, {})


@pytest.mark.parametrize(("name", "what"), [("ssl.certificate", "certificate"), ("ssl.key", "private key")])
def test_a_file_of_something_else_is_named(authority: Authority, tmp_path: Path, name: str, what: str) -> None:
    mine, other = authority.issue("me"), tmp_path / "other"
    other.write_text("something else", encoding="utf-8")
    settings = {"ssl.certificate.location": str(mine.chain), "ssl.key.location": str(mine.key)}
    with raises(Misconfigured, Code.KAFKA_SETTING_WRONG, str(name), str(what)):
        java_client_options("k:1", {**settings, f"{name}.location": str(other)}, {})
