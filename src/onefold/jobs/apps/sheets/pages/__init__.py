"""The pages of sheets on the dashboard: the list of sheets, and a live window of a sheet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onefold.jobs.apps.sheets.pages import listing, rows
from onefold.jobs.apps.sheets.pages.grids import Grid, Grids
from onefold.jobs.apps.sheets.pages.windows import window_of
from onefold.view import Page, Unreadable, View

NO_TABLES = "There are no sheets here: onefold migrate makes their tables"


class Pages:
    """The request handlers of the pages."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._grids = Grids(page.connect, page.objects)

    async def sheets(self, request: Request) -> Response:
        """The list of sheets."""
        after = request.query_params.get("after", "")
        try:
            async with self._snapshot() as connection:
                found, more = await listing.fetch(connection, after)
        except psycopg.DataError:
            raise Unreadable("No sheet has such a name", 400) from None
        return self._page.frame("sheets.html", title="Sheets · Onefold", sheets=found, more=more, after=after)

    async def sheet(self, request: Request) -> Response:
        """A window of a sheet."""
        sheet_id = request.path_params["sheet_id"]
        window, cell = window_of(request.query_params)
        await self._check(sheet_id)
        grid = await self._grids.read(sheet_id, window)
        parts = dict(rows.parts(self._page, grid, window, "", cell))
        return self._page.frame(
            "sheet.html",
            title=f"{sheet_id} · Onefold",
            sheet_id=sheet_id,
            window=window,
            chosen=rows.chosen_of(grid, cell),
            stream=f"{self._page.path}/{quote(sheet_id, safe='')}/live?{urlencode(window.items)}",
            standing=parts.pop("standing"),
            rows=parts.values(),
        )

    async def stream(self, request: Request) -> Response:
        """The stream of updates of a sheet's window."""
        sheet_id = request.path_params["sheet_id"]
        window, _ = window_of(request.query_params)
        await self._check(sheet_id)

        async def read(before: Grid | None) -> Grid:
            return await self._grids.read(sheet_id, window, before)

        return self._page.live(
            (sheet_id, window), read, lambda grid, trouble: rows.parts(self._page, grid, window, trouble)
        )

    async def _check(self, sheet_id: str) -> None:
        """Raise Unreadable if the sheet does not exist."""
        try:
            async with self._snapshot() as connection:
                known = await listing.known(connection, sheet_id)
        except psycopg.DataError:
            known = False  # PostgreSQL cannot store the name as a text
        if not known:
            raise Unreadable(f"There is no sheet {sheet_id}, or none of its rows are in PostgreSQL yet", 404)

    @asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
        """Open a read-only snapshot. Raises Unreadable in a database without the tables of `sheets`."""
        async with self._page.snapshot() as connection:
            if not await listing.there(connection):
                raise Unreadable(NO_TABLES, 404)
            yield connection


def routes(page: Page) -> list[Route]:
    """See `View.routes`."""
    pages = Pages(page)
    return [
        Route("/", pages.sheets),
        Route("/{sheet_id}", pages.sheet),
        Route("/{sheet_id}/live", pages.stream),
    ]


VIEW = View(routes, Path(__file__).parent)
