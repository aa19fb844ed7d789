"""Proxies that lose, delay or slow data between a client and a server, by knowledge of the protocol.

`KafkaProxy` holds one request and delivers it late, like a network with a slow path. `PostgresProxy` loses a COMMIT, or the
answer to a COMMIT.
"""

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

import pytest
from psycopg import conninfo

#: API keys of requests, from Kafka's protocol.
FETCH, LIST_OFFSETS = 1, 2
JOIN_GROUP, HEARTBEAT = 11, 12
END_TXN = 26
#: Lost part of a COMMIT: the request (no commit happens) or the answer (the commit happens without notice).
Loss = Literal["request", "answer"]
# End of a statement without parameters in PostgreSQL's protocol.
_COMMIT = b"COMMIT\0"
_CHUNK = 1 << 16
# Partition in an answer about a first or last offset: number, no error, no timestamp.
_OFFSET_OF = re.compile(rb"(\0\0\0.)\0\0(?=\xff{8})", re.DOTALL)
# Protocol version at the start of a session.
_VERSION = struct.pack(">HH", 3, 0)
# Session parameters that PgBouncer tracks itself.
_POOLED = (b"user", b"database", b"application_name", b"client_encoding")

Hook = Callable[[bytes, socket.socket], bytes]


class Cut(Exception):
    """Ends this connection for both sides."""


class Proxy:
    """Listens on a port, and forwards all data in pieces.

    The methods `request` and `answer` get a piece and the connection to the server, and return the data to forward. `Cut`
    ends the connection for both sides.
    """

    def __init__(self, host: str, port: int) -> None:
        self.upstream = (host, port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def piece(self, connection: socket.socket) -> bytes:
        """Read one piece. Raises EOFError at the end."""
        if not (data := connection.recv(_CHUNK)):
            raise EOFError
        return data

    def request(self, piece: bytes, upstream: socket.socket) -> bytes:
        """Handle a piece for the server."""
        return piece

    def answer(self, piece: bytes, upstream: socket.socket) -> bytes:
        """Handle a piece for the client."""
        return piece

    def close(self) -> None:
        """Close the listening port."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                upstream = socket.create_connection(self.upstream)
            except OSError:  # the server is gone, so the client's connection ends too
                client.close()
                continue
            for source, target, hook in ((client, upstream, self.request), (upstream, client, self.answer)):
                threading.Thread(target=self._forward, args=(source, target, hook, upstream), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, hook: Hook, upstream: socket.socket) -> None:
        try:
            while True:
                target.sendall(hook(self.piece(source), upstream))
        except (OSError, EOFError, Cut):
            for connection in (source, target):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class FreezingProxy(Proxy):
    """Forwards everything until paused. Then both sides wait, and connections end only when the proxy is closed."""

    def __init__(self, host: str, port: int) -> None:
        self.passes = threading.Event()
        self.passes.set()
        self._closed = False
        super().__init__(host, port)

    def request(self, piece: bytes, upstream: socket.socket) -> bytes:
        self.passes.wait()
        if self._closed:
            raise Cut
        return piece

    def close(self) -> None:
        """Close the port and end waiting connections, because PostgreSQL waits for a session in login."""
        self._closed = True
        self.passes.set()
        super().close()


class KafkaProxy(Proxy):
    """Kafka proxy, which replaces the broker's address in answers, so that clients stay behind the proxy."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, port = bootstrap_servers.split(":")
        self._hold: int | None = None
        self._held: tuple[socket.socket, bytes] | None = None
        self.held = threading.Event()
        self._bytes_per_s: float | None = None
        self._lost: frozenset[int] = frozenset()
        self._unanswered: frozenset[int] = frozenset()
        self._never = threading.Event()
        self._offsets_failing = 0
        self._offsets_error = b""
        self._offsets_asked: set[tuple[socket.socket, bytes]] = set()
        super().__init__(host, int(port))
        self.bootstrap_servers = f"{host}:{self.port}"
        self._theirs = host.encode() + struct.pack(">i", int(port))
        self._ours = host.encode() + struct.pack(">i", self.port)

    def hold(self, api_key: int) -> None:
        """Hold the next request of this kind, and drop the client's connection; the client sends the request again."""
        self._hold = api_key

    def release(self) -> bytes:
        """Send the held request, and return the broker's answer."""
        assert self._held is not None, "nothing was held"
        upstream, frame = self._held
        upstream.sendall(frame)
        return self.piece(upstream)

    def lose(self, *api_keys: int) -> None:
        """From now on, drop the connection instead of forwarding such a request."""
        self._lost = frozenset(api_keys)

    def lose_answers(self, *api_keys: int) -> None:
        """From now on, forward such a request, and drop the connection instead of the answer."""
        self._unanswered = frozenset(api_keys)

    def fail_offsets(self, error: int, times: int) -> None:
        """Put an error into the next answers about first or last offsets."""
        self._offsets_failing, self._offsets_error = times, struct.pack(">h", error)

    def slow(self, bytes_per_s: float | None) -> None:
        """From now on, delay requests to this rate; None: no delay."""
        self._bytes_per_s = bytes_per_s

    def piece(self, connection: socket.socket) -> bytes:
        """Read one request, or one answer."""
        head = _exactly(connection, 4)
        return head + _exactly(connection, struct.unpack(">i", head)[0])

    def request(self, piece: bytes, upstream: socket.socket) -> bytes:
        """Hold, lose or delay a request."""
        api_key = struct.unpack(">h", piece[4:6])[0]
        if api_key in self._unanswered:
            with socket.create_connection(self.upstream) as beside:
                beside.sendall(piece)
                self.piece(beside)
        if api_key in self._lost | self._unanswered:
            raise Cut
        if api_key == self._hold:
            # A second connection to the broker carries the held request.
            self._hold = None
            self._held = (socket.create_connection(self.upstream), piece)
            self.held.set()
            raise Cut
        if api_key == LIST_OFFSETS and self._offsets_failing:
            self._offsets_failing -= 1
            self._offsets_asked.add((upstream, piece[8:12]))
        if self._bytes_per_s:
            self._never.wait(len(piece) / self._bytes_per_s)
        return piece

    def answer(self, piece: bytes, upstream: socket.socket) -> bytes:
        """Replace the broker's address by the proxy's."""
        if (upstream, piece[4:8]) in self._offsets_asked:
            self._offsets_asked.discard((upstream, piece[4:8]))
            piece = _OFFSET_OF.sub(rb"\1" + self._offsets_error, piece)
        return piece.replace(self._theirs, self._ours)


class PostgresProxy(Proxy):
    """Forwards everything, except a COMMIT to lose."""

    def __init__(self, dsn: str) -> None:
        parts = conninfo.conninfo_to_dict(dsn)
        self._lose: Loss | None = None
        self._committing: socket.socket | None = None
        self.lost = threading.Event()
        super().__init__(str(parts.get("host", "127.0.0.1")), int(parts.get("port") or 5432))
        self.dsn = conninfo.make_conninfo(
            dsn, host="127.0.0.1", port=self.port, gssencmode="disable", sslmode="disable"
        )

    def lose_next_commit(self, what: Loss) -> None:
        """Lose the next COMMIT, once."""
        self.lost.clear()
        self._lose = what

    def request(self, piece: bytes, upstream: socket.socket) -> bytes:
        """Forward a request, unless it is a COMMIT to lose."""
        if self._lose is None or _COMMIT not in piece:
            return piece
        lose, self._lose = self._lose, None
        if lose == "request":
            self.lost.set()
            raise Cut
        self._committing = upstream
        return piece

    def answer(self, piece: bytes, upstream: socket.socket) -> bytes:
        """Forward an answer, unless its COMMIT, now committed, has an answer to lose."""
        if upstream is self._committing:
            self._committing = None
            self.lost.set()
            raise Cut
        return piece


class PoolerProxy(Proxy):
    """Starts sessions like a pooler that ignores options: with user and database only."""

    def __init__(self, dsn: str) -> None:
        parts = conninfo.conninfo_to_dict(dsn)
        super().__init__(str(parts.get("host", "127.0.0.1")), int(parts.get("port") or 5432))
        self.dsn = conninfo.make_conninfo(
            dsn, host="127.0.0.1", port=self.port, gssencmode="disable", sslmode="disable"
        )

    def request(self, piece: bytes, upstream: socket.socket) -> bytes:
        """Filter a startup packet: length, protocol version, and pairs of texts."""
        if piece[:8] != struct.pack(">I", len(piece)) + _VERSION:
            return piece
        words = piece[8:].rstrip(b"\0").split(b"\0")
        kept = [word for pair in zip(words[::2], words[1::2], strict=True) if pair[0] in _POOLED for word in pair]
        body = piece[4:8] + b"".join(word + b"\0" for word in kept) + b"\0"
        return struct.pack(">I", len(body) + 4) + body


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (part := connection.recv(count - len(data))):
            raise EOFError
        data += part
    return data


@pytest.fixture
def kafka_proxy(bootstrap_servers: str) -> Iterator[KafkaProxy]:
    """A proxy in front of the broker."""
    proxy = KafkaProxy(bootstrap_servers)
    yield proxy
    proxy.close()


@pytest.fixture
def postgres_proxy(database: str) -> Iterator[PostgresProxy]:
    """A proxy in front of the test's database."""
    proxy = PostgresProxy(database)
    yield proxy
    proxy.close()
