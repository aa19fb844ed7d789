"""Pause pipelines and end their pauses, for the verbs; and which are paused, for those who look."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from onefold import pauses
from onefold.operate import pipelines
from onefold.operate.dead_letters.letters import said
from onefold.operate.settings import Settings
from onefold.pauses import Pause, Pauses

# Pauses are read at once. So long is waited for a topic that has no leader.
_LOOK_S = 3.0


def pause(names: Sequence[str], settings: Settings, reason: str) -> dict[str, Pause]:
    """Pause these pipelines; a pause that is there already stays. Returns the pause of each.

    Raises:
        UserError: a pipeline is unknown, Kafka does not answer, or refuses.
    """
    paused = of_all(settings, names)
    for name in names:
        if name not in paused:
            paused[name] = Pause(round(time.time() * 1000), _whoami(), reason)
            _write(name, paused[name], settings)
    return paused


def resume(names: Sequence[str], settings: Settings) -> list[str]:
    """End the pauses of these pipelines. Returns those that were paused. Raises as `pause`."""
    paused = list(of_all(settings, names))
    for name in paused:
        _write(name, None, settings)
    return paused


def of_all(settings: Settings, names: Sequence[str] | None = None) -> dict[str, Pause]:
    """The pauses of these pipelines, of all by default; without those that Kafka does not show.

    Raises:
        UserError: as `settings.client`.
    """
    wanted = list(pipelines.found().pipelines) if names is None else pipelines.checked(names)
    return pauses.now(settings.client(), wanted, _LOOK_S)


class Watch:
    """Looks again and again, with one client."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: dict[str, str] = {}
        self._names: list[str] = []
        self._pauses: Pauses | None = None

    def look(self) -> dict[str, Pause]:
        """The pauses of all pipelines, as far as they are known."""
        client, names = self._settings.client(), [*pipelines.found().pipelines]
        if self._pauses is None or (client, names) != (self._client, self._names):
            if self._pauses is not None:
                self._pauses.close()
            self._client, self._names, self._pauses = client, names, Pauses(client, names)
        self._pauses.look()
        return {name: pause for name in names if (pause := self._pauses.of(name)) is not None}


def as_data(pause: Pause) -> dict[str, object]:
    """A pause for a program."""
    return {"at_ms": pause.at_ms, "by": pause.by, "reason": pause.reason}


def _write(name: str, pause: Pause | None, settings: Settings) -> None:
    from onefold.processor.io import admin

    client = settings.usable_client()
    with said(client):
        admin.write_pause(name, pause, client)


def _whoami() -> str:
    with suppress(OSError, KeyError):  # a container may run as a number without a name
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return socket.gethostname()
