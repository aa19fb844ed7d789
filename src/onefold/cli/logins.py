"""Logins that change in the files of ONEFOLD_KAFKA_OPTIONS_FILE and ONEFOLD_POSTGRES_DSN_FILE while a service runs."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from onefold.config.errors import UserError
from onefold.config.settings import Settings, load

if TYPE_CHECKING:
    from onefold.spark_sink.query_config import Logins

log = structlog.get_logger()

_LOOK_AGAIN_S = 5.0
_NAMES = ("sasl.username", "sasl.password")


def follow(settings: Settings) -> None:
    """Watch the file in a thread: the process's Kafka clients use a changed user and password at the next login."""
    if settings.kafka_options_file and settings.librdkafka.get("sasl.password"):
        threading.Thread(target=_follow, args=(Login(settings),), name="login", daemon=True).start()


def now(before: Logins) -> Logins:
    """The present logins in the files; `before` if a file is unusable, because the file may be half written."""
    from onefold.spark_sink.query_config import Logins

    with suppress(UserError):
        found = load()
        return Logins(found.librdkafka, found.postgres())
    return before


def _follow(login: Login) -> None:
    while True:
        time.sleep(_LOOK_AGAIN_S)
        login.look()


class Login:
    """The last known user and password in Kafka."""

    def __init__(self, settings: Settings) -> None:
        self._first = settings.librdkafka["sasl.username"]
        self._known = [settings.librdkafka[name] for name in _NAMES]

    def look(self) -> None:
        """Read the file again. Ignores an unusable file, which may be half written."""
        from onefold import kafka_client

        try:
            options = load().librdkafka
        except UserError:
            return
        found = [options.get(name, "") for name in _NAMES]
        if found != self._known and all(found):
            self._known = found
            kafka_client.log_in(self._first, *found)
            log.info("new login in Kafka", user=found[0])
