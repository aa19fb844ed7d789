"""A look at an address where librdkafka says nothing condemns nobody whom Kafka lets in, and a silent one is looked at once."""

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from onefold import kafka_client, kafka_probe
from tests.support.certificates import Authority

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@contextmanager
def mutual(authority: Authority, version: ssl.TLSVersion) -> Iterator[int]:
    """The port of a server that lets in whoever has a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("broker").both)
    context.load_verify_locations(authority.file)
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, version

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with closing(plain):
                try:
                    context.wrap_socket(plain, server_side=True).recv(1)
                except OSError:
                    continue

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_that_wants_a_client_certificate_is_well(tmp_path: Path, version: ssl.TLSVersion) -> None:
    authority = Authority(tmp_path)
    trusting = {"security.protocol": "ssl", "ssl.ca.location": str(authority.file)}
    careless = {"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"}
    with mutual(authority, version) as port:
        for settings in (trusting, careless):
            assert kafka_probe.probe(settings, "it", "127.0.0.1", port) is None
        plain = kafka_probe.probe({}, "it", "127.0.0.1", port)
    assert plain is not None
    assert "speaks TLS" in plain.sentence


def test_an_address_that_is_silent_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []

    def silent(address: tuple[str, int], timeout: float) -> socket.socket:
        looked_at.append(address)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", silent)
    monkeypatch.setattr(kafka_client, "_ANSWER_S", (0.01, 0.01, 0.01))
    found = kafka_client.trouble({"bootstrap.servers": "127.0.0.1:1,127.0.0.1:2"})
    assert found is not None
    assert found.sentence == "Kafka at 127.0.0.1:1 does not answer: no answer within 2 s"
    assert looked_at == [("127.0.0.1", 1), ("127.0.0.1", 2)]


def features(level: int) -> bytes:
    """The tagged field of the features that a broker supports."""
    name = b"metadata.version"
    entry = bytes([len(name) + 1]) + name + struct.pack(">hh", 1, level) + b"\x00"
    other = b"\x05abcd" + struct.pack(">hh", 0, 300) + b"\x00"
    value = b"\x03" + other + entry
    return b"\x01\x00" + bytes([len(value)]) + value


def answer(metadata_api: int, tags: bytes) -> bytes:
    """To the question for the supported requests, with 130 requests: their number takes two bytes."""
    apis = b"".join(struct.pack(">hhh", key, 0, metadata_api if key == 3 else 1) + b"\x00" for key in range(130))
    body = struct.pack(">h", 0) + b"\x83\x01" + apis + struct.pack(">i", 0) + tags
    return struct.pack(">ii", len(body) + 4, 3) + body


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (answer(13, features(29)), kafka_probe.Supported(13, 29)),
        (answer(9, b"\x00"), kafka_probe.Supported(9, 0)),
        (struct.pack(">iihi", 10, 3, 35, 0), kafka_probe.Supported(0, 0)),
        (b"\x00\x00\x00\x05hello", None),
        (b"", None),
    ],
)
def test_a_broker_is_asked_what_it_supports(sent: bytes, found: kafka_probe.Supported | None) -> None:
    """Before 2.4 a broker answers that it does not have that question; what is no Kafka says nothing."""

    def serve() -> None:
        with closing(listener.accept()[0]) as plain:
            plain.recv(100)
            plain.sendall(sent)

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        Thread(target=serve, daemon=True).start()
        assert kafka_probe.supported({}, "127.0.0.1", listener.getsockname()[1]) == found
