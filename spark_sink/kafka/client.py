"""One set of Kafka settings for two clients: librdkafka, which has the names, and Kafka's Java client, which Spark reads with.

The processor takes them as they are, the sink translates them. What one of the two could not do is refused for both: else a
pipeline would work as far as its output topics, and nobody would know why not further. Refused is also what would take
over a setting that exactly-once hangs on.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onefold.error_codes import Code
from onefold.spark_sink.errors import Misconfigured

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

# Onefold gives these to librdkafka itself, each client its own; most of them carry a promise.
_OURS = {
    *("acks", "request.required.acks", "enable.idempotence", "transactional.id", "transaction.timeout.ms"),
    *("retries", "message.send.max.retries", "retry.backoff.ms", "delivery.timeout.ms", "message.timeout.ms"),
    *("max.in.flight", "max.in.flight.requests.per.connection", "partitioner", "message.max.bytes", "linger.ms"),
    *("queue.buffering.max.ms", "queue.buffering.max.messages", "batch.size", "compression.type", "compression.codec"),
    *("isolation.level", "group.id", "group.instance.id", "group.protocol", "partition.assignment.strategy"),
    *("auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store", "auto.commit.interval.ms"),
    *("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "enable.partition.eof", "check.crcs"),
    *("fetch.min.bytes", "fetch.wait.max.ms", "fetch.queue.backoff.ms", "queued.max.messages.kbytes", "log_level"),
    *("default.topic.config", "plugin.library.paths"),
}
# They mean the same, and have the same name.
_SAME = (
    *("client.id", "client.rack", "client.dns.lookup", "metadata.max.age.ms", "socket.connection.setup.timeout.ms"),
    *("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
)
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")

_LOGIN = "org.apache.kafka.common.security"
_PASSWORD_MODULES = {
    "PLAIN": f"{_LOGIN}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_LOGIN}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_LOGIN}.scram.ScramLoginModule",
}
_TOKEN = "OAUTHBEARER"  # noqa: S105 - the name of a mechanism
_TOKEN_MODULE = f"{_LOGIN}.oauthbearer.OAuthBearerLoginModule"
_OIDC_HANDLER = f"{_LOGIN}.oauthbearer.OAuthBearerLoginCallbackHandler"

# `sasl.oauthbearer.config` of librdkafka: a token that nobody signed, for tests. Its parts, and what they are called in JAAS.
_UNSECURED = {
    "principalClaimName": "unsecuredLoginPrincipalClaimName",
    "scopeClaimName": "unsecuredLoginScopeClaimName",
    "lifeSeconds": "unsecuredLoginLifetimeSeconds",
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")  # of an option in JAAS, without quotes

# Who we are, in certificates: (a file, the same as text).
_CERTIFICATE = ("ssl.certificate.location", "ssl.certificate.pem")
_KEY = ("ssl.key.location", "ssl.key.pem")
_AUTHORITY = ("ssl.ca.location", "ssl.ca.pem")
_KEY_PASSWORD = "ssl.key.password"  # noqa: S105 - the name of a setting
_STORE, _STORE_PASSWORD = "ssl.keystore.location", "ssl.keystore.password"  # both in one file, PKCS#12
_PEM_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_PEM_KEY = re.compile(r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL)


def check(librdkafka: Mapping[str, str]) -> None:
    """Can both clients do what these settings say? Reads no file.

    Raises:
        Misconfigured: they cannot; one sentence that names the setting.
    """
    _translate(librdkafka)


def java_client_options(bootstrap_servers: str, librdkafka: Mapping[str, str]) -> dict[str, str]:
    """Settings for Kafka's Java client that say the same as these for librdkafka.

    Raises:
        Misconfigured: as `check` does, and when a certificate or a key cannot be read.
    """
    options, identity = _translate(librdkafka)
    return {"bootstrap.servers": bootstrap_servers, **options, **_key_store(identity)}


def _translate(librdkafka: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of the Java client, and what is left to be read: our certificate and its key, by librdkafka's names."""
    rest = dict(librdkafka)
    for name in sorted(rest):
        if name in ("bootstrap.servers", "metadata.broker.list"):
            raise Misconfigured(
                Code.KAFKA_SETTING_WRONG,
                f"the Kafka setting {name!r} has a variable of its own: ONEFOLD_BOOTSTRAP_SERVERS",
            )
        if name in _OURS:
            raise Misconfigured(
                Code.KAFKA_SETTING_WRONG, f"the Kafka setting {name!r} is Onefold's own, and cannot be changed"
            )
    options = {name: rest.pop(name) for name in _SAME if name in rest}
    if (idle := rest.pop("connections.max.idle.ms", None)) is not None:
        options["connections.max.idle.ms"] = "-1" if idle == "0" else idle  # never, in the one and in the other
    options |= _security(rest) | _checks_of_the_broker(rest)
    identity = _identity(rest)
    if rest:
        raise Misconfigured(
            Code.KAFKA_SETTING_WRONG,
            f"the Kafka setting {min(rest)!r} is not among those that the processor and the sink both know, "
            "or does not go with the others",
        )
    return options, identity


# --- who asks


def _security(rest: dict[str, str]) -> dict[str, str]:
    options = {}
    protocol = rest.pop("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise Misconfigured(
            Code.KAFKA_SETTING_WRONG, f"the Kafka setting 'security.protocol' has to be one of {', '.join(_PROTOCOLS)}"
        )
    if protocol != "plaintext":
        options["security.protocol"] = protocol.upper()
    mechanism, other = rest.pop("sasl.mechanism", None), rest.pop("sasl.mechanisms", None)
    if mechanism and other and mechanism != other:
        raise Misconfigured(
            Code.KAFKA_SETTING_WRONG,
            "the Kafka settings 'sasl.mechanism' and 'sasl.mechanisms' are the same one: give one",
        )
    mechanism = mechanism or other
    if mechanism is None:
        if protocol.startswith("sasl"):
            raise Misconfigured(
                Code.KAFKA_SETTING_WRONG, f"the Kafka setting 'security.protocol' {protocol} needs a 'sasl.mechanism'"
            )
        return options
    if mechanism in _PASSWORD_MODULES:
        user, password = (_needed(rest, name, mechanism) for name in ("sasl.username", "sasl.password"))
        login = _jaas(_PASSWORD_MODULES[mechanism], {"username": user, "password": password})
    elif mechanism == _TOKEN:
        more, login = _token(rest)
        options |= more
    else:
        known = ", ".join((*_PASSWORD_MODULES, _TOKEN))
        raise Misconfigured(Code.KAFKA_SETTING_WRONG, f"the Kafka setting 'sasl.mechanism' has to be one of {known}")
    return {**options, "sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _token(rest: dict[str, str]) -> tuple[dict[str, str], str]:
    """Options and login for OAUTHBEARER: a token from a server, or one that nobody signed."""
    method, unsecured = rest.pop("sasl.oauthbearer.method", "default"), "enable.sasl.oauthbearer.unsecure.jwt"
    if method == "oidc":
        needed = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.token.endpoint.url")
        client, secret, url = (_needed(rest, name, "sasl.oauthbearer.method oidc") for name in needed)
        login = {"clientId": client, "clientSecret": secret}
        if scope := rest.pop("sasl.oauthbearer.scope", None):
            login["scope"] = scope
        extensions = rest.pop("sasl.oauthbearer.extensions", "")
        for part in filter(None, (part.strip() for part in extensions.split(","))):
            name, value = _pair(part, "sasl.oauthbearer.extensions")
            login[f"extension_{name}"] = value
        options = {"sasl.oauthbearer.token.endpoint.url": url, "sasl.login.callback.handler.class": _OIDC_HANDLER}
        return options, _jaas(_TOKEN_MODULE, login)
    if method == "default" and rest.pop(unsecured, "false").lower() == "true":
        return {}, _jaas(_TOKEN_MODULE, _unsecured_login(_needed(rest, "sasl.oauthbearer.config", unsecured)))
    raise Misconfigured(
        Code.KAFKA_SETTING_WRONG,
        f"the Kafka setting 'sasl.mechanism' {_TOKEN} needs 'sasl.oauthbearer.method' oidc, or {unsecured!r} true",
    )


def _unsecured_login(config: str) -> dict[str, str]:
    setting = "sasl.oauthbearer.config"
    parts = dict(_pair(part, setting) for part in filter(None, config.split(" ")))
    principal, scope = parts.pop("principal", None), parts.pop("scope", None)
    if not principal:
        raise Misconfigured(Code.KAFKA_SETTING_WRONG, f"the Kafka setting {setting!r} needs a principal=")
    login = {f"unsecuredLoginStringClaim_{parts.get('principalClaimName', 'sub')}": principal}
    if scope:  # the first character separates the values
        login[f"unsecuredLoginListClaim_{parts.get('scopeClaimName', 'scope')}"] = f",{scope}"
    for name, value in parts.items():
        if name in _UNSECURED:
            login[_UNSECURED[name]] = value
        elif name.startswith("extension_"):
            login[f"unsecuredLoginExtension_{name.removeprefix('extension_')}"] = value
        else:
            raise Misconfigured(Code.KAFKA_SETTING_WRONG, f"the Kafka setting {setting!r} has an unknown part: {name}=")
    return login


def _pair(part: str, setting: str) -> tuple[str, str]:
    name, equals, value = part.partition("=")
    if not (equals and _NAME.fullmatch(name)):
        raise Misconfigured(Code.KAFKA_SETTING_WRONG, f"the Kafka setting {setting!r} is not a list of name=value")
    return name, value


def _jaas(module: str, options: Mapping[str, str]) -> str:
    """A login as Java reads it, with Java's StreamTokenizer."""
    for name in options:
        if not _NAME.fullmatch(name):
            raise Misconfigured(
                Code.KAFKA_SETTING_WRONG,
                f"the Kafka setting 'sasl.oauthbearer.config' has a claim that Java cannot have: {name}",
            )
    return " ".join([module, "required", *(f"{name}={_quoted(value)}" for name, value in options.items())]) + ";"


def _quoted(text: str) -> str:
    """In quotes, a backslash opens an escape, three octal digits are a character, and a line's end ends it all."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\{ord(found[0]):03o}", escaped) + '"'


def _needed(rest: dict[str, str], name: str, because: str) -> str:
    if not (value := rest.pop(name, "")):
        raise Misconfigured(Code.KAFKA_SETTING_WRONG, f"the Kafka setting {name!r} is missing: {because} needs it")
    return value


# --- who answers


def _checks_of_the_broker(rest: dict[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    if rest.pop("enable.ssl.certificate.verification", "true").lower() != "true":
        raise Misconfigured(
            Code.KAFKA_SETTING_WRONG,
            "the Kafka setting 'enable.ssl.certificate.verification' cannot be false: the sink's client always checks "
            "the broker's certificate; name who signed it in 'ssl.ca.location'",
        )
    location, text = _one_of(rest, _AUTHORITY)
    if location == "probe" or (location is not None and Path(location).is_dir()):
        raise Misconfigured(
            Code.KAFKA_SETTING_WRONG, "the Kafka setting 'ssl.ca.location' has to be one file of certificates in PEM"
        )
    if location is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": location}
    if text is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text}
    if (names := rest.pop("ssl.endpoint.identification.algorithm", None)) is not None:
        if names not in ("none", "https"):
            raise Misconfigured(
                Code.KAFKA_SETTING_WRONG,
                "the Kafka setting 'ssl.endpoint.identification.algorithm' has to be one of none, https",
            )
        options["ssl.endpoint.identification.algorithm"] = "" if names == "none" else names
    return options


# --- who we are


def _identity(rest: dict[str, str]) -> dict[str, str]:
    """The settings of our certificate and its key, when there are any; both then."""
    found: dict[str, str] = {}
    for pair in (_CERTIFICATE, _KEY):
        _one_of(dict(rest), pair)
        found |= {name: rest.pop(name) for name in pair if name in rest}
    if len(found) == 1:
        raise Misconfigured(
            Code.KAFKA_SETTING_WRONG,
            f"the Kafka setting {min(found)!r} needs the other half: a certificate and its key",
        )
    if found and _STORE in rest:
        raise Misconfigured(
            Code.KAFKA_SETTING_WRONG, f"the Kafka settings {min(found)!r} and {_STORE!r} say the same: give one"
        )
    if _STORE in rest:
        found = {name: rest.pop(name) for name in (_STORE, _STORE_PASSWORD) if name in rest}
    elif found and _KEY_PASSWORD in rest:
        found[_KEY_PASSWORD] = rest.pop(_KEY_PASSWORD)
    return found


def _one_of(rest: dict[str, str], pair: tuple[str, str]) -> tuple[str | None, str | None]:
    location, text = rest.pop(pair[0], None), rest.pop(pair[1], None)
    if location is not None and text is not None:
        raise Misconfigured(
            Code.KAFKA_SETTING_WRONG, f"the Kafka settings {pair[0]!r} and {pair[1]!r} say the same: give one"
        )
    return location, text


def _key_store(identity: dict[str, str]) -> dict[str, str]:
    """Java wants a chain and a key in PKCS#8; librdkafka takes them in any shape that OpenSSL knows.

    The key goes without its password: Java reads only some of the ciphers that OpenSSL has had over the years, and only
    some passwords.
    """
    if not identity:
        return {}
    chain, key = _unpacked(identity) if _STORE in identity else (_chain(identity), _key(identity))
    return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}


def _unpacked(identity: dict[str, str]) -> tuple[str, str]:
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12  # few need it, and it is large

    password = identity.get(_STORE_PASSWORD)
    try:
        store = pkcs12.load_pkcs12(_bytes(identity, _STORE), None if password is None else password.encode())
    except ValueError as error:
        raise Misconfigured(
            Code.KAFKA_SETTING_WRONG, f"the Kafka setting {_STORE!r} is no PKCS#12, or its password is wrong"
        ) from error
    if store.key is None or store.cert is None:
        raise Misconfigured(Code.KAFKA_SETTING_WRONG, f"the Kafka setting {_STORE!r} holds no certificate with its key")
    chain = [held.certificate.public_bytes(Encoding.PEM).decode() for held in (store.cert, *store.additional_certs)]
    return "".join(chain), _pkcs8(store.key)


def _chain(identity: dict[str, str]) -> str:
    name = _named(identity, _CERTIFICATE)
    chain = _PEM_CERTIFICATE.findall(_text(identity, name))
    if not chain:
        raise Misconfigured(Code.KAFKA_SETTING_WRONG, f"the Kafka setting {name!r} holds no certificate in PEM")
    return "\n".join(chain)


def _key(identity: dict[str, str]) -> str:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    name, password = _named(identity, _KEY), identity.get(_KEY_PASSWORD)
    reason = "or needs an 'ssl.key.password'" if password is None else "or its password is wrong"
    sentence = f"the Kafka setting {name!r} holds no private key in PEM, {reason}"
    found = _PEM_KEY.search(_text(identity, name))  # other things may stand before it, as parameters of a curve
    if not found:
        raise Misconfigured(Code.KAFKA_SETTING_WRONG, sentence)
    unlocks = password.encode() if password and "ENCRYPTED" in found[0] else None
    try:
        return _pkcs8(load_pem_private_key(found[0].encode(), unlocks))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Misconfigured(Code.KAFKA_SETTING_WRONG, sentence) from error


def _pkcs8(key: "PrivateKeyTypes") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _named(identity: dict[str, str], pair: tuple[str, str]) -> str:
    return pair[0] if pair[0] in identity else pair[1]


def _text(identity: dict[str, str], name: str) -> str:
    return identity[name] if name.endswith(".pem") else _bytes(identity, name).decode(errors="replace")


def _bytes(identity: dict[str, str], name: str) -> bytes:
    try:
        return Path(identity[name]).read_bytes()
    except OSError as error:
        raise Misconfigured(
            Code.KAFKA_SETTING_WRONG, f"the Kafka setting {name!r} names a file that cannot be read: {error.strerror}"
        ) from error
