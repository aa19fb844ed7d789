"""Logins that change while a service runs, in the files of ONEFOLD_KAFKA_OPTIONS_FILE and ONEFOLD_POSTGRES_DSN_FILE."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from onefold.config.errors import UserError
from onefold.config.settings import Settings, load

if TYPE_CHECKING:
    from onefold.spark_sink.plan import Logins

log = structlog.get_logger()

_LOOK_AGAIN_S = 5.0
_NAMES = ("sasl.username", "sasl.password")


def follow(settings: Settings) -> None:
    """From now on, log the Kafka clients of this process in as the file says, at their next login."""
    if settings.kafka_options_file and settings.librdkafka.get("sasl.password"):
        threading.Thread(target=_follow, args=(Login(settings),), name="login", daemon=True).start()


def now(before: Logins) -> Logins:
    """The logins as the files have them now; the ones before if a file cannot be used, which may be half written."""
    from onefold.spark_sink.plan import Logins

    with suppress(UserError):
        found = load()
        return Logins(found.librdkafka, found.postgres())
    return before


def _follow(login: Login) -> None:
    while True:
        time.sleep(_LOOK_AGAIN_S)
        login.look()


class Login:
    """User and password, as they were read last."""

    def __init__(self, settings: Settings) -> None:
        self._first = settings.librdkafka["sasl.username"]
        self._known = [settings.librdkafka[name] for name in _NAMES]

    def look(self) -> None:
        """Read the file again. A file that cannot be used changes nothing: it may be half written."""
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
