"""The addresses of one pipeline: its page, and its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from onefold.dashboard import pipeline_view, shapes
from onefold.dashboard.answers import HEADERS, PING_S, VIEWERS_MAX, Answers, items_of
from onefold.dashboard.shapes import Shape
from onefold.dashboard.snapshot import OfPipeline
from onefold.dashboard.watcher import Watcher
from onefold.dashboard.words import part, query


class PipelinePages:
    """The handlers. stall_s: from then on what waits is called still."""

    def __init__(self, watcher: Watcher, answers: Answers, stall_s: float) -> None:
        self._watcher = watcher
        self._answers = answers
        self._stall_s = stall_s

    async def page(self, request: Request) -> Response:
        """How one pipeline is."""
        name = request.path_params["name"]
        # Its handler's module is imported for that, which may take a moment.
        shape = await asyncio.to_thread(shapes.of, name)
        if shape is None:
            return self._answers.problem(404, f"There is no pipeline {name}.")
        view = _view(request, shape)
        update = await self._watcher.once(view)
        return self._answers.page(
            "page.html",
            title=f"{name} · Onefold",
            here="pipeline",
            inner="pipeline.html",
            stream=f"/pipelines/{part(name)}/live{query(dict(view.wanted))}",
            **pipeline_view.shown(update, name, shape, self._stall_s),
        )

    async def stream(self, request: Request) -> Response:
        """The page's inner part, again and again."""
        name = request.path_params["name"]
        shape = await asyncio.to_thread(shapes.of, name)
        if shape is None:
            return self._answers.problem(404, f"There is no pipeline {name}.")
        if self._watcher.viewers >= VIEWERS_MAX:
            return self._answers.crowded()
        return EventSourceResponse(self._updates(_view(request, shape), shape), ping=PING_S, headers=HEADERS)

    async def _updates(self, view: OfPipeline, shape: Shape) -> AsyncIterator[ServerSentEvent]:
        async for update in self._watcher.updates(view):
            shown = self._answers.text("pipeline.html", **pipeline_view.shown(update, view.name, shape, self._stall_s))
            yield ServerSentEvent(event="update", data=shown, retry=1000)


def _view(request: Request, shape: Shape) -> OfPipeline:
    return OfPipeline(request.path_params["name"], tuple(shape.tables), items_of(request))
