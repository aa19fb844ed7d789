"""Reads the database once a second while somebody has the page open, once for all viewers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import dataclass

import psycopg
import structlog

from onefold import rights
from onefold.dashboard.known import Asked
from onefold.dashboard.observer import Observer
from onefold.dashboard.panels import Reading
from onefold.dashboard.reader import Reader, trouble_of
from onefold.dashboard.snapshot import OfPipeline, Snapshot, View, take
from onefold.printable import sentence

EVERY_S = 1.0  # often enough for a live page, and a snapshot takes a small part of it

AGAIN = "This is asked again every second."

log = structlog.get_logger("onefold.dashboard")


@dataclass(frozen=True)
class Update:
    """What there is to show.

    Attributes:
        snapshot: the last good one, None before the first.
        trouble: one sentence while the database does not answer, "" else.
        asked: of Kafka and of the stack, as asked last.
    """

    snapshot: Snapshot | None
    trouble: str
    asked: Asked


class Watcher:
    """Hands updates to any number of viewers. `run` has to run beside them."""

    def __init__(self, reader: Reader, observer: Observer) -> None:
        self._reader = reader
        self._observer = observer
        self._watched: Counter[View] = Counter()
        self._reading = Reading()
        self._snapshots: dict[View, Snapshot] = {}
        self._trouble = ""
        self._turned = asyncio.Condition()
        self._somebody = asyncio.Event()

    @property
    def viewers(self) -> int:
        """How many there are now."""
        return self._watched.total()

    async def run(self) -> None:
        """Takes a snapshot a second of all views that are watched, for ever."""
        while True:
            await self._somebody.wait()
            due = asyncio.get_running_loop().time() + EVERY_S
            await self._fetch(list(self._watched))
            async with self._turned:
                self._turned.notify_all()
            left = due - asyncio.get_running_loop().time()
            # Trouble is shown for a while even when it took long to find: nobody reads what is there for a moment.
            await asyncio.sleep(EVERY_S if self._trouble else max(0.0, left))

    async def once(self, view: View) -> Update:
        """The update of a view, now."""
        await self._fetch([view])
        update = self._update(view)
        self._forget(view)
        return update

    async def updates(self, view: View) -> AsyncIterator[Update]:
        """An update after every snapshot, until the caller has seen enough."""
        self._watched[view] += 1
        self._somebody.set()
        try:
            while True:
                async with self._turned:
                    await self._turned.wait()
                yield self._update(view)
        finally:
            self._watched[view] -= 1
            if not self._watched[view]:
                del self._watched[view]
                self._forget(view)
            if not self._watched:
                self._somebody.clear()

    async def _fetch(self, views: list[View]) -> None:
        self._observer.want(*(view.name for view in views if isinstance(view, OfPipeline)))
        try:
            taken = await take(self._reader, views, self._reading)
        except psycopg.Error as error:
            if not self._trouble:
                log.warning(f"no snapshot: {error!r}")
            self._trouble = await asyncio.to_thread(self._lacking, error) or f"{trouble_of(error)} {AGAIN}"
            return
        self._trouble = ""
        self._snapshots |= taken

    def _lacking(self, error: psycopg.Error) -> str:
        """The rights of a reader that are missing, if that is what `error` means, or ""."""
        if not isinstance(error, psycopg.errors.InsufficientPrivilege):
            return ""
        with suppress(psycopg.Error), closing(self._reader.another()) as connection:
            return sentence(rights.lacking(connection, rights.of_engine(rights.Role.READER)))
        return ""

    def _update(self, view: View) -> Update:
        return Update(self._snapshots.get(view), self._trouble, self._observer.now())

    def _forget(self, view: View) -> None:
        if view not in self._watched:
            self._snapshots.pop(view, None)
