"""The addresses of one pipeline: its page, and its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from onefold.config.errors import UserError
from onefold.dashboard import pipeline_view, shapes
from onefold.dashboard.answers import HEADERS, PING_S, VIEWERS_MAX, Answers, items_of
from onefold.dashboard.flow import SPAN_S
from onefold.dashboard.shapes import Shape
from onefold.dashboard.snapshot import OfPipeline
from onefold.dashboard.watcher import Watcher
from onefold.dashboard.words import part, query
from onefold.operate import times

# Below that a chart has few points; of longer ago there are no batches, or the query takes too long.
SPAN_MIN, SPAN_MAX = timedelta(minutes=1), timedelta(days=7)


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
        try:
            view = _view(request, shape)
        except UserError as error:
            return self._answers.problem(400, f"since: {error.message}. {error.hint}")
        update = await self._watcher.once(view)
        return self._answers.page(
            "page.html",
            title=f"{name} · Onefold",
            here="pipeline",
            inner="pipeline.html",
            stream=f"/pipelines/{part(name)}/live{query(dict(view.wanted))}",
            **pipeline_view.shown(update, view, shape, self._stall_s),
        )

    async def stream(self, request: Request) -> Response:
        """The page's inner part, again and again."""
        name = request.path_params["name"]
        shape = await asyncio.to_thread(shapes.of, name)
        if shape is None:
            return self._answers.problem(404, f"There is no pipeline {name}.")
        if self._watcher.viewers >= VIEWERS_MAX:
            return self._answers.crowded()
        try:
            view = _view(request, shape)
        except UserError as error:
            return self._answers.problem(400, f"since: {error.message}. {error.hint}")
        return EventSourceResponse(self._updates(view, shape), ping=PING_S, headers=HEADERS)

    async def _updates(self, view: OfPipeline, shape: Shape) -> AsyncIterator[ServerSentEvent]:
        async for update in self._watcher.updates(view):
            shown = self._answers.text("pipeline.html", **pipeline_view.shown(update, view, shape, self._stall_s))
            yield ServerSentEvent(event="update", data=shown, retry=1000)


def _view(request: Request, shape: Shape) -> OfPipeline:
    """Raises UserError for a `since` that is no duration."""
    wanted = items_of(request)
    since = dict(wanted).get("since")
    span = timedelta(seconds=SPAN_S) if since is None else times.duration(since)
    span_s = int(min(max(span, SPAN_MIN), SPAN_MAX).total_seconds())
    return OfPipeline(request.path_params["name"], tuple(shape.tables), wanted, span_s)
