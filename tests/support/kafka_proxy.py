"""A proxy between a client and the broker that understands just enough of Kafka's protocol to delay one request.

`hold` keeps the next request of a kind and drops the client's connection; the client sends the request again on a new
connection and goes on. `release` lets the broker have the kept one, late: what a network with a slow path does.
"""

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

#: API key of the request that ends a transaction, from Kafka's protocol.
END_TXN = 26


class KafkaProxy:
    """Listens on a port of its own, and rewrites the broker's address in answers so that clients stay behind it."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, port = bootstrap_servers.split(":")
        self._upstream = (host, int(port))
        self._server = socket.create_server((host, 0))
        self.bootstrap_servers = f"{host}:{self._server.getsockname()[1]}"
        self._theirs = host.encode() + struct.pack(">i", int(port))
        self._ours = host.encode() + struct.pack(">i", self._server.getsockname()[1])
        self._hold: int | None = None
        self._held: tuple[socket.socket, bytes] | None = None
        self.held = threading.Event()
        self._bytes_per_s: float | None = None
        self._never = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, api_key: int) -> None:
        """Keep the next request of that kind."""
        self._hold = api_key

    def release(self) -> bytes:
        """Send the kept request, and return the broker's answer."""
        assert self._held is not None, "nothing was held"
        upstream, frame = self._held
        upstream.sendall(frame)
        return _frame(upstream)

    def slow(self, bytes_per_s: float | None) -> None:
        """From now on requests take that long on their way to the broker, or None: no time at all."""
        self._bytes_per_s = bytes_per_s

    def close(self) -> None:
        """Take no more connections."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                upstream = socket.create_connection(self._upstream)
            except OSError:  # the broker is gone; so is this connection then
                client.close()
                continue
            threading.Thread(target=self._forward, args=(client, upstream), daemon=True).start()
            threading.Thread(target=self._back, args=(upstream, client), daemon=True).start()

    def _forward(self, client: socket.socket, upstream: socket.socket) -> None:
        try:
            while True:
                frame = _frame(client)
                if struct.unpack(">h", frame[4:6])[0] == self._hold:
                    # A second connection to the broker carries the kept request; this one ends for both sides.
                    self._hold = None
                    self._held = (socket.create_connection(self._upstream), frame)
                    client.close()
                    self.held.set()
                    return
                if self._bytes_per_s:
                    self._never.wait(len(frame) / self._bytes_per_s)
                upstream.sendall(frame)
        except (OSError, EOFError):
            _end(upstream)

    def _back(self, upstream: socket.socket, client: socket.socket) -> None:
        try:
            while True:
                client.sendall(_frame(upstream).replace(self._theirs, self._ours))
        except (OSError, EOFError):
            _end(client)


def _frame(connection: socket.socket) -> bytes:
    head = _exactly(connection, 4)
    return head + _exactly(connection, struct.unpack(">i", head)[0])


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (part := connection.recv(count - len(data))):
            raise EOFError
        data += part
    return data


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


@pytest.fixture
def kafka_proxy(bootstrap_servers: str) -> Iterator[KafkaProxy]:
    """A proxy in front of the broker."""
    proxy = KafkaProxy(bootstrap_servers)
    yield proxy
    proxy.close()
