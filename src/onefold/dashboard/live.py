"""Read the value of a live view once a second for all of its viewers, and send the changed parts of the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg
import structlog
from sse_starlette import ServerSentEvent

from onefold.dashboard.reader import trouble_of
from onefold.dashboard.words import clock
from onefold.error_codes import first_line
from onefold.printable import sentence
from onefold.view import Unreadable

EVERY_S = 1.0  # as the live page
READ_S = 10.0  # longer than the limit of a database snapshot
HANGS = f"This view has not been read within {READ_S:.0f} seconds."
# Exceptions of a view's code. A script imported as a module may call sys.exit().
RAISED = (Exception, SystemExit)

#: HTML by the id of the page's element.
Parts = Mapping[str, str]
Read = Callable[[Any], Awaitable[Any]]
Render = Callable[[Any, str], Parts]

log = structlog.get_logger("onefold.dashboard")


@dataclass
class _Watched:
    """A view with viewers.

    Attributes:
        at: time of the last reading.
        trouble: reason why the last reading failed, or "".
    """

    task: asyncio.Task[None]
    viewers: int = 0
    at: datetime | None = None
    parts: Parts = field(default_factory=dict)
    trouble: str = ""
    turned: asyncio.Condition = field(default_factory=asyncio.Condition)


class Live:
    """Sender of parts to any number of viewers."""

    def __init__(self) -> None:
        self._watched: dict[Hashable, _Watched] = {}

    @property
    def viewers(self) -> int:
        """Present number of viewers."""
        return sum(watched.viewers for watched in self._watched.values())

    async def events(self, key: Hashable, read: Read, render: Render) -> AsyncIterator[ServerSentEvent]:
        """Yield the changed parts after each reading, until the caller stops."""
        if key not in self._watched:
            self._watched[key] = _Watched(asyncio.create_task(self._run(key, read, render)))
        watched = self._watched[key]
        watched.viewers += 1
        sent: Parts = {}
        try:
            while True:
                async with watched.turned:
                    await watched.turned.wait()
                different = {name: part for name, part in watched.parts.items() if sent.get(name) != part}
                sent = watched.parts
                said = {"at": clock(watched.at), "parts": different, "trouble": watched.trouble}
                yield ServerSentEvent(event="update", data=json.dumps(said, ensure_ascii=False), retry=1000)
        finally:
            watched.viewers -= 1
            if not watched.viewers:
                watched.task.cancel()
                del self._watched[key]

    async def _run(self, key: Hashable, read: Read, render: Render) -> None:
        watched = self._watched[key]
        time = asyncio.get_running_loop().time
        value: Any = None
        reading: asyncio.Task[tuple[Any, str]] | None = None
        try:
            while True:
                began = time()
                before, trouble = value, HANGS
                # A hanging reading continues, because a second one would occupy another thread.
                reading = reading or asyncio.create_task(_read(read, before))
                await asyncio.wait([reading], timeout=READ_S)
                if reading.done():
                    value, trouble = reading.result()
                    reading = None
                if watched.at is None or value is not before or trouble != watched.trouble:
                    try:
                        watched.parts = {name: str(part) for name, part in render(value, trouble).items()}
                    except RAISED as error:  # the parts stay unchanged
                        trouble = why(error)
                watched.at, watched.trouble = datetime.now(UTC), trouble
                async with watched.turned:
                    watched.turned.notify_all()
                took = time() - began
                # A slow reading leaves at least half of the time to other work.
                await asyncio.sleep(max(EVERY_S - took, took) if reading is None else 0)
        finally:
            if reading is not None:
                reading.cancel()


async def _read(read: Read, before: Any) -> tuple[Any, str]:
    """Read the value; on failure return the value before, and the reason. The view's code belongs to a pipeline, so every
    exception is caught."""
    try:
        return await read(before), ""
    except RAISED as error:
        return before, why(error)


def why(error: BaseException) -> str:
    """Describe in one sentence why a view shows no value, and log the traceback of a fault in its code."""
    if isinstance(error, Unreadable):
        return sentence(str(error))
    if isinstance(error, psycopg.Error):
        return trouble_of(error)
    log.error("a view failed", exc_info=error)
    return f"This view failed: {type(error).__name__}: {first_line(error)}."
