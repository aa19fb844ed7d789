"""Reads windows of sheets again once a second while somebody has them open, each once for all its viewers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from onefold.dashboard.grids import Grid, Grids, Unreadable
from onefold.dashboard.sheet_view import Parts
from onefold.dashboard.windows import Window

EVERY_S = 1.0  # as the live page

Render = Callable[[Grid | None, Window, str], Parts]


@dataclass(frozen=True)
class Now:
    """A window.

    Attributes:
        at: when it was looked at.
        parts: of the page, as they are now.
    """

    at: datetime
    parts: Parts


@dataclass
class _Watched:
    """A window that somebody looks at."""

    task: asyncio.Task[None]
    viewers: int = 0
    now: Now | None = None
    turned: asyncio.Condition = field(default_factory=asyncio.Condition)


class LiveGrids:
    """Hands windows to any number of viewers."""

    def __init__(self, grids: Grids, render: Render) -> None:
        """`render` makes the parts of the page, with the sentence of what is wrong, or ""."""
        self._grids = grids
        self._render = render
        self._watched: dict[tuple[str, Window], _Watched] = {}

    @property
    def viewers(self) -> int:
        """How many there are now."""
        return sum(watched.viewers for watched in self._watched.values())

    async def updates(self, sheet_id: str, window: Window) -> AsyncIterator[Now]:
        """The window, again and again, until the caller has seen enough."""
        key = sheet_id, window
        if key not in self._watched:
            self._watched[key] = _Watched(asyncio.create_task(self._run(sheet_id, window)))
        watched = self._watched[key]
        watched.viewers += 1
        try:
            while True:
                async with watched.turned:
                    await watched.turned.wait()
                if watched.task.done():
                    watched.task.result()
                if watched.now:
                    yield watched.now
        finally:
            watched.viewers -= 1
            if not watched.viewers:
                watched.task.cancel()
                del self._watched[key]

    async def _run(self, sheet_id: str, window: Window) -> None:
        watched = self._watched[sheet_id, window]
        clock = asyncio.get_running_loop().time
        shown: tuple[Grid | None, str] = None, ""
        try:
            while True:
                began = clock()
                grid, trouble = shown
                try:
                    grid, trouble = await self._grids.read(sheet_id, window, grid), ""
                except Unreadable as error:
                    trouble = error.sentence
                if watched.now is None or grid is not shown[0] or trouble != shown[1]:
                    parts = self._render(grid, window, trouble)
                else:
                    parts = watched.now.parts
                shown = grid, trouble
                watched.now = Now(datetime.now(UTC), parts)
                async with watched.turned:
                    watched.turned.notify_all()
                took = clock() - began
                # A sheet whose formulas need long leaves at least half of the time to others.
                await asyncio.sleep(max(EVERY_S - took, took))
        finally:  # an error of ours reaches those who wait
            async with watched.turned:
                watched.turned.notify_all()
