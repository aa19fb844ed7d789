"""Find the fault of a broker's address before a login (name, port, TLS or protocol), and the broker's release of Kafka.

The module only uses sockets. librdkafka reports a plaintext client at a TLS port, a TLS client at a plaintext port and a dead
broker alike, and does not report the broker's supported versions.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, UNAVAILABLE

# A running broker answers in milliseconds.
_CONNECT_S = 2.0
# ApiVersions and SaslHandshake: the two requests that a broker answers before a login. Key, version, number, no client id.
_API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
_SASL_HANDSHAKE = struct.pack(">hhih", 17, 1, 2, -1)
# ApiVersions, version 3, whose response has the features. The request has a tagged header and the client's name and version.
_SUPPORTED = struct.pack(">hhih", 18, 3, 3, -1) + b"\x00\x08onefold\x021\x00"
_METADATA_API = 3
_FEATURES_TAG, _METADATA_FEATURE = 0, b"metadata.version"
_ILLEGAL_SASL_STATE = 34  # a listener's answer to a handshake without SASL
_UNSUPPORTED_SASL_MECHANISM = 33
_RESPONSE_BYTES_MAX = 65_536
#: Remedies.
LOGIN = "Correct the login in ONEFOLD_KAFKA_OPTIONS."
START = "Start it, or correct its address."


@dataclass(frozen=True)
class Trouble:
    """Why Kafka cannot be used.

    Attributes:
        code: the kind of trouble.
        sentence: the broker's host and port, and the reason.
        remedy: the next step of a person.
        refused: waiting does not help: a setting, a certificate or a right is wrong. Else a server is missing.
        partial: a further broker of the cluster answers.
    """

    code: Code
    sentence: str
    remedy: str
    refused: bool
    partial: bool = False

    @property
    def exit_code(self) -> int:
        """The exit code of a command that the trouble ends."""
        return REFUSED if self.refused else UNAVAILABLE


def probe(settings: Mapping[str, Any], broker: str, host: str, port: int) -> Trouble | None:
    """The fault of a broker's address, TLS or protocol; None if a login may follow.

    Args:
        broker: the subject of the sentence.
    """
    protocol = str(settings.get("security.protocol", "plaintext")).lower()
    connected = False
    try:
        with closing(socket.create_connection((host, port), _CONNECT_S)) as plain:
            connected = True
            return _talk(settings, broker, host, plain, protocol)
    except socket.gaierror as error:
        sentence = f"{broker} does not resolve: {error.strerror}"
        return Trouble(Code.KAFKA_SILENT, sentence, "Correct the address or the name service.", refused=False)
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message
        remedy = "Give the broker a valid certificate, or name its CA in ssl.ca.location."
        return Trouble(
            Code.KAFKA_LOGIN, f"{broker} has a certificate that this client refuses: {reason}", remedy, refused=True
        )
    except OSError as error:
        with suppress(OSError):
            if connected and (found := _other_protocol(broker, host, port, protocol)):
                return found
        reason = (
            f"no answer within {_CONNECT_S:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        )
        return Trouble(Code.KAFKA_SILENT, f"{broker} does not answer: {reason}", START, refused=False)


def _talk(settings: Mapping[str, Any], broker: str, host: str, plain: socket.socket, protocol: str) -> Trouble | None:
    plain.settimeout(_CONNECT_S)
    tls, sasl = protocol in ("ssl", "sasl_ssl"), protocol.startswith("sasl")
    try:
        connection = _trusting(settings).wrap_socket(plain, server_hostname=host) if tls else plain
    except ssl.SSLError as error:
        if _ALERT in (error.reason or ""):
            return None  # before TLS 1.3, a broker refuses a missing client certificate during the handshake
        raise
    mechanism = str(settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "PLAIN")
    try:
        wants, mechanisms = _handshake(connection, mechanism)
    except ssl.SSLError:
        return None  # the broker wants a client certificate: only librdkafka has it
    if wants == sasl:
        return None
    offers = f"wants a SASL login ({', '.join(mechanisms)})" if wants else "takes no SASL login"
    return Trouble(Code.KAFKA_LOGIN, f"{broker} {offers}, and security.protocol is {protocol}", _PROTOCOL, refused=True)


# In OpenSSL's name of a peer's alert: the peer speaks TLS, and this side did not refuse the certificate.
_ALERT = "ALERT"
_PROTOCOL = "Correct security.protocol in ONEFOLD_KAFKA_OPTIONS."


def _other_protocol(broker: str, host: str, port: int, protocol: str) -> Trouble | None:
    """Whether client and port differ in TLS."""
    if protocol in ("ssl", "sasl_ssl"):
        with closing(socket.create_connection((host, port), _CONNECT_S)) as plain:
            _handshake(plain, "PLAIN")
        return Trouble(
            Code.KAFKA_LOGIN, f"{broker} speaks no TLS, and security.protocol is {protocol}", _PROTOCOL, refused=True
        )
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE  # the probe sends no data, and tests only for TLS
    with closing(socket.create_connection((host, port), _CONNECT_S)) as plain:
        try:
            anyone.wrap_socket(plain).close()
        except ssl.SSLError as error:  # a port that wants a client certificate speaks TLS, too
            if _ALERT not in (error.reason or ""):
                raise
    return Trouble(
        Code.KAFKA_LOGIN, f"{broker} speaks TLS, and security.protocol is {protocol}", _PROTOCOL, refused=True
    )


def _trusting(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """Check a broker's certificate as librdkafka does with these settings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if str(settings.get("enable.ssl.certificate.verification", "true")).lower() in ("false", "0", "f"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    file, text = settings.get("ssl.ca.location"), settings.get("ssl.ca.pem")
    if (file and file != "probe") or text:
        is_folder = Path(str(file)).is_dir()
        context.load_verify_locations(
            cafile=None if is_folder else file, capath=file if is_folder else None, cadata=text
        )
    else:
        context.load_default_certs()
    context.check_hostname = settings.get("ssl.endpoint.identification.algorithm", "https") == "https"
    return context


def _handshake(connection: socket.socket, mechanism: str) -> tuple[bool, list[str]]:
    """Whether the listener wants a SASL login, and the mechanisms. Raises OSError if no Kafka answers."""
    _ask(connection, _API_VERSIONS)
    name = mechanism.encode()
    answer = _ask(connection, _SASL_HANDSHAKE + struct.pack(">h", len(name)) + name)
    (code,) = struct.unpack_from(">h", answer)
    return code != _ILLEGAL_SASL_STATE, list(_strings(answer[2:]))


def _ask(connection: socket.socket, request: bytes) -> bytes:
    """The body of a response."""
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _receive(connection, 4))
    if not 4 <= size <= _RESPONSE_BYTES_MAX:
        raise ConnectionError("the answer is not one of Kafka")
    return _receive(connection, size)[4:]


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            raise ConnectionError("the connection was closed")
        data += part
    return data


def _strings(data: bytes) -> Iterator[str]:
    (count,), at = struct.unpack_from(">i", data), 4
    for _ in range(count):
        (size,) = struct.unpack_from(">h", data, at)
        yield data[at + 2 : at + 2 + size].decode()
        at += 2 + size


class Supported(NamedTuple):
    """The supported versions of a broker.

    Attributes:
        metadata_api: The last version of the metadata request; 0 for a broker before Kafka 2.4, which does not report it.
        metadata_level: The last level of the feature `metadata.version`; 0 for a broker before Kafka 3.3, without the feature.
    """

    metadata_api: int
    metadata_level: int


def supported(settings: Mapping[str, Any], host: str, port: int) -> Supported | None:
    """Request the supported versions, before a login.

    Returns None if no broker answers, or if the broker wants a client certificate from a source other than two files.
    """
    try:
        with closing(socket.create_connection((host, port), _CONNECT_S)) as plain:
            plain.settimeout(_CONNECT_S)
            connection: socket.socket = plain
            if str(settings.get("security.protocol", "plaintext")).lower() in ("ssl", "sasl_ssl"):
                context = _trusting(settings)
                if certificate := settings.get("ssl.certificate.location"):
                    context.load_cert_chain(
                        certificate, settings.get("ssl.key.location"), settings.get("ssl.key.password", "")
                    )
                connection = context.wrap_socket(plain, server_hostname=host)
            return _read_supported(_ask(connection, _SUPPORTED))
    except (OSError, struct.error, IndexError):
        return None


def _read_supported(data: bytes) -> Supported:
    (error,) = struct.unpack_from(">h", data)
    if error:  # the broker does not have this version of the request
        return Supported(0, 0)
    apis, level = {}, 0
    count, at = _varint(data, 2)
    for _ in range(count - 1):
        key, _first, last = struct.unpack_from(">hhh", data, at)
        apis[key] = last
        at = _after_tags(data, at + 6)
    tags, at = _varint(data, at + 4)
    for _ in range(tags):
        tag, at = _varint(data, at)
        size, at = _varint(data, at)
        if tag == _FEATURES_TAG:
            level = dict(_features(data, at)).get(_METADATA_FEATURE, 0)
        at += size
    return Supported(apis.get(_METADATA_API, 0), level)


def _features(data: bytes, at: int) -> Iterator[tuple[bytes, int]]:
    """Each feature with the broker's last supported level."""
    count, at = _varint(data, at)
    for _ in range(count - 1):
        size, at = _varint(data, at)
        name, at = data[at : at + size - 1], at + size - 1
        yield name, struct.unpack_from(">h", data, at + 2)[0]
        at = _after_tags(data, at + 4)


def _after_tags(data: bytes, at: int) -> int:
    count, at = _varint(data, at)
    for _ in range(count):
        _tag, at = _varint(data, at)
        size, at = _varint(data, at)
        at += size
    return at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of Kafka's protocol in groups of seven bits, and the offset after the number."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1
