"""`onefold kafka`: Kafka's own command-line tools, from the jars of the embedded broker."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Annotated

import typer

from onefold.exit_codes import UNAVAILABLE, USAGE
from onefold.operate.errors import UserError
from onefold.operate.progress import Progress
from onefold.operate.settings import load
from onefold.stack import jars, java
from onefold.stack.broker import Broker

# Everything after the tool's name is the tool's own.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

# The names of Kafka's scripts, without the "kafka-" in front and the ".sh" behind.
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
# Of one server; a tool itself would go on for a minute, with a warning a second.
_CONNECT_S = 3.0


def command(
    tool: Annotated[str, typer.Argument(help=f"One of: {', '.join(TOOLS)}.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the tool, as they are.")] = None,
) -> None:
    """Run one of Kafka's own tools against the broker, as kafka-<tool>.sh would; --bootstrap-server is filled in.

    Example: onefold kafka console-producer --topic runner.updates
    """
    main_class = TOOLS.get(tool.removeprefix("kafka-").removesuffix(".sh"))
    if main_class is None:
        raise UserError(f"there is no tool {tool}", f"There are: {', '.join(TOOLS)}.", USAGE)
    settings = load()
    given = with_servers(arguments or [], settings.kafka)
    found = java.locate(settings.cache)
    progress = Progress()
    paths = jars.ensure(
        "broker",
        settings.cache,
        found.executable,
        lambda done, total: progress.say(f"fetching Kafka's jars: {done} of {total}"),
    )
    progress.clear()
    if "--help" not in given:
        _check_answers(given[given.index(SERVER) + 1 :][:1])
    argv = Broker(settings.home / "kafka", 0, 0, found.executable, paths).tool(main_class, *given)
    os.execv(argv[0], argv)  # noqa: S606  the tool takes this process's place, and with it the terminal and the exit code


def with_servers(arguments: Sequence[str], ours: Callable[[], str]) -> list[str]:
    """The arguments with the servers as a word of its own: those that are named, in either spelling, or ours, which are asked for
    only where none are.
    """
    given = [part for word in arguments for part in (word.split("=", 1) if word.startswith(f"{SERVER}=") else [word])]
    return given if SERVER in given else [SERVER, ours(), *given]


def _check_answers(servers: Sequence[str]) -> None:
    """Raises UserError when nobody listens at any of them. What cannot be read is left to the tool."""
    for server in ",".join(servers).split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdecimal() or int(port) >= 2**16:
            return
        with suppress(OSError), closing(socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S)):
            return
    raise UserError(
        f"Kafka at {','.join(servers)} does not answer", "Look with `onefold status`, or start it.", UNAVAILABLE
    )
