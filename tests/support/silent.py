"""A fake PostgreSQL that accepts logins and never answers queries, like a paused server process."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

_ENCRYPTION = {80877103, 80877104}  # requests for TLS and for GSSAPI
_SETTINGS = {"server_version": "17.0", "client_encoding": "UTF8", "standard_conforming_strings": "on"}


class Silent:
    """Listener on a local port.

    Attributes:
        asked: startup packet of each session with an unanswered query.
    """

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.dsn = f"postgresql://nobody@127.0.0.1:{self._listener.getsockname()[1]}/none"
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error), line:
            length, code = struct.unpack("!ii", line.recv(8))
            while code in _ENCRYPTION:
                line.sendall(b"N")
                length, code = struct.unpack("!ii", line.recv(8))
            greeting = line.recv(length - 8)
            told = [f"{name}\0{value}\0".encode() for name, value in _SETTINGS.items()]
            line.sendall(
                b"R" + struct.pack("!ii", 8, 0)
                + b"".join(b"S" + struct.pack("!i", 4 + len(one)) + one for one in told)
                + b"Z" + struct.pack("!i", 5) + b"I"
            )  # fmt: skip
            while line.recv(1 << 16):
                self.asked.append(greeting)


@contextlib.contextmanager
def silent() -> Iterator[Silent]:
    made = Silent()
    try:
        yield made
    finally:
        made.close()
