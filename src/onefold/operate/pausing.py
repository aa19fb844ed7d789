"""Pause and resume pipelines for the commands, and list the paused pipelines."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from onefold import pauses
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE
from onefold.names import pauses_topic
from onefold.operate import pipelines
from onefold.operate.dead_letters.letters import said
from onefold.pauses import Pause, Pauses

# Pauses are read at once. For a topic without a leader the reader waits: briefly for display, longer for commands that need the
# answer.
_LOOK_S, _KNOWN_S = 3.0, 20.0


def pause(names: Sequence[str], settings: Settings, reason: str) -> dict[str, Pause]:
    """Pause these pipelines; an existing pause stays. Returns the pause of each.

    Raises:
        UserError: a pipeline is unknown, or Kafka does not answer or refuses.
    """
    paused = known(settings, names)
    for name in names:
        if name not in paused:
            paused[name] = Pause(round(time.time() * 1000), whoami(), reason)
            _write(name, paused[name], settings)
    return paused


def resume(names: Sequence[str], settings: Settings) -> list[str]:
    """End the pauses of these pipelines. Returns the pipelines that were paused. Raises as `pause`."""
    paused = list(known(settings, names))
    for name in paused:
        _write(name, None, settings)
    return paused


def of_all(settings: Settings) -> dict[str, Pause]:
    """The pauses of all pipelines, without pauses that Kafka does not return in time. Raises UserError as `settings.client`."""
    return pauses.now(settings.client(), pipelines.found().pipelines, _LOOK_S)[0]


def is_paused(settings: Settings, name: str) -> bool:
    """Whether a pipeline is paused, as far as Kafka answers in time."""
    return name in pauses.now(settings.usable_client(), [name], _LOOK_S)[0]


def known(settings: Settings, names: Sequence[str]) -> dict[str, Pause]:
    """The pauses of these pipelines. Raises UserError: Kafka does not show whether a pipeline is paused."""
    found, unknown = pauses.now(settings.usable_client(), pipelines.checked(names), _KNOWN_S)
    if unknown:
        raise UserError(
            Code.KAFKA_SILENT,
            f"Kafka does not say whether {unknown[0]} is paused: {pauses_topic(unknown[0])} cannot be read to its end",
            "Run it again. `onefold status` says whether Kafka answers.",
            UNAVAILABLE,
        )
    return found


class Watch:
    """Reads the pauses repeatedly with one client."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: dict[str, str] = {}
        self._names: list[str] = []
        self._pauses: Pauses | None = None

    def look(self) -> dict[str, Pause]:
        """The pauses of all pipelines, as far as known."""
        client, names = self._settings.client(), [*pipelines.found().pipelines]
        if self._pauses is None or (client, names) != (self._client, self._names):
            if self._pauses is not None:
                self._pauses.close()
            self._client, self._names, self._pauses = client, names, Pauses(client, names)
        self._pauses.look()
        return {name: pause for name in names if (pause := self._pauses.of(name)) is not None}


def as_data(pause: Pause) -> dict[str, object]:
    """A pause as JSON data."""
    return {"at_ms": pause.at_ms, "by": pause.by, "reason": pause.reason}


def _write(name: str, pause: Pause | None, settings: Settings) -> None:
    from onefold.processor.io import admin

    client = settings.usable_client()
    with said(client):
        admin.write_pause(name, pause, client, settings.replication())


def whoami() -> str:
    """The user and the host, as `ada@laptop`."""
    with suppress(OSError, KeyError):  # a container's user may be a number without a name
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return socket.gethostname()
