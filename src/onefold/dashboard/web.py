"""Routes of the dashboard: live page and stream, pipelines and views, tables, origin of a row, static files, and metrics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psycopg
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from onefold.config import allowed_hosts
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.dashboard import tables, view_model, words
from onefold.dashboard.answers import HEADERS, PING_S, VIEWERS_MAX, Answers, items_of
from onefold.dashboard.explained import Busy, Explainer
from onefold.dashboard.login import TokenGuard
from onefold.dashboard.metrics_endpoint import Totals
from onefold.dashboard.pipeline_pages import PipelinePages
from onefold.dashboard.reader import DatabaseReader, trouble_of
from onefold.dashboard.views import Views
from onefold.dashboard.watcher import Watcher

STATIC = Path(__file__).with_name("static")


class Site:
    """Request handlers, with one reader for tables and one watcher for snapshots."""

    def __init__(
        self,
        watcher: Watcher,
        reader: DatabaseReader,
        explainer: Explainer,
        schemas: list[str],
        answers: Answers,
        stall_s: float,
    ) -> None:
        self._watcher = watcher
        self._stall_s = stall_s
        self._explainer = explainer
        self._reader = reader
        self._schemas = schemas
        self._answers = answers

    async def live(self, request: Request) -> Response:
        """Page of all pipelines."""
        update = await self._watcher.once(None)
        shown = view_model.of(update, self._stall_s)
        return self._answers.page("page.html", title="Onefold", here="live", inner="live.html", stream="/live", **shown)

    async def stream(self, request: Request) -> Response:
        """Stream of the live page's inner part."""
        if self._watcher.viewers >= VIEWERS_MAX:
            return self._answers.crowded()
        return EventSourceResponse(self._updates(), ping=PING_S, headers=HEADERS)

    async def tables(self, request: Request) -> Response:
        """List of tables."""

        async def fetch() -> Response:
            async with self._reader.snapshot() as connection:
                found = await tables.find(connection, self._schemas)
            return self._answers.page("tables.html", title="Tables · Onefold", tables=found)

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
                    return self._answers.problem(404, f"There is no table {schema}.{name} to show.")
                page = await tables.page(connection, table, place)
            wanted = request.query_params.get("from", "")
            title = f"{schema}.{name} · Onefold"
            return self._answers.page("table.html", title=title, table=table, page=page, wanted=wanted)

        return await self._answer(fetch)

    async def explain(self, request: Request) -> Response:
        """Origin of a row, whose key is in the address."""
        schema, name = request.path_params["schema"], request.path_params["name"]

        async def fetch() -> Response:
            try:
                told = await self._explainer.explain(f"{schema}.{name}", dict(items_of(request)))
            except Busy as busy:
                return self._answers.problem(503, str(busy))
            except UserError as error:
                return self._answers.problem(
                    400, f"{error.message[:1].upper()}{error.message[1:]}. {error.hint}".rstrip()
                )
            title = f"A row of {schema}.{name} · Onefold"
            status = 200 if told.row is not None else 404
            return self._answers.page("explain.html", status, title=title, told=told, schema=schema, name=name)

        return await self._answer(fetch)

    async def find(self, request: Request) -> Response:
        """Redirect from a table's form to the row with that key. An empty part of the key means NULL."""
        schema, name = (words.part(request.path_params[part]) for part in ("schema", "name"))
        key = {column: value for column, value in items_of(request) if value}
        return RedirectResponse(f"/explain/{schema}/{name}{words.query(key)}", 303, headers=HEADERS)

    async def nothing(self, request: Request, error: Exception) -> Response:
        """Response for an unknown address."""
        return self._answers.problem(404, "There is no such page.")

    async def _updates(self) -> AsyncIterator[ServerSentEvent]:
        async for update in self._watcher.updates(None):
            shown = self._answers.text("live.html", **view_model.of(update, self._stall_s))
            yield ServerSentEvent(event="update", data=shown, retry=1000)

    async def _answer(self, fetch: Callable[[], Awaitable[Response]]) -> Response:
        """Return the response of `fetch`; on failure an error page with one sentence."""
        try:
            return await fetch()
        except (psycopg.DataError, ValueError, json.JSONDecodeError):
            return self._answers.problem(
                400, "The table has no such key. Type one like those that you see in its first column."
            )
        except psycopg.errors.QueryCanceled:
            return self._answers.problem(503, "The table is too large for this page. Ask with onefold sql instead.")
        except psycopg.Error as error:
            return self._answers.problem(503, trouble_of(error))


class HostGuard:
    """Middleware that refuses requests for host names that the user has not configured."""

    def __init__(self, app: ASGIApp, names: list[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and not allowed_hosts.allows(Headers(scope=scope).get("host"), self._names):
            await PlainTextResponse(allowed_hosts.refusal("ONEFOLD_DASHBOARD_HOSTS"), 400)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def application(
    watcher: Watcher,
    reader: DatabaseReader,
    dsn: str,
    explainer: Explainer,
    totals: Totals,
    schemas: list[str],
    names: list[str],
    settings: Settings,
) -> Starlette:
    """Build the whole site.

    Args:
        dsn: connection string for views, each of which has its own connection.
        names: accepted host names besides localhost (`onefold.config.allowed_hosts`).
    """
    answers = Answers()
    site = Site(watcher, reader, explainer, schemas, answers, settings.stall_s)
    pipelines = PipelinePages(watcher, answers, explainer, settings)
    routes = [
        Route("/", site.live),
        Route("/live", site.stream),
        Route("/pipelines/{name}", pipelines.page),
        Route("/pipelines/{name}/live", pipelines.stream),
        Route("/pipelines/{name}/topics", pipelines.topics),
        Route("/pipelines/{name}/topics/{topic}", pipelines.topic),
        Mount("/pipelines/{name}", Views(dsn, answers, settings)),
        Route("/tables", site.tables),
        Route("/tables/{schema}/{name}", site.table),
        Route("/explain/{schema}/{name}", site.explain),
        Route("/find/{schema}/{name}", site.find),
        Route("/metrics", totals.metrics),
        Route("/healthz", totals.healthz),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    guards = [Middleware(HostGuard, names=names)]
    if settings.dashboard_token:
        guards.append(Middleware(TokenGuard, token=settings.dashboard_token, answers=answers))
    return Starlette(routes=routes, middleware=guards, exception_handlers={404: site.nothing})
