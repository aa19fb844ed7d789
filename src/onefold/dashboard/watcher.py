"""Read the database once a second while a page is open, for all viewers together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import dataclass

import psycopg
import structlog

from onefold import rights
from onefold.dashboard.observer import Observer
from onefold.dashboard.panels import PanelReader
from onefold.dashboard.pipeline_facts import AskedKafka
from onefold.dashboard.reader import DatabaseReader, trouble_of
from onefold.dashboard.snapshot import OfPipeline, View, ViewSnapshot, take
from onefold.printable import sentence

EVERY_S = 1.0  # often enough for a live page, and a snapshot takes a small part of a second

AGAIN = "This is asked again every second."

log = structlog.get_logger("onefold.dashboard")


@dataclass(frozen=True)
class Update:
    """Content of an update.

    Attributes:
        snapshot: last successful one, None before the first.
        trouble: one sentence while the database does not answer, otherwise "".
        asked: last answers of Kafka and of the stack.
    """

    snapshot: ViewSnapshot | None
    trouble: str
    asked: AskedKafka


class Watcher:
    """Source of updates for any number of viewers. `run` must run as a task beside the viewers."""

    def __init__(self, reader: DatabaseReader, observer: Observer) -> None:
        self._reader = reader
        self._observer = observer
        self._watched: Counter[View] = Counter()
        self._reading = PanelReader()
        self._snapshots: dict[View, ViewSnapshot] = {}
        self._trouble = ""
        self._turned = asyncio.Condition()
        self._somebody = asyncio.Event()

    @property
    def viewers(self) -> int:
        """Present number of viewers."""
        return self._watched.total()

    async def run(self) -> None:
        """Take a snapshot of all open views each second, for ever."""
        while True:
            await self._somebody.wait()
            due = asyncio.get_running_loop().time() + EVERY_S
            await self._fetch(list(self._watched))
            async with self._turned:
                self._turned.notify_all()
            left = due - asyncio.get_running_loop().time()
            # An error stays on the page for a full interval, because a shorter display cannot be read.
            await asyncio.sleep(EVERY_S if self._trouble else max(0.0, left))

    async def once(self, view: View) -> Update:
        """Take a snapshot now, and return the update of a view."""
        await self._fetch([view])
        update = self._update(view)
        self._forget(view)
        return update

    async def updates(self, view: View) -> AsyncIterator[Update]:
        """Yield an update after every snapshot, until the caller stops."""
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
        """Describe the missing rights of the reader, if `error` is about rights, or ""."""
        if not isinstance(error, psycopg.errors.InsufficientPrivilege):
            return ""
        with suppress(psycopg.Error), closing(self._reader.another()) as connection:
            return sentence(rights.lacking(connection, rights.of_engine(rights.DatabaseRole.READER)))
        return ""

    def _update(self, view: View) -> Update:
        return Update(self._snapshots.get(view), self._trouble, self._observer.now())

    def _forget(self, view: View) -> None:
        if view not in self._watched:
            self._snapshots.pop(view, None)
