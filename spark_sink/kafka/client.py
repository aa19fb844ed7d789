"""Translates the settings of librdkafka, used by all other clients, into settings of Kafka's Java client in Spark.

The module translates logins and certificates. For a setting without a translation, the user must set the Java client's own
setting, because the processor would connect and the sink would not. The user cannot set the settings necessary for
exactly-once.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured

# The settings with the same name and meaning in both clients.
_SAME = (
    *("client.id", "client.rack", "client.dns.lookup", "metadata.max.age.ms", "socket.connection.setup.timeout.ms"),
    *("reconnect.backoff.ms", "reconnect.backoff.max.ms", "connections.max.idle.ms"),
    *("security.protocol", "sasl.mechanism"),
)
# The prefixes of further connection settings. The user may only set connection settings of librdkafka.
_CONNECTION = ("sasl.", "ssl.", "enable.sasl.", "enable.ssl.", "https.", "socket.", "broker.address.")
# Onefold and Spark decide these for the Java client.
_OURS = {
    *("group.id", "group.instance.id", "group.protocol", "group.remote.assignor", "partition.assignment.strategy"),
    *("isolation.level", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms", "check.crcs"),
    *("key.deserializer", "value.deserializer", "interceptor.classes", "fetch.max.wait.ms", "max.poll.records"),
    *("request.timeout.ms", "default.api.timeout.ms", "assign", "subscribe", "subscribepattern", "startingoffsets"),
}
# For settings with different names: librdkafka's prefixes, the Java client's prefix, and the suffix of the usual Java setting.
_IN_JAVA = (
    (("sasl.", "enable.sasl."), "sasl.jaas.", "config"),
    (("ssl.ca.",), "ssl.truststore.", "location"),
    (("ssl.certificate.", "ssl.key.", "ssl.keystore."), "ssl.keystore.", "location"),
)
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_MODULES = "org.apache.kafka.common.security"
_SCRAM = "scram.ScramLoginModule"
_PASSWORD_MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": _SCRAM, "SCRAM-SHA-512": _SCRAM}


def java_client_options(
    bootstrap_servers: str, librdkafka: Mapping[str, str], java: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings of the Java client: the translated settings of `librdkafka`, overridden by the settings of `java`.

    Raises:
        Misconfigured: see `translate`; or a certificate or a key is not readable.
    """
    options, identity = translate(librdkafka, java)
    store = _key_store(identity) if identity else {}
    return {"bootstrap.servers": bootstrap_servers, **options, **store, **java}


def translate(librdkafka: Mapping[str, str], java: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the Java client, and librdkafka's settings of a certificate and its key. Reads no file.

    Raises:
        Misconfigured: a setting is wrong or has no translation. The message is one sentence with the name of the setting.
    """
    for name in sorted({*librdkafka, *java}):
        if name in ("bootstrap.servers", "metadata.broker.list"):
            raise _wrong(name, "has a variable of its own: ONEFOLD_BOOTSTRAP_SERVERS")
        if name in _OURS or (name in librdkafka and name not in _SAME and not name.startswith(_CONNECTION)):
            raise _wrong(name, "is Onefold's own or unknown, and cannot be set")
    rest = dict(librdkafka)
    alias = rest.pop("sasl.mechanisms", None)
    if alias is not None and rest.setdefault("sasl.mechanism", alias) != alias:
        raise _wrong("sasl.mechanism", "is the same one as 'sasl.mechanisms': give one")
    rest = {name: value for name, value in rest.items() if not _replaced(name, java)}
    options = {name: rest.pop(name) for name in _SAME if name in rest}
    if options.get("connections.max.idle.ms") == "0":
        options["connections.max.idle.ms"] = "-1"  # never
    options |= _login(rest, options, java) | _trust(rest)
    identity = _identity(rest)
    if left := rest.keys() - java.keys():
        raise _untranslated(min(left))
    return options, identity


def _replaced(name: str, java: Mapping[str, str]) -> bool:
    """Whether the user has set the corresponding setting of the Java client under another name."""
    begin, end = _in_java(name)
    return bool(end) and name not in _SAME and any(one.startswith(begin) for one in java)


def _in_java(name: str) -> tuple[str, str]:
    """Return the prefix and the usual suffix of the Java client's names. Without a different name, the name itself and ""."""
    return next(((begin, end) for names, begin, end in _IN_JAVA if name.startswith(names)), (name, ""))


def _wrong(name: str, why: str) -> Misconfigured:
    return Misconfigured(Code.KAFKA_SETTING_WRONG, f"the Kafka setting {name!r} {why}")


def _untranslated(name: str) -> Misconfigured:
    variable = f"ONEFOLD_SPARK_KAFKA_{''.join(_in_java(name)).upper().replace('.', '_')}"
    return _wrong(name, f"cannot be translated for the sink: set {variable} to the value for Kafka's Java client")


def _needed(rest: dict[str, str], name: str, because: str) -> str:
    if not (value := rest.pop(name, "")):
        raise _wrong(name, f"is missing: {because} needs it")
    return value


def _either(rest: Mapping[str, str], name: str) -> str:
    """Return the name of the given setting, with a file or with its text. "": neither is given."""
    given = [one for one in (f"{name}.location", f"{name}.pem") if one in rest]
    if len(given) > 1:
        raise _wrong(given[0], f"says the same as {given[1]!r}: give one")
    return given[0] if given else ""


def _login(rest: dict[str, str], options: dict[str, str], java: Mapping[str, str]) -> dict[str, str]:
    protocol = options.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise _wrong("security.protocol", f"has to be one of {', '.join(_PROTOCOLS)}")
    made = {"security.protocol": protocol.upper()} if "security.protocol" in options else {}
    mechanism = {**options, **java}.get("sasl.mechanism")
    if mechanism is None and protocol.startswith("sasl"):
        raise _wrong("sasl.mechanism", f"is missing: security.protocol {protocol} needs it")
    if mechanism is None or "sasl.jaas.config" in java:
        return made
    if mechanism in _PASSWORD_MODULES:
        user, password = (_needed(rest, name, mechanism) for name in ("sasl.username", "sasl.password"))
        return {**made, "sasl.jaas.config": _jaas(_PASSWORD_MODULES[mechanism], username=user, password=password)}
    if mechanism == "OAUTHBEARER" and rest.pop("sasl.oauthbearer.method", None) == "oidc":
        return {**made, **_oidc(rest)}
    raise _untranslated(next((name for name in rest if name.startswith("enable.sasl.")), "sasl.mechanism"))


def _oidc(rest: dict[str, str]) -> dict[str, str]:
    names = [f"sasl.oauthbearer.{name}" for name in ("client.id", "client.secret", "token.endpoint.url")]
    client, secret, url = (_needed(rest, name, "sasl.oauthbearer.method oidc") for name in names)
    login = {"clientId": client, "clientSecret": secret}
    if scope := rest.pop("sasl.oauthbearer.scope", None):
        login["scope"] = scope
    for part in filter(None, map(str.strip, rest.pop("sasl.oauthbearer.extensions", "").split(","))):
        name, equals, value = part.partition("=")
        if not (equals and re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name)):
            raise _wrong("sasl.oauthbearer.extensions", "is not a list of name=value")
        login[f"extension_{name}"] = value
    return {
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.login.callback.handler.class": f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": _jaas("oauthbearer.OAuthBearerLoginModule", **login),
    }


def _jaas(module: str, **options: str) -> str:
    """Return a login in the syntax of Java's StreamTokenizer: a special character is a backslash and three octal digits."""
    login = f"{_MODULES}.{module} required"
    for name, text in options.items():
        quoted = re.sub(r'["\\\x00-\x1f\x7f]', lambda found: f"\\{ord(found[0]):03o}", text)
        login += f' {name}="{quoted}"'
    return f"{login};"


def _trust(rest: dict[str, str]) -> dict[str, str]:
    checks, names = "enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm"
    options: dict[str, str] = {}
    if rest.pop(checks, "true").lower() != "true":
        raise _wrong(checks, "cannot be false: the sink always checks; give the signer in 'ssl.ca.location'")
    if rest.get(names) in ("none", "https"):
        options[names] = rest.pop(names).replace("none", "")
    name = _either(rest, "ssl.ca")
    if name == "ssl.ca.pem":
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": rest.pop(name)}
    elif name and rest[name] != "probe" and not Path(rest[name]).is_dir():
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": rest.pop(name)}
    return options


def _identity(rest: dict[str, str]) -> dict[str, str]:
    certificate, key = _either(rest, "ssl.certificate"), _either(rest, "ssl.key")
    if bool(certificate) != bool(key):
        raise _wrong(certificate or key, "needs the other half: a certificate and its key")
    names = [certificate, key, "ssl.key.password"] if key else ["ssl.keystore.location", "ssl.keystore.password"]
    return {name: rest.pop(name) for name in names if name in rest} if names[0] in rest else {}


def _key_store(identity: dict[str, str]) -> dict[str, str]:
    """Return certificates and key as PEM without a password: Java does not read every cipher and password of OpenSSL."""
    from cryptography import x509  # imported here, because the package is large and rarely necessary
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.serialization import pkcs12

    def content(name: str) -> bytes:
        return identity[name].encode() if name.endswith(".pem") else Path(identity[name]).read_bytes()

    name, what = "ssl.keystore.location", "certificate with its key in PKCS#12, or its password is wrong"
    try:
        if name in identity:
            password = identity.get("ssl.keystore.password")
            store = pkcs12.load_pkcs12(content(name), None if password is None else password.encode())
            chain, key = [held.certificate for held in (store.cert, *store.additional_certs) if held], store.key
        else:
            name, what = _either(identity, "ssl.certificate"), "certificate in PEM"
            chain = x509.load_pem_x509_certificates(content(name))
            name, what = _either(identity, "ssl.key"), "private key in PEM, or 'ssl.key.password' is missing or wrong"
            text, password = content(name), identity.get("ssl.key.password")
            key = pem.load_pem_private_key(text, password.encode() if password and b"ENCRYPTED" in text else None)
        if not chain or key is None:
            raise ValueError(name)
    except OSError as error:
        raise _wrong(name, f"names a file that cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _wrong(name, f"holds no {what}") from error
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "".join(one.public_bytes(pem.Encoding.PEM).decode() for one in chain),
        "ssl.keystore.key": key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()).decode(),
    }
