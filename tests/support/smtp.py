"""A minimal mail server that keeps mails: as much of RFC 5321 as a client needs to send a mail."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message


class _Session(socketserver.StreamRequestHandler):
    server: "MailServer"

    def handle(self) -> None:
        self._say(b"220 ready")
        while line := self.rfile.readline():
            verb = line[:4].strip().upper()
            if verb == b"DATA":
                self._say(b"354 go on")
                self._take()
            elif verb == b"QUIT":
                self._say(b"221 bye")
                return
            else:
                self._say(b"250 ok")

    def _take(self) -> None:
        lines = []
        while (line := self.rfile.readline()).rstrip(b"\r\n") != b".":
            if not line:
                return  # the connection broke off, so there is no mail
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        with self.server.lock:
            self.server.mails.append(message_from_bytes(b"".join(lines)))
        self.server.taken()
        self._say(b"250 taken")

    def _say(self, line: bytes) -> None:
        self.wfile.write(line + b"\r\n")


class MailServer(socketserver.ThreadingTCPServer):
    """Mail server.

    Attributes:
        mails: accepted mails in order.
        taken: called after a mail is accepted, and before the sender gets the answer.
    """

    daemon_threads = True
    taken: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.mails: list[Message] = []
        self.lock = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of killed clients."""

    @property
    def address(self) -> str:
        host, port = self.server_address[:2]
        return f"{host!s}:{port}"


@contextmanager
def mail_server() -> Iterator[MailServer]:
    with MailServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
