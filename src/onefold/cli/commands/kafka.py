"""`onefold kafka`: Kafka's command-line tools, from the jars of the embedded broker."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import IO, Annotated

import typer

from onefold import jvm
from onefold.config import redaction
from onefold.config.errors import UserError
from onefold.config.settings import Settings, load
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE, USAGE
from onefold.operate import ping
from onefold.operate.progress import StageProgress
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.kafka.client import java_client_options
from onefold.stack import jars, java
from onefold.stack.broker import Broker

# All words after the tool's name are arguments of the tool.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

# The names of Kafka's scripts without "kafka-" and ".sh".
TOOLS = {
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
}
SERVER = "--bootstrap-server"
CONFIG = "--command-config"
# Includes the option names before Kafka 4.2, which the tools still accept.
_CONFIGS = (CONFIG, "--producer.config", "--consumer.config")
# Time-out of a connection to a server. A tool would retry for a minute, with a warning each second.
_CONNECT_S = 3.0
# Time-out of the answer. The operating system accepts connections even for a paused broker.
_ANSWER_S = 5.0
# A request without login: length, ApiVersions (API key 18), version 0, correlation id 0, null as the client id.
_HELLO = struct.pack(">ihhih", 10, 18, 0, 0, -1)


def command(
    tool: Annotated[str, typer.Argument(help=f"One of: {', '.join(TOOLS)}.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the tool, as they are.")] = None,
) -> None:
    """Run one of Kafka's command-line tools, as kafka-<tool>.sh. The broker's address and the login of ONEFOLD_KAFKA_OPTIONS
    and ONEFOLD_SPARK_KAFKA_... are filled in.

    Example: onefold kafka console-producer --topic runner.updates
    """
    main_class = TOOLS.get(tool.removeprefix("kafka-").removesuffix(".sh"))
    if main_class is None:
        raise UserError(Code.NAME_UNKNOWN, f"there is no tool {tool}", f"There are: {', '.join(TOOLS)}.", USAGE)
    settings = load()
    given = with_servers(arguments or [], settings.kafka)
    login = with_login(given, settings) if SERVER not in _words(arguments or []) else None
    found = java.locate(settings.cache)
    progress = StageProgress()
    paths = jars.ensure(
        "broker",
        settings.cache,
        found.executable,
        lambda done, total: progress.say(f"fetching Kafka's jars: {done} of {total}"),
    )
    progress.clear()
    if "--help" not in given:
        if SERVER not in _words(arguments or []) and not _names_config(given):
            ping.require_kafka(settings)
        check_answers(given[given.index(SERVER) + 1 :][:1])
    if login is not None:  # the tool inherits the open file
        given = [CONFIG, f"/dev/fd/{login.fileno()}", *given]  # before a verb, as `transactions` requires
    argv = Broker(settings.home / "kafka", 0, 0, found.executable, paths).tool(main_class, *given)
    if login is not None:
        argv[1:1] = flags(settings)
    os.execv(argv[0], argv)  # noqa: S606  exec, so that the tool gets the terminal and sets the exit code


def with_servers(arguments: Sequence[str], ours: Callable[[], str]) -> list[str]:
    """The arguments with the servers as a separate word after SERVER. If the arguments have none, those of `ours`."""
    given = _words(arguments)
    return given if SERVER in given else [SERVER, ours(), *given]


def _words(arguments: Sequence[str]) -> list[str]:
    return [part for word in arguments for part in (word.split("=", 1) if word.startswith(f"{SERVER}=") else [word])]


def with_login(given: Sequence[str], settings: Settings) -> IO[bytes] | None:
    """Open an unnamed file with the settings of Kafka's Java client, which may include a password. The tool inherits the file.

    Returns None if no Kafka options are set, or if the arguments name a file.
    Raises UserError (exit code 2) if a certificate or a key cannot be read.
    """
    if not (settings.librdkafka or settings.spark_kafka) or _names_config(given):
        return None
    try:
        options = java_client_options(settings.kafka(), settings.librdkafka, settings.spark_kafka)
    except Misconfigured as error:
        hint = "Correct ONEFOLD_KAFKA_OPTIONS: see `onefold docs kafka-login`."
        raise UserError(Code.KAFKA_SETTING_WRONG, str(error), hint, USAGE) from None
    # In memory on Linux. The file stays open for the tool.
    made = os.fdopen(os.memfd_create("login"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()  # noqa: SIM115
    os.fchmod(made.fileno(), 0o600)
    made.write(jvm.as_properties(options).encode("ascii"))
    made.flush()
    made.seek(0)
    os.set_inheritable(made.fileno(), True)
    return made


def _names_config(given: Sequence[str]) -> bool:
    return any(word.split("=", 1)[0] in _CONFIGS for word in given)


def flags(settings: Settings) -> list[str]:
    """Options of the JVM. Without allowed URLs, Kafka's client requests no OAuth token from the server."""
    url = {**settings.librdkafka, **settings.spark_kafka}.get("sasl.oauthbearer.token.endpoint.url")
    return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"] if url else []


def check_answers(servers: Sequence[str]) -> None:
    """Raise UserError if no server answers. Returns for a malformed address, which the tool reports."""
    for server in ",".join(servers).split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal() or int(port) >= 2**16 or _answers(host.strip("[]"), int(port)):
            return
    raise UserError(
        Code.KAFKA_SILENT,
        f"Kafka at {redaction.address(','.join(servers))} does not answer",
        "Look with `onefold status`, or start it.",
        UNAVAILABLE,
    )


def _answers(host: str, port: int) -> bool:
    """Whether the server answers or closes the connection, as a TLS listener does after a request in plain text."""
    with suppress(OSError), closing(socket.create_connection((host, port), _CONNECT_S)) as connection:
        connection.settimeout(_ANSWER_S)
        with suppress(ConnectionError):
            connection.sendall(_HELLO)
            connection.recv(1)
        return True
    return False
