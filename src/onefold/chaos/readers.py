"""Readers that query a pipeline's invariants continuously, as users would read the tables, while servers fail and recover.

The queries are `sql/invariant/<pipeline>.<name>.sql`, which must return no row in any snapshot: for example, that the bank
has all its money at every moment. The verification at the end of a run cannot show whether an invariant held in between.
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
CONNECT_SECONDS = 2  # a query to an absent database is repeated; psycopg has no shorter timeout
STATEMENT_MS = 10_000
# A few broken snapshots are enough, and a permanently broken invariant would fill the memory.
TOLD_MAX = 20


class Readers:
    """Readers in the background, as a context manager.

    Attributes:
        looks: number of times that all invariants were queried.
        broken: distinct broken rows, in words.
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
        """Findings at the end; also a sentence if no query was answered, because the run then proves nothing."""
        if self._rules and not self.looks:
            return [*self.broken, "the invariants were never asked for: the database did not answer"]
        return list(self.broken)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self._read(self._stop.is_set)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                continue  # the database was killed, cut off or stopped

    def _read(self, ends: Callable[[], bool]) -> None:
        """Query over one connection until the connection breaks. An unresponsive server breaks the connection after some
        seconds."""
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
