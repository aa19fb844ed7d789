"""A look at an address where librdkafka says nothing condemns nobody whom Kafka lets in, and a silent one is looked at once."""

import socket
import ssl
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
