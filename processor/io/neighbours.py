"""Connections from each process of a pipeline with replicas to each other one. Nothing is ever sent over them: that one ends is
all that they say.

So nobody waits for anything. The kernel takes a connection in before its process does, and keeps it for as long as the process
lives; and how one is the kernel knows.
"""

import socket
import sys
import threading
import time
from contextlib import suppress
from enum import Enum, auto
from urllib.parse import urlsplit

from onefold.processor.core.neighbours import Place

# Connections that wait until this process looks, which it does with each note that it reads; and those that it keeps, of others
# and to others. When there are more, the oldest end: who has one of those asks for another.
WAITING_MAX = 16
NEIGHBOURS_MAX = 64
# Where nobody listens any more a machine says so in far less. Whose machine says nothing for so long may live: then it is fenced,
# once, and costs itself and who has fenced it a transaction.
AGAIN_S = 0.05
# Connections that are asked for after others have ended, from one note to the next.
ASKS_MAX = 5
# A machine without power ends no connection. It is asked after 5 s, and taken for dead when it has not answered three times, or
# whoever comes after it by name would leave everything to it.
KEEPALIVE = (
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", 5),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", 1),
    ("IPPROTO_TCP", "TCP_KEEPCNT", 3),
)
# librdkafka's, where a server has none. It is only for the question which way leads there.
KAFKA_PORT = 9092


class ConnectedNeighbours:
    """See `Neighbours`. Safe to share between threads.

    Args:
        name: of this process, as the others hear it.
        servers: Kafka's, "host:port,...". It takes connections at the address from which it reaches the first of them, and at no
            other one; nowhere when there is no such address or port, or this is not Linux.
    """

    def __init__(self, name: str, servers: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._links: dict[str, _Link] = {}
        self._guests: list[socket.socket] = []
        self._listener: socket.socket | None = None
        #: Where the others can connect to this one; None: nowhere.
        self.place: Place | None = None
        # Other systems report the end of a connection in another way.
        for server in servers.split(",") if sys.platform == "linux" else ():
            with suppress(OSError, ValueError):  # the name of a server that is gone may not resolve
                self._listener = _listener(server)
                self.place = Place(*self._listener.getsockname()[:2])
                break

    def hears(self, name: str, place: Place) -> None:
        """That process says that it is there: have a connection to it."""
        with self._lock:
            self._take_guests()
            if name == self._name:
                return
            link = self._links.get(name)
            if link is None or link.place != place:
                if link is not None:
                    link.close()
                link = self._links[name] = _Link(place)
            link.connect()
            if len(self._links) > NEIGHBOURS_MAX:
                self._links.pop(next(iter(self._links))).close()

    def succeeds(self, name: str) -> Place | None:
        """Where that process was, when it has died and this one is the first by name of those that are connected and live."""
        with self._lock:
            link = self._links.get(name)
            if link is None or not link.has_died():
                return None
            is_first = not any(other < self._name and one.lives() for other, one in self._links.items())
            return link.place if is_first else None

    def close(self) -> None:
        """End all connections, and take no more."""
        with self._lock:
            if self._listener is not None:
                self._listener.close()
            for guest in self._guests:
                guest.close()
            for link in self._links.values():
                link.close()
            self._links, self._guests, self._listener = {}, [], None

    def _take_guests(self) -> None:
        """Or those that have ended wait for ever, and nobody else gets in."""
        with suppress(OSError):
            for _ in range(WAITING_MAX + 1):
                if self._listener is not None:
                    self._guests.append(self._listener.accept()[0])
        kept = [guest for guest in self._guests if _state_of(guest) is _State.CONNECTED][-NEIGHBOURS_MAX:]
        for guest in set(self._guests) - set(kept):
            guest.close()
        self._guests = kept


class _State(Enum):
    """Of a connection, as the kernel has it."""

    BEGUN = auto()
    CONNECTED = auto()
    ENDED = auto()  # it was connected
    FAILED = auto()


class _Link:
    """The connection to one process. It is looked at, and never waited for."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._socket: socket.socket | None = None
        self._connected = False
        self._died = False
        # A connection has ended, and when there is no other one by then, it has died.
        self._doubt_until: float | None = None
        self._asks_left = ASKS_MAX

    def connect(self) -> None:
        """Unless it is, or is about to be."""
        self._asks_left = ASKS_MAX
        if self._socket is None:
            if self._doubt_until is not None:
                self._doubt_until = time.monotonic() + AGAIN_S
            self._begin()
        self._look()

    def lives(self) -> bool:
        """Whether it is connected, or may be again."""
        self._look()
        return self._connected or (self._doubt_until is not None and not self._died)

    def has_died(self) -> bool:
        """Whether it was connected, and has not taken a connection since that ended."""
        self._look()
        return self._died

    def close(self) -> None:
        """Have no connection."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._connected = None, False

    def _begin(self) -> None:
        # Of whom there is no way to, or no descriptor for, it is not seen that it dies: it is missed after a while.
        with suppress(OSError):
            family = socket.AF_INET6 if ":" in self.place.host else socket.AF_INET
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            for level, option, value in KEEPALIVE:
                self._socket.setsockopt(getattr(socket, level), getattr(socket, option), value)
            self._socket.connect_ex(self.place)

    def _look(self) -> None:
        self._note()
        # Not in every look: who takes each connection and ends it would be asked without end. Nor once: a process that is killed
        # may end its connections a moment before it takes no more.
        if self._socket is None and self._doubt_until is not None and not self._died and self._asks_left:
            self._asks_left -= 1
            self._begin()
            self._note()
        if self._doubt_until is not None and time.monotonic() > self._doubt_until:
            self._died = True

    def _note(self) -> None:
        """What has become of the connection."""
        if self._socket is None:
            return
        state = _state_of(self._socket)
        if state is _State.CONNECTED:
            self._connected, self._died, self._doubt_until = True, False, None
        elif state is _State.FAILED:
            # Nobody listens there any more.
            self._died = self._died or self._connected or self._doubt_until is not None
            self.close()
        elif state is _State.ENDED:
            # What lies between two processes may end a connection that is not used, and both live.
            self._doubt_until = time.monotonic() + AGAIN_S if self._asks_left else None
            self.close()


def _listener(server: str) -> socket.socket:
    """At the address from which this machine reaches a server of Kafka, where its other clients are to be found as well."""
    parts = urlsplit("//" + server.strip().rpartition("://")[2])
    if not parts.hostname:
        raise ValueError(f"{server} has no name of a server")
    family, _, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or KAFKA_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as route:
        route.connect(address)  # of datagrams it only looks where they would go
        here = route.getsockname()[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((here, 0))
        listener.listen(WAITING_MAX)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _state_of(connection: socket.socket) -> _State:
    try:
        if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            return _State.ENDED
    except BlockingIOError:
        pass
    except ConnectionResetError:
        return _State.ENDED
    except OSError:
        return _State.FAILED
    try:
        connection.getpeername()
    except OSError:
        return _State.BEGUN
    return _State.CONNECTED
