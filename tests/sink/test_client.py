"""One set of Kafka settings for two clients: what Kafka's Java client is told for each of librdkafka's, or the sentence."""

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
from onefold.spark_sink.errors import Misconfigured
from onefold.spark_sink.kafka.client import check, java_client_options
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
UNSECURED = {"sasl.mechanism": "OAUTHBEARER", "enable.sasl.oauthbearer.unsecure.jwt": "true"}
MODULES = "org.apache.kafka.common.security"


def login(mechanism: str, module: str, **options: str) -> dict[str, str]:
    told = " ".join(f'{name}="{value}"' for name, value in options.items())
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{MODULES}.{module} required {told};"}


@pytest.mark.parametrize(
    ("librdkafka", "java"),
    [
        ({}, {}),
        ({"security.protocol": "plaintext"}, {}),
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
            login("SCRAM-SHA-512", "scram.ScramLoginModule", username=r"a\"n", password=r"\\\012\011\001$ 7"),
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
                    clientSecret=r"a\"b",
                    scope="a b",
                    extension_one="1",
                    extension_two="a=b",
                ),
                "sasl.oauthbearer.token.endpoint.url": "https://login/token",
                "sasl.login.callback.handler.class": f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
            },
        ),
        (
            {**UNSECURED, "sasl.oauthbearer.config": "principal=ann"},
            login("OAUTHBEARER", "oauthbearer.OAuthBearerLoginModule", unsecuredLoginStringClaim_sub="ann"),
        ),
        (
            {
                **UNSECURED,
                "sasl.oauthbearer.method": "default",
                "sasl.oauthbearer.config": "principal=ann  principalClaimName=who scopeClaimName=may scope=a,b "
                "lifeSeconds=60 extension_one=1",
            },
            login(
                "OAUTHBEARER",
                "oauthbearer.OAuthBearerLoginModule",
                unsecuredLoginStringClaim_who="ann",
                unsecuredLoginListClaim_may=",a,b",
                unsecuredLoginPrincipalClaimName="who",
                unsecuredLoginScopeClaimName="may",
                unsecuredLoginLifetimeSeconds="60",
                unsecuredLoginExtension_one="1",
            ),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_both_clients_are_told_the_same(librdkafka: dict[str, str], java: dict[str, str]) -> None:
    check(librdkafka)
    assert java_client_options("k:1", librdkafka) == {"bootstrap.servers": "k:1", **java}
    if not any(name.endswith(".location") for name in librdkafka) and "ssl.ca.pem" not in librdkafka:
        Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, **librdkafka})  # it has names like these


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
        (
            {"socket.timeout.ms": "1"},
            "'socket.timeout.ms' is not among those that the processor and the sink both know",
        ),
        ({"ssl.cipher.suites": "x"}, "'ssl.cipher.suites' is not among"),
        ({"security.protocol": "tls"}, "has to be one of plaintext, ssl, sasl_plaintext, sasl_ssl"),
        ({"security.protocol": "sasl_ssl"}, "needs a 'sasl.mechanism'"),
        ({"sasl.username": "ann", "sasl.password": "secret"}, "'sasl.password' is not among"),
        ({"sasl.mechanism": "GSSAPI"}, "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        ({**PLAIN, "sasl.mechanisms": "SCRAM-SHA-256"}, "are the same one: give one"),
        ({**PLAIN, "sasl.password": ""}, "'sasl.password' is missing: PLAIN needs it"),
        ({"sasl.mechanism": "PLAIN", "sasl.password": "x"}, "'sasl.username' is missing"),
        ({**PLAIN, "sasl.oauthbearer.scope": "x"}, "'sasl.oauthbearer.scope' is not among"),
        (
            {"sasl.mechanism": "OAUTHBEARER"},
            "needs 'sasl.oauthbearer.method' oidc, or 'enable.sasl.oauthbearer.unsecure",
        ),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "x"}, "needs 'sasl.oauthbearer.method' oidc"),
        ({**UNSECURED, "enable.sasl.oauthbearer.unsecure.jwt": "false"}, "needs 'sasl.oauthbearer.method' oidc"),
        (UNSECURED, "'sasl.oauthbearer.config' is missing"),
        ({**UNSECURED, "sasl.oauthbearer.config": "scope=a"}, "needs a principal="),
        ({**UNSECURED, "sasl.oauthbearer.config": "principal"}, "is not a list of name=value"),
        ({**UNSECURED, "sasl.oauthbearer.config": "principal=a other=b"}, "has an unknown part: other="),
        (
            {**UNSECURED, "sasl.oauthbearer.config": "principal=a principalClaimName=a;b"},
            "claim that Java cannot have",
        ),
        ({**OIDC, "sasl.oauthbearer.client.secret": ""}, "'sasl.oauthbearer.client.secret' is missing"),
        ({**OIDC, "sasl.oauthbearer.extensions": "a b=c"}, "'sasl.oauthbearer.extensions' is not a list of name=value"),
        ({**OIDC, "sasl.oauthbearer.config": "principal=a"}, "'sasl.oauthbearer.config' is not among"),
        ({"enable.ssl.certificate.verification": "false"}, "cannot be false"),
        ({"ssl.endpoint.identification.algorithm": "ldap"}, "one of none, https"),
        ({"ssl.ca.location": "/ca.pem", "ssl.ca.pem": "x"}, "'ssl.ca.location' and 'ssl.ca.pem' say the same"),
        ({"ssl.ca.location": "probe"}, "one file of certificates"),
        ({"ssl.ca.location": "/"}, "one file of certificates"),
        ({"ssl.certificate.location": "/c.pem"}, "'ssl.certificate.location' needs the other half"),
        ({"ssl.key.pem": "x"}, "'ssl.key.pem' needs the other half"),
        ({"ssl.key.pem": "x", "ssl.key.location": "/k.pem"}, "'ssl.key.location' and 'ssl.key.pem' say the same"),
        ({"ssl.key.password": "x"}, "'ssl.key.password' is not among"),
        ({"ssl.keystore.password": "x"}, "'ssl.keystore.password' is not among"),
        (
            {"ssl.keystore.location": "/me.p12", "ssl.key.password": "secret"},
            "'ssl.key.password' is not among",
        ),
        (
            {"ssl.keystore.location": "/me.p12", "ssl.certificate.pem": "x", "ssl.key.pem": "x"},
            "'ssl.certificate.pem' and 'ssl.keystore.location' say the same",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_one_of_them_cannot_do_is_refused_for_both(librdkafka: dict[str, str], sentence: str) -> None:
    for refuses in (check, lambda settings: java_client_options("k:1", settings)):
        with pytest.raises(Misconfigured, match=re.escape(sentence)) as caught:
            refuses(librdkafka)
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value).replace("client.secret", "")


@given(st.text() | st.text('\\"\n\r\t\0abn017'))
def test_java_reads_the_password_that_was_written(password: str) -> None:
    """By the rules of java.io.StreamTokenizer, written down once more."""
    if not password:
        return
    jaas = java_client_options("k:1", {**PLAIN, "sasl.password": password})["sasl.jaas.config"]
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
    check(settings)
    options = java_client_options("k:1", settings)
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
    check(settings)
    options = java_client_options("k:1", settings)
    found = serialization.load_pem_private_key(options["ssl.keystore.key"].encode(), None)
    assert found.public_key() == mine.public
    assert options["ssl.keystore.certificate.chain"].strip() == mine.chain.read_text(encoding="utf-8").strip()
    with raises(Misconfigured, Code.KAFKA_SETTING_WRONG, "ssl.keystore.location", "PKCS#12"):
        java_client_options("k:1", {**settings, "ssl.keystore.password": "wrong"})


def test_a_packed_store_without_a_key_is_named(authority: Authority, tmp_path: Path) -> None:
    signer = x509.load_pem_x509_certificate(authority.file.read_bytes())
    store = tmp_path / "signers.p12"
    store.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [signer], serialization.NoEncryption()))
    with raises(Misconfigured, Code.KAFKA_SETTING_WRONG, "ssl.keystore.location"):
        java_client_options("k:1", {"ssl.keystore.location": str(store)})


def test_a_password_for_a_key_that_has_none_is_not_minded(authority: Authority) -> None:
    mine = authority.issue("me")
    settings = {"ssl.certificate.location": str(mine.chain), "ssl.key.location": str(mine.key)}
    assert java_client_options("k:1", {**settings, "ssl.key.password": "x"}) == java_client_options("k:1", settings)


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
        java_client_options("k:1", settings)


@pytest.mark.parametrize(("name", "what"), [("ssl.certificate", "certificate"), ("ssl.key", "private key")])
def test_a_file_of_something_else_is_named(authority: Authority, tmp_path: Path, name: str, what: str) -> None:
    mine, other = authority.issue("me"), tmp_path / "other"
    other.write_text("something else", encoding="utf-8")
    settings = {"ssl.certificate.location": str(mine.chain), "ssl.key.location": str(mine.key)}
    with raises(Misconfigured, Code.KAFKA_SETTING_WRONG, str(name), str(what)):
        java_client_options("k:1", {**settings, f"{name}.location": str(other)})
