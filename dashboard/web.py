"""The page's addresses: the live page and its stream, the tables, and the files that both are made with."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from onefold.dashboard import tables, view_model, words
from onefold.dashboard.reader import Reader
from onefold.dashboard.snapshot import View
from onefold.dashboard.watcher import Watcher

STATIC = Path(__file__).with_name("static")
VIEWERS_MAX = (
    50  # each costs a rendering a second; above it the page answers with a sentence instead of slowing the machine
)
PING_S = 15  # keeps proxies from closing a stream that has nothing to say
ITEMS_MAX, TEXT_MAX = 16, 500  # of an address: more is nobody's drill-down

HEADERS = {
    # Nothing from elsewhere, nothing inline: a name that got into a table cannot become a program here.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",  # the numbers of a moment ago are wrong
}


class Site:
    """The handlers, over one reader for snapshots, one for tables, and one watcher."""

    def __init__(self, watcher: Watcher, reader: Reader, schemas: list[str]) -> None:
        self._watcher = watcher
        self._reader = reader
        self._schemas = schemas
        self._templates = words.templates()
        self._templates.globals["time_of"] = lambda at: words.clock(datetime.fromtimestamp(at, UTC))

    async def live(self, request: Request) -> Response:
        """The live page."""
        view = view_of(request)
        update = await self._watcher.once(view)
        title = view_model.window_title(update.snapshot)
        return self._page(
            "page.html", title=title, stream=f"/live{words.query(dict(view))}", **view_model.of(update, view)
        )

    async def stream(self, request: Request) -> Response:
        """The live page's inner part, again and again."""
        if self._watcher.viewers >= VIEWERS_MAX:
            return Response("Too many people have this page open.", status_code=503, headers=HEADERS)
        return EventSourceResponse(self._updates(view_of(request)), ping=PING_S, headers=HEADERS)

    async def tables(self, request: Request) -> Response:
        """The list of tables."""

        async def fetch() -> Response:
            async with self._reader.snapshot() as connection:
                found = await tables.find(connection, self._schemas)
            return self._page("tables.html", title="Tables · Onefold", tables=found)

        return await self._answer(fetch)

    async def table(self, request: Request) -> Response:
        """A page of a table."""
        schema, name = request.path_params["schema"], request.path_params["name"]

        async def fetch() -> Response:
            place = tables.place_of(dict(request.query_params))
            async with self._reader.snapshot() as connection:
                found = await tables.find(connection, self._schemas)
                table = next((one for one in found if (one.schema, one.name) == (schema, name)), None)
                if table is None:
                    return self._problem(404, f"There is no table {schema}.{name} to show.")
                page = await tables.page(connection, table, place)
            wanted = request.query_params.get("from", "")
            return self._page("table.html", title=f"{schema}.{name} · Onefold", table=table, page=page, wanted=wanted)

        return await self._answer(fetch)

    async def nothing(self, request: Request, error: Exception) -> Response:
        """What is not here."""
        return self._problem(404, "There is no such page.")

    async def _updates(self, view: View) -> AsyncIterator[ServerSentEvent]:
        template = self._templates.get_template("live.html")
        async for update in self._watcher.updates(view):
            yield ServerSentEvent(event="update", data=template.render(view_model.of(update, view)), retry=1000)

    async def _answer(self, fetch: Callable[[], Awaitable[Response]]) -> Response:
        """What `fetch` answers; what it could not do, in one sentence."""
        try:
            return await fetch()
        except (psycopg.DataError, ValueError, json.JSONDecodeError):
            return self._problem(
                400, "The table has no such key. Type one like those that you see in its first column."
            )
        except psycopg.errors.QueryCanceled:
            return self._problem(503, "The table is too large for this page. Ask with onefold sql instead.")
        except psycopg.Error:
            return self._problem(503, "The database does not answer. Load the page again when it is back.")

    def _page(self, template: str, status: int = 200, **names: Any) -> Response:
        return HTMLResponse(self._templates.get_template(template).render(names), status, headers=HEADERS)

    def _problem(self, status: int, sentence: str) -> Response:
        return self._page("problem.html", status, title="Onefold", sentence=sentence)


def view_of(request: Request) -> View:
    """What the address asks for; parts of it that are too much to be meant are left out."""
    items = request.query_params.multi_items()[:ITEMS_MAX]
    return tuple((name, value) for name, value in items if len(name) + len(value) <= TEXT_MAX and "\0" not in value)


def application(watcher: Watcher, reader: Reader, schemas: list[str], hosts: list[str]) -> Starlette:
    """The whole site. hosts: the names under which it may be asked for, so that no other site's script can reach it by
    giving this machine a name of its own; ["*"] for any.
    """
    site = Site(watcher, reader, schemas)
    routes = [
        Route("/", site.live),
        Route("/live", site.stream),
        Route("/tables", site.tables),
        Route("/tables/{schema}/{name}", site.table),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={404: site.nothing})
