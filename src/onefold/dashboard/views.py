"""Pages that pipelines bring as code, each below the address of its pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from jinja2 import ChoiceLoader, FileSystemLoader
from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onefold.config.settings import Settings
from onefold.dashboard.answers import HEADERS, PING_S, VIEWERS_MAX, Answers
from onefold.dashboard.live import RAISED, Live, why
from onefold.dashboard.reader import Blocking, Connection, DatabaseReader
from onefold.dashboard.words import part
from onefold.jobs.objects import open_to_read
from onefold.operate import pipelines
from onefold.pipelines import InvalidDeclaration, Pipeline
from onefold.printable import sentence
from onefold.view import ReadableObjects, Unreadable, View

T = TypeVar("T")

LOAD_S = 10.0  # to import a view's module
LOADING = "The module of this view is still being imported. Load the page again in a moment."


class Views:
    """Application below `/pipelines/{name}/`, which imports a view at the first request."""

    def __init__(self, dsn: str, answers: Answers, settings: Settings) -> None:
        self._dsn = dsn
        self._settings = settings
        self._answers = answers
        self._live = Live()
        self._loading: dict[str, asyncio.Task[ASGIApp]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. A failure before the response begins becomes the error page of this view."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            app = await self._app(scope["path_params"]["name"])
            await app(scope, receive, sending)
        except HTTPException:
            raise
        except RAISED as error:
            if begun:
                raise RuntimeError("a view failed after its answer had begun") from error
            status = error.status if isinstance(error, Unreadable) else 503 if isinstance(error, psycopg.Error) else 500
            said = sentence(str(error)) if isinstance(error, InvalidDeclaration) else why(error)
            await self._answers.problem(status, said)(scope, receive, send)

    async def _app(self, name: str) -> ASGIApp:
        pipeline = pipelines.found().pipelines.get(name)
        if pipeline is None or pipeline.view is None:
            raise HTTPException(404)
        loading = self._loading.get(name)
        if loading is None or (loading.done() and loading.exception() is not None):
            loading = self._loading[name] = asyncio.create_task(self._load(pipeline))
        await asyncio.wait([loading], timeout=LOAD_S)
        if not loading.done():
            raise Unreadable(LOADING)
        return loading.result()

    async def _load(self, pipeline: Pipeline) -> ASGIApp:
        # The call imports the view's module, which may take a moment.
        view: View = await asyncio.to_thread(pipeline.load_view)
        # A separate reader, so that a slow view delays no other page.
        reader = DatabaseReader(self._dsn)
        page = _Page(pipeline.name, view.folder, reader, self._answers, self._live, self._settings)
        static = StaticFiles(directory=view.folder / "static", check_dir=False)
        try:
            routes = list(view.routes(page))
        except SystemExit as error:  # in a task, SystemExit would end the event loop
            raise RuntimeError("its routes end the process") from error
        return Router([Mount("/static", static), Mount("/view", routes=routes)])


class _Page:
    """See `onefold.view.Page`."""

    def __init__(
        self, name: str, folder: Path, reader: DatabaseReader, answers: Answers, live: Live, settings: Settings
    ) -> None:
        self.path = f"/pipelines/{part(name)}/view"
        self._name = name
        self._reader = reader
        self._answers = answers
        self._live = live
        self._settings = settings
        frame = answers.templates
        loader = ChoiceLoader([FileSystemLoader(folder / "templates"), *([frame.loader] if frame.loader else [])])
        self._templates = frame.overlay(loader=loader)

    def snapshot(self) -> AbstractAsyncContextManager[Connection]:
        return self._reader.snapshot()

    def connect(self) -> Blocking:
        return self._reader.another()

    def objects(self) -> ReadableObjects:
        return open_to_read(self._settings.object_store(), self._settings.objects_endpoint)

    def frame(self, template: str, status: int = 200, **names: Any) -> Response:
        return HTMLResponse(self.text(template, here=self._name, **names), status, headers=HEADERS)

    def text(self, template: str, **names: Any) -> str:
        return self._templates.get_template(template).render(path=self.path, **names)

    def live(
        self,
        key: Hashable,
        read: Callable[[T | None], Awaitable[T]],
        render: Callable[[T | None, str], Mapping[str, str]],
    ) -> Response:
        if self._live.viewers >= VIEWERS_MAX:
            return self._answers.crowded()
        return EventSourceResponse(self._live.events((self._name, key), read, render), ping=PING_S, headers=HEADERS)
