"""Readers while servers come and go: they ask for a pipeline's invariants all the time, as its users would read its tables.

What is asked is `sql/invariant/<pipeline>.<name>.sql`, of which no snapshot may ever give a row: that the bank has all its money,
for one, whatever is on its way. What the judge says at the end of a run does not tell whether that held in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from onefold import postgres
from onefold.config.settings import Settings
from onefold.verify.invariants import broken, invariants

READERS = 2
LOOK_S = 0.1
CONNECT_SECONDS = 2  # a database that is away is asked again; psycopg knows no shorter patience
STATEMENT_MS = 10_000
# One snapshot that breaks a rule is one too many, and a rule that is broken for good would fill the memory.
TOLD_MAX = 20


class Readers:
    """Some of them in the background, as a context.

    Attributes:
        looks: how often all rules were asked for, and answered.
        broken: what was found, in words, each thing once.
    """

    def __init__(self, domain: str, settings: Settings) -> None:
        self.looks = 0
        self.broken: list[str] = []
        self._rules = invariants(domain)
        self._settings = settings
        self._stop = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._threads = [threading.Thread(target=self._run, name="reader", daemon=True) for _ in range(READERS)]

    def __enter__(self) -> Readers:
        for thread in self._threads if self._rules else ():
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads if self._rules else ():
            thread.join(CONNECT_SECONDS + STATEMENT_MS / 1000)

    @property
    def said(self) -> list[str]:
        """What was found, for the end; that nobody could look proves nothing, and is said as well."""
        if self._rules and not self.looks:
            return [*self.broken, "the invariants were never asked for: the database did not answer"]
        return list(self.broken)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self._read(self._stop.is_set)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                continue  # it was killed, or cut off, or asked to end

    def _read(self, ends: Callable[[], bool]) -> None:
        """Look over one connection until it breaks. A server that is silent ends it as well, within some seconds."""
        with _connected(self._settings.postgres()) as connection:
            while not ends():
                found = [str(each) for each in broken(connection, self._rules)]
                with self._one_at_a_time:
                    self.looks += 1
                    self.broken += [each for each in found if each not in self.broken][: TOLD_MAX - len(self.broken)]
                self._stop.wait(LOOK_S)


def _connected(dsn: str) -> psycopg.Connection[Any]:
    limited = {**postgres.READ_ONLY, "statement_timeout": f"{STATEMENT_MS}ms"}
    connection = postgres.connect(
        dsn, "onefold reader", settings=limited, connect_s=CONNECT_SECONDS, patience_s=STATEMENT_MS / 1000
    )
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    return connection
