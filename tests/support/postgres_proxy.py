"""A proxy between the sink and Postgres that can lose a COMMIT, or its answer.

It understands one thing of the protocol: the bytes of a COMMIT that psycopg sends on its own.
"""

import select
import socket
import threading
from typing import Literal

from psycopg import conninfo

Loss = Literal["request", "answer"]

# How a statement without parameters ends on the wire.
_COMMIT = b"COMMIT\0"


class PostgresProxy:
    """Forwards everything until it is told to lose the next COMMIT: its request (it never happens) or its answer (it
    has happened, and nobody was told)."""

    def __init__(self, dsn: str) -> None:
        parts = conninfo.conninfo_to_dict(dsn)
        self._upstream = (str(parts.get("host", "127.0.0.1")), int(parts.get("port") or 5432))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.dsn = conninfo.make_conninfo(
            dsn, host="127.0.0.1", port=self._server.getsockname()[1], gssencmode="disable", sslmode="disable"
        )
        self._lose: Loss | None = None
        self.lost = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_commit(self, what: Loss) -> None:
        """From now on, once."""
        self.lost.clear()
        self._lose = what

    def close(self) -> None:
        """Take no more connections."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            upstream = socket.create_connection(self._upstream)
            threading.Thread(target=self._forward, args=(client, upstream), daemon=True).start()

    def _forward(self, client: socket.socket, upstream: socket.socket) -> None:
        with client, upstream:
            while True:
                for source in select.select([client, upstream], [], [])[0]:
                    data = source.recv(1 << 16)
                    if not data or (source is client and self._loses(data, upstream)):
                        return
                    (upstream if source is client else client).sendall(data)

    def _loses(self, request: bytes, upstream: socket.socket) -> bool:
        if self._lose is None or _COMMIT not in request:
            return False
        if self._lose == "answer":
            upstream.sendall(request)
            upstream.recv(1 << 16)  # it has answered: it has committed
        self._lose = None
        self.lost.set()
        return True
