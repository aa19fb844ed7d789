"""Handlers for the pages of one pipeline: status, stream of updates, and topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.dashboard import configuration, pipeline_shape, pipeline_view
from onefold.dashboard.answers import HEADERS, PING_S, VIEWERS_MAX, Answers, items_of
from onefold.dashboard.explained import Busy, Explainer
from onefold.dashboard.flow import SPAN_S
from onefold.dashboard.pipeline_shape import PipelineShape
from onefold.dashboard.snapshot import OfPipeline
from onefold.dashboard.watcher import Update, Watcher
from onefold.dashboard.words import part, query
from onefold.operate import times
from onefold.pipelines import InvalidDeclaration
from onefold.printable import sentence

# A shorter range gives too few points. For a longer one there are no batches, or the query takes too long.
SPAN_MIN, SPAN_MAX = timedelta(minutes=1), timedelta(days=7)


class PipelinePages:
    """Handlers for the addresses of one pipeline."""

    def __init__(self, watcher: Watcher, answers: Answers, explainer: Explainer, settings: Settings) -> None:
        self._watcher = watcher
        self._answers = answers
        self._explainer = explainer
        self._settings = settings
        self._stall_s = settings.stall_s
        self._changed = configuration.changed(settings)

    async def page(self, request: Request) -> Response:
        """Page of one pipeline."""
        name = request.path_params["name"]
        # `of` imports the handler's module, which may take a moment.
        shape = await asyncio.to_thread(pipeline_shape.of, name)
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
            **self._shown(update, view, shape),
        )

    async def stream(self, request: Request) -> Response:
        """Stream of the page's inner part."""
        name = request.path_params["name"]
        shape = await asyncio.to_thread(pipeline_shape.of, name)
        if shape is None:
            return self._answers.problem(404, f"There is no pipeline {name}.")
        if self._watcher.viewers >= VIEWERS_MAX:
            return self._answers.crowded()
        try:
            view = _view(request, shape)
        except UserError as error:
            return self._answers.problem(400, f"since: {error.message}. {error.hint}")
        return EventSourceResponse(self._updates(view, shape), ping=PING_S, headers=HEADERS)

    async def topics(self, request: Request) -> Response:
        """Page of a pipeline's topics."""
        name = request.path_params["name"]

        async def answer() -> Response:
            found = await self._explainer.topics_of(name)
            return self._answers.page("topics.html", title=f"Topics of {name} · Onefold", name=name, topics=found)

        return await self._asked(name, answer)

    async def topic(self, request: Request) -> Response:
        """Page of one topic with the newest records."""
        name, topic = request.path_params["name"], request.path_params["topic"]

        async def answer() -> Response:
            found = await self._explainer.newest(name, topic)
            if found is None:
                return self._answers.problem(404, f"{name} has no topic {topic}.")
            return self._answers.page("topic.html", title=f"{topic} · Onefold", name=name, found=found)

        return await self._asked(name, answer)

    async def _asked(self, name: str, answer: Callable[[], Awaitable[Response]]) -> Response:
        """Return the response of `answer`; on failure an error page with one sentence."""
        if await asyncio.to_thread(pipeline_shape.of, name) is None:
            return self._answers.problem(404, f"There is no pipeline {name}.")
        try:
            return await answer()
        except (Busy, InvalidDeclaration) as why:
            return self._answers.problem(503, str(why))
        except UserError as error:
            return self._answers.problem(503, f"{sentence(error.message)} {error.hint}".rstrip())

    async def _updates(self, view: OfPipeline, shape: PipelineShape) -> AsyncIterator[ServerSentEvent]:
        async for update in self._watcher.updates(view):
            shown = self._answers.text("pipeline.html", **self._shown(update, view, shape))
            yield ServerSentEvent(event="update", data=shown, retry=1000)

    def _shown(self, update: Update, view: OfPipeline, shape: PipelineShape) -> dict[str, Any]:
        shown = pipeline_view.shown(update, view, shape, self._stall_s)
        return shown | {"declared": configuration.declared(view.name, self._settings), "changed": self._changed}


def _view(request: Request, shape: PipelineShape) -> OfPipeline:
    """Parse the view from the address. Raises UserError if `since` is no duration."""
    wanted = items_of(request)
    since = dict(wanted).get("since")
    span = timedelta(seconds=SPAN_S) if since is None else times.duration(since)
    span_s = int(min(max(span, SPAN_MIN), SPAN_MAX).total_seconds())
    return OfPipeline(request.path_params["name"], tuple(shape.tables), wanted, span_s)
