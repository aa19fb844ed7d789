"""The Kafka clients of every service and command, and the reason of a failed connection.

librdkafka raises the same time-out for a wrong password, a refused certificate and a dead broker. librdkafka passes the reason
only to `error_cb`, and reports no reason for a wrong protocol. `trouble` connects again and finds the reason.
"""

from __future__ import annotations

import gc
import re
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold import kafka_ask
from onefold.error_codes import Code
from onefold.kafka_probe import LOGIN, START, probe
from onefold.kafka_probe import Trouble as Trouble  # what every caller handles

#: librdkafka's codes for an unusable cluster, without the reason.
UNREACHABLE = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
)
#: Kafka's codes for a missing right of the client.
FORBIDDEN = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
)

#: The remedy for a missing right.
ALLOW = "Allow it with an ACL: `onefold acls` prints those of each service. Or log in as another user."

# A close takes milliseconds, or some seconds if the coordinator has just died.
_LEAVE_S = 15.0
# A running broker answers in milliseconds, and refuses a login within a second.
_ANSWER_S = (0.5, 1.5, 3.0)
# Tasks often fail at the same moment for the same reason, so the result is cached.
_CACHED_S = 1.0

_BROKER = re.compile(r"(?:\w+://)?(?P<host>[^/\s]+):(?P<port>\d+)/(?P<node>\w+): (?P<reason>.*)", re.DOTALL)
_BOOTSTRAP = "/bootstrap"  # librdkafka's suffix for the names of the user's addresses
_DEFAULT_PORT = 9092  # librdkafka's default
_STATE = re.compile(r" \(after \d+ms in state .*", re.DOTALL)

# The settings of a consumer with manually assigned partitions.
_READS = {
    # librdkafka requires the name of a group. The consumer does not join the group, and commits no offsets.
    "group.id": "onefold",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # If the next offset is gone, the consumer reports an error and does not jump.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "check.crcs": True,
}


# After the delivery of the last response, which takes milliseconds, librdkafka's thread runs no Python code.
_ANSWERED_S = 1.0


class Admin(AdminClient):
    """An admin client with its settings.

    Attributes:
        settings: The settings passed to `admin`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        super().__init__(_quiet(settings))

    def __del__(self) -> None:
        """Move the release of the client out of librdkafka's threads, in which librdkafka would abort the process.

        The garbage collector may run in a thread of librdkafka that delivers a late response, if the traceback of an error
        referenced the client. Python did not start this thread, so its name begins with "Dummy-".
        """
        if threading.current_thread().name.startswith("Dummy-"):
            with suppress(RuntimeError):  # the interpreter is shutting down
                threading.Thread(target=_let_go, args=([self],), name="free", daemon=True).start()


def _let_go(clients: list[Admin]) -> None:
    """Free clients and their reference cycles in this thread, after their own threads have delivered the last responses."""
    time.sleep(_ANSWERED_S)
    clients.clear()
    gc.collect()


def admin(settings: Mapping[str, Any]) -> Admin:
    """Create an admin client. Raises `KafkaException` if librdkafka refuses a setting."""
    return _known(Admin(settings), settings)


class _Reader(Consumer):
    """A consumer that joins no group.

    An error among its records ends the reading. librdkafka itself retries while a leader moves, and reports a dead broker to
    `error_cb`. librdkafka never marks an error of a record as retriable.

    librdkafka still requests the group's coordinator, which needs the right to describe the group. This class hides the refusal
    that librdkafka reports among the records.
    """

    def poll(self, timeout: float = -1) -> Message | None:
        """The next record or error."""
        until = time.monotonic() + timeout
        message = super().poll(timeout)
        while message is not None and _is_of_group(message):
            message = super().poll(timeout if timeout < 0 else max(0.0, until - time.monotonic()))
        return message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """The next records and errors."""
        found: list[Message] = super().consume(num_messages, timeout)
        return [message for message in found if not _is_of_group(message)] if any(map(Message.error, found)) else found


def _is_of_group(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def consumer(settings: Mapping[str, Any]) -> Consumer:
    """Create a consumer of committed records with manually assigned partitions, which reports an error at a deleted offset.

    `settings` may override these properties. Raises `KafkaException` if librdkafka refuses a setting.
    """
    return _known(_Reader(_quiet({**_READS, **settings})), settings)


def member(settings: Mapping[str, Any]) -> Consumer:
    """Create a consumer that joins its group. Raises `KafkaException` if librdkafka refuses a setting."""
    return _known(_Member(_quiet(settings)), settings)


def leave(consumer: Consumer, patience_s: float = _LEAVE_S) -> bool:
    """Close a member of a group. Returns whether the close finished.

    librdkafka may never return: a rebalance during the close waits for an already ended thread (`rd_kafka_rebalance_protocol`).
    The consumer then remains open, and the group removes the member after its session timeout.
    """
    failed: list[BaseException] = []

    def close() -> None:
        try:
            consumer.close()
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread, also for errors of callbacks
            failed.append(error)

    closing = threading.Thread(target=close, name="leaves its group", daemon=True)
    closing.start()
    closing.join(patience_s)
    if failed:
        raise failed[0]
    return not closing.is_alive()


def producer(settings: Mapping[str, Any], **more: Any) -> Producer:
    """Create a producer. `more` has keyword arguments of confluent-kafka. Raises `KafkaException` as in `admin`."""
    return _known(_Producer(_quiet(settings), **more), settings)


class _Member(Consumer):
    """A Python class, for weak references."""


class _Producer(Producer):
    """A Python class, for weak references."""


# The clients of this process, and the present user and password for each user name in settings.
_clients: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_logins: dict[str, tuple[str, str]] = {}
_login_lock = threading.Lock()
_C = TypeVar("_C")


def log_in(first: str, user: str, password: str) -> None:
    """Change the user and the password for later logins of all clients with the user `first` in their settings."""
    with _login_lock:
        _logins[first] = user, password
        for client, name in _clients.items():
            if name == first:
                with suppress(RuntimeError):  # the client is closed
                    client.set_sasl_credentials(user, password)


def _known(client: _C, settings: Mapping[str, Any]) -> _C:
    """Register a client for `log_in`."""
    if user := settings.get("sasl.username"):
        with _login_lock:
            _clients[client] = str(user)
    return client


def _quiet(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the present login, and with an `error_cb`, because librdkafka would else write errors to stderr."""
    login = _logins.get(str(settings.get("sasl.username")))
    changed = dict(zip(("sasl.username", "sasl.password"), login, strict=True)) if login else {}
    return {"log_level": 0, "error_cb": _ignore, **settings, **changed}


def _ignore(error: KafkaError) -> None:
    pass


def identity(settings: Mapping[str, Any]) -> str:
    """The user of a client with these settings, for a sentence."""
    if user := settings.get("sasl.username"):
        return f"user {user}"
    certified = any(
        name in settings for name in ("ssl.certificate.location", "ssl.certificate.pem", "ssl.keystore.location")
    )
    return "the user of this client's certificate" if certified else "this client's user"


def undescribable(client: AdminClient, topics: Iterable[str], timeout_s: float) -> list[str]:
    """The topics without a right of the client to describe them. A list of all topics omits these topics.

    Raises:
        KafkaException: Kafka does not answer.
    """
    names = [*dict.fromkeys(topics)]
    if not names:
        return []
    found = []
    for name, asked in kafka_ask.describe_topics(client, names, timeout_s)().items():
        try:
            asked.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found.append(name)
            elif code in UNREACHABLE:
                raise
    return found


def unwritable(client: AdminClient, topics: Iterable[str], timeout_s: float) -> list[str]:
    """The topics without a right of the client to write; [] also if Kafka does not answer."""
    names = [*dict.fromkeys(topics)]
    found = []
    for name, asked in kafka_ask.describe_topics(client, names, timeout_s, operations=True)().items() if names else ():
        try:
            allowed = asked.result().authorized_operations
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found.append(name)
        else:
            if AclOperation.WRITE not in (allowed or ()):
                found.append(name)
    return found


def cannot_describe(client: AdminClient, topics: Iterable[str]) -> Trouble:
    """The trouble of `undescribable` topics."""
    names = ", ".join(topics)
    settings = client.settings if isinstance(client, Admin) else {}
    return Trouble(
        Code.KAFKA_RIGHT,
        f"{identity(settings)} has no right to describe {names} in Kafka, which does not say whether it exists",
        ALLOW,
        refused=True,
    )


def forbidden(error: KafkaError, settings: Mapping[str, Any]) -> Trouble:
    """The trouble of a client without a right, from an error of `FORBIDDEN` with no further details."""
    return Trouble(
        Code.KAFKA_RIGHT,
        f"Kafka refuses {identity(settings)} a right: {error.str()}",
        ALLOW,
        refused=True,
    )


def cannot(settings: Mapping[str, Any], what: str) -> Trouble:
    """The trouble of a client without the right to `what`, for instance "read orders.events"."""
    return Trouble(Code.KAFKA_RIGHT, f"{identity(settings)} has no right to {what} in Kafka", ALLOW, refused=True)


_lock = threading.Lock()
_cache: dict[tuple[tuple[str, str], ...], tuple[float, Trouble | None]] = {}


def explain(error: KafkaError, client: AdminClient | Mapping[str, Any]) -> Trouble | None:
    """The reason of a failed call; None if the error is not in `UNREACHABLE`, or without a reason.

    Args:
        client: A client from `admin`, or the settings of any client.
    """
    settings = client.settings if isinstance(client, Admin) else client
    return trouble(settings) if error.code() in UNREACHABLE and isinstance(settings, Mapping) else None


def trouble(settings: Mapping[str, Any]) -> Trouble | None:
    """Connect a new client with these settings, and return the reason of a failure; None if the client works. Takes seconds."""
    own = {name: value for name, value in settings.items() if name not in ("error_cb", "logger", "log_level")}
    key = tuple(sorted((name, str(value)) for name, value in own.items()))
    with _lock:
        at, found = _cache.get(key, (0.0, None))
        if not at or time.monotonic() - at > _CACHED_S:
            found = _connect(own)
            _cache.clear()
            _cache[key] = time.monotonic(), found
    return found


def _connect(settings: Mapping[str, Any]) -> Trouble | None:
    """Connect as the clients do, and find the reason of a failure."""
    heard: dict[str, KafkaError] = {}
    servers = [server.strip() for server in str(settings["bootstrap.servers"]).split(",") if server.strip()]

    if "@" in settings["bootstrap.servers"]:  # the sentence omits the address, which may contain a password
        sentence = (
            "an address of Kafka has an account in front of its host, which a client takes for a part of the name"
        )
        remedy = "Give sasl.username and sasl.password in ONEFOLD_KAFKA_OPTIONS instead."
        return Trouble(Code.SETTING_WRONG, sentence, remedy, refused=True)

    def hear(error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            heard[error.str().partition(": ")[0]] = error

    try:
        client = admin({**settings, "error_cb": hear})
    except KafkaException as error:
        sentence = f"the Kafka settings cannot be used: {error.args[0].str()}"
        return Trouble(Code.KAFKA_SETTING_WRONG, sentence, "Correct ONEFOLD_KAFKA_OPTIONS.", refused=True)
    found = None
    looked_at: dict[str, Trouble | None] = {}
    for seconds in _ANSWER_S:
        try:
            brokers = client.list_topics(timeout=seconds).brokers.values()
        except KafkaException:
            client.poll(0)
        else:
            return _of_advertised(settings, [(one.id, str(one.host), one.port) for one in brokers])
        found = _of_bootstrap(settings, servers, heard.values(), looked_at)
        if found is not None and (found.refused or sum(_BOOTSTRAP in name for name in heard) >= len(servers)):
            break
    return found or Trouble(Code.KAFKA_SILENT, f"Kafka at {','.join(servers)} does not answer", START, refused=False)


def _of_bootstrap(
    settings: Mapping[str, Any],
    servers: Iterable[str],
    heard: Iterable[KafkaError],
    looked_at: dict[str, Trouble | None],
) -> Trouble | None:
    """The trouble with the user's addresses. A refusal takes precedence over a missing response.

    Args:
        looked_at: The result for each probed address. Each address is probed once, because a missing response costs seconds.
    """
    found = [_told(error, settings) for error in heard]
    if not any(one.refused for one in found):
        for server in servers:
            if server not in looked_at:
                host, port = _address(server)
                looked_at[server] = probe(settings, f"Kafka at {host}:{port}", host, port)
        found = [*(one for one in looked_at.values() if one is not None), *found]
    return next((one for one in found if one.refused), next(iter(found), None))


def _address(server: str) -> tuple[str, int]:
    """The host and the port of a bootstrap server, parsed as in librdkafka."""
    host, _, port = server.rpartition("://")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else (server, _DEFAULT_PORT)


def _of_advertised(settings: Mapping[str, Any], nodes: Sequence[tuple[int, str, int]]) -> Trouble | None:
    """The trouble with the advertised addresses of the cluster."""
    servers = settings["bootstrap.servers"]
    found = [
        probe(settings, f"Kafka at {servers} advertises broker {number} as {host}:{port}, which", host, port)
        for number, host, port in nodes
    ]
    first = next((one for one in found if one is not None), None)
    return first and replace(first, partial=None in found)


def _told(error: KafkaError, settings: Mapping[str, Any]) -> Trouble:
    """The trouble from an error of librdkafka."""
    text = _STATE.sub("", error.str())
    match = _BROKER.fullmatch(text)
    if match is None:  # for instance a missing token of an OAuth server
        return Trouble(Code.KAFKA_LOGIN, f"Kafka cannot be used: {text}", LOGIN, refused=False)
    host, port, node, reason = match.group("host", "port", "node", "reason")
    broker = f"Kafka at {host}:{port}"
    if error.code() == KafkaError._AUTHENTICATION and "current SASL state" not in reason:
        return Trouble(Code.KAFKA_LOGIN, f"{broker} refuses {identity(settings)}: {reason}", LOGIN, refused=True)
    if " alert " in reason:
        sentence = f"{broker} refuses this client in the TLS handshake: {reason}"
        return Trouble(
            Code.KAFKA_LOGIN, sentence, "Give a valid client certificate in ONEFOLD_KAFKA_OPTIONS.", refused=True
        )
    if f"/{node}" != _BOOTSTRAP:
        broker = f"Kafka at {settings['bootstrap.servers']} advertises broker {node} as {host}:{port}, which"
        if (found := probe(settings, broker, host, int(port))) is not None:
            return found
    return Trouble(Code.KAFKA_SILENT, f"{broker} does not answer: {reason}", START, refused=False)
