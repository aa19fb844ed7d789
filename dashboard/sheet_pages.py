"""The addresses of sheets: the list of them, a window of one, and its stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import psycopg
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response

from onefold.dashboard import sheet_view, sheets, words
from onefold.dashboard.answers import HEADERS, PING_S, VIEWERS_MAX, Answers
from onefold.dashboard.grids import Grids, Unreadable
from onefold.dashboard.live_grids import LiveGrids
from onefold.dashboard.reader import Reader
from onefold.dashboard.windows import NoWindow, Window, window_of
from onefold.dashboard.words import sentence
from onefold.postgres import Unfit

NOTHING_HERE = (
    "There are no sheets here: onefold migrate makes their tables, where the pipeline of sheets is one of yours."
)
SILENT = "The database does not answer. Load the page again when it is back."


class SheetPages:
    """The handlers, over a reader for the list, and what reads windows."""

    def __init__(self, reader: Reader, grids: Grids, answers: Answers) -> None:
        self._reader = reader
        self._grids = grids
        self._answers = answers
        self._live = LiveGrids(grids, lambda grid, window, trouble: sheet_view.parts(answers, grid, window, trouble))

    async def sheets(self, request: Request) -> Response:
        """The list of sheets."""
        after = request.query_params.get("after", "")
        try:
            async with self._reader.snapshot() as connection:
                self._answers.has_sheets = await sheets.there(connection)
                if not self._answers.has_sheets:
                    return self._answers.problem(404, NOTHING_HERE)
                found, more = await sheets.fetch(connection, after)
        except psycopg.DataError:
            return self._answers.problem(400, "No sheet has such a name.")
        except psycopg.errors.QueryCanceled:
            return self._answers.problem(503, "The database took too long to answer. Load the page again.")
        except Unfit as error:
            return self._answers.problem(503, sentence(str(error)))
        except psycopg.Error:
            return self._answers.problem(503, SILENT)
        return self._answers.page("sheets.html", title="Sheets · Onefold", sheets=found, more=more, after=after)

    async def sheet(self, request: Request) -> Response:
        """A window of a sheet."""
        sheet_id = request.path_params["sheet_id"]
        try:
            window, cell = window_of(request.query_params)
            if (problem := await self._missing(sheet_id)) is not None:
                return problem
            grid = await self._grids.read(sheet_id, window)
        except NoWindow as error:
            return self._answers.problem(400, str(error))
        except Unreadable as error:
            return self._answers.problem(error.status, error.sentence)
        parts = dict(sheet_view.parts(self._answers, grid, window, "", cell))
        return self._answers.page(
            "sheet.html",
            title=f"{sheet_id} · Onefold",
            sheet_id=sheet_id,
            window=window,
            chosen=sheet_view.chosen_of(grid, cell),
            stream=_stream(sheet_id, window),
            standing=parts.pop("standing"),
            rows=parts.values(),
        )

    async def stream(self, request: Request) -> Response:
        """What of a window is different from a second ago, again and again."""
        sheet_id = request.path_params["sheet_id"]
        try:
            window, _ = window_of(request.query_params)
        except NoWindow as error:
            return self._answers.problem(400, str(error))
        if self._live.viewers >= VIEWERS_MAX:
            return self._answers.crowded()
        if (problem := await self._missing(sheet_id)) is not None:
            return problem
        return EventSourceResponse(self._updates(sheet_id, window), ping=PING_S, headers=HEADERS)

    async def _missing(self, sheet_id: str) -> Response | None:
        """The answer when there is no such sheet."""
        try:
            async with self._reader.snapshot() as connection:
                self._answers.has_sheets = await sheets.there(connection)
                if not self._answers.has_sheets:
                    return self._answers.problem(404, NOTHING_HERE)
                if await sheets.known(connection, sheet_id):
                    return None
        except psycopg.DataError:
            pass  # a name that no text in Postgres can be
        except Unfit as error:
            return self._answers.problem(503, sentence(str(error)))
        except psycopg.Error:
            return self._answers.problem(503, SILENT)
        return self._answers.problem(404, f"There is no sheet {sheet_id}, or none of its rows are in PostgreSQL yet.")

    async def _updates(self, sheet_id: str, window: Window) -> AsyncIterator[ServerSentEvent]:
        sent: sheet_view.Parts = {}
        async for now in self._live.updates(sheet_id, window):
            different = {name: part for name, part in now.parts.items() if sent.get(name) != part}
            sent = now.parts
            data = json.dumps({"at": words.clock(now.at), "parts": different}, ensure_ascii=False)
            yield ServerSentEvent(event="update", data=data, retry=1000)


def _stream(sheet_id: str, window: Window) -> str:
    return f"/sheets/{words.part(sheet_id)}/live{words.query(window.items)}"
