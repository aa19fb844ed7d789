"""Windows of sheets, read in threads from the object store and over a read-only database connection.

The store may be slow, so the server of the page neither waits for a read nor queues further requests behind a hanging read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg

from onefold.config.errors import UserError, first_line
from onefold.jobs.apps.sheets.cells import Cell, Rect, Value
from onefold.jobs.apps.sheets.entries import Entries
from onefold.jobs.apps.sheets.formulas import CellSource, Error, Formulas
from onefold.jobs.apps.sheets.pages.windows import Window
from onefold.jobs.apps.sheets.reading import NotThere, SheetAtEntry
from onefold.jobs.protocols import Missing, ReadableObjects, Refuse
from onefold.postgres import hang_up
from onefold.view import Unreadable

READERS = 4  # the number of simultaneous reads; each has a thread and a connection
# The time for formulas. After this time, the page shows a large formula, such as a sum of a million cells, unevaluated.
EVALUATE_S = 3.0
DECIMALS_MOST = 9  # the decimals of a number in a sheet
READ_S = 10.0  # the time-out of a window's read, far above the usual milliseconds


Connect = Callable[[], psycopg.Connection[tuple[Any, ...]]]


@dataclass(frozen=True)
class ShownCell:
    """The displayed value of a cell.

    Attributes:
        kind: "number", "text" or "error".
        text: The value, or the result of a formula. If the evaluation takes too long, the formula.
        content: The content of the cell: the value, or the formula.
        formula: Whether the content is a formula.
    """

    kind: str
    text: str
    content: str
    formula: bool


@dataclass(frozen=True)
class Grid:
    """The content of a window of a sheet.

    Attributes:
        entry: The newest entry in the content.
        snapshot: The entry of the snapshot; 0 without a snapshot.
        bytes_read: The bytes read from the object store.
        cells: The nonempty cells.
    """

    entry: int
    snapshot: int
    bytes_read: int
    cells: Mapping[Cell, ShownCell]


class Grids:
    """The readers of windows of sheets."""

    def __init__(self, connect: Connect, open_objects: Callable[[], ReadableObjects]) -> None:
        """`open_objects` raises UserError for an unusable store."""
        self._free = [_GridReader(connect, open_objects) for _ in range(READERS)]
        self._turns = asyncio.Semaphore(READERS)
        self._threads = ThreadPoolExecutor(READERS, "grids")

    async def read(self, sheet_id: str, window: Window, before: Grid | None = None) -> Grid:
        """Read the present content of the window; returns `before` if the sheet has not changed. Raises Unreadable."""
        reading: _GridReader | None = None
        try:
            async with asyncio.timeout(READ_S):
                await self._turns.acquire()
                reading = self._free.pop()
                # If the waiting request ends, the thread continues, and becomes free at the end of its read.
                return await asyncio.shield(self._begin(reading, sheet_id, window, before))
        except TimeoutError:
            if reading is not None:
                reading.hang_up()
            raise Unreadable("The database or the store of objects does not answer") from None

    def close(self) -> None:
        """Close all connections and stop the threads."""
        for reading in self._free:
            reading.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, reading: _GridReader, sheet_id: str, window: Window, before: Grid | None) -> asyncio.Future[Grid]:
        def give_back(work: asyncio.Future[Grid]) -> None:
            work.cancelled() or work.exception()  # mark the exception as retrieved, in case the request has ended
            self._free.append(reading)
            self._turns.release()

        work = asyncio.get_running_loop().run_in_executor(self._threads, reading.read, sheet_id, window, before)
        work.add_done_callback(give_back)
        return work


class _GridReader:
    """The connection and the store for a thread, opened by the first read and again after a broken connection."""

    def __init__(self, connect: Connect, open_objects: Callable[[], ReadableObjects]) -> None:
        self._open = connect
        self._open_objects = open_objects
        self._objects: ReadableObjects | None = None
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._entries = Entries(self._connect)

    def read(self, sheet_id: str, window: Window, before: Grid | None) -> Grid:
        """See `Grids.read`. Blocks."""
        try:
            if self._objects is None:
                self._objects = self._open_objects()
            return _read(self._entries, self._objects, sheet_id, window, before)
        except NotThere as error:
            raise Unreadable(str(error), 404) from None
        except Missing as error:
            raise Unreadable(f"The object {error} of this sheet is not in the store of objects") from None
        except UserError as error:
            raise Unreadable(f"{error.message}. {error.hint}".strip()) from None
        except (Refuse, ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"The sheet cannot be read: {first_line(error)}") from None

    def hang_up(self) -> None:
        """Abort the connection from a second thread, so that a read waiting for the database fails."""
        if self._connection is not None:
            hang_up(self._connection)

    def close(self) -> None:
        """Close the connection."""
        self._entries.close()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        self._connection = self._open()
        return self._connection


def _read(entries: Entries, objects: ReadableObjects, sheet_id: str, window: Window, before: Grid | None) -> Grid:
    """See `Grids.read`."""
    if before is not None and _is_newest(entries, sheet_id, before):
        return before
    reading = SheetAtEntry(entries, objects, sheet_id)
    bounded = _Bounded(reading, time.monotonic() + EVALUATE_S)
    formulas = Formulas(bounded)
    cells = {cell: _shown(formulas, cell, value) for cell, value in list(reading.cells(window.rect))}
    return Grid(reading.entry, reading.snapshot, reading.counted.bytes_read, cells)


def _is_newest(entries: Entries, sheet_id: str, grid: Grid) -> bool:
    """Whether the sheet has no newer entry and no newer snapshot."""
    finished = entries.finished(sheet_id)
    snapshot = finished.place.entry if finished else 0
    return snapshot == grid.snapshot and entries.landed(sheet_id, grid.entry) == grid.entry


class _TooMuch(Exception):
    """The evaluation of formulas takes more time than a page allows."""


class _Bounded:
    """A source of cells for formulas, with a time limit."""

    def __init__(self, source: CellSource, until: float) -> None:
        self._source = source
        self._until = until

    def cells(self, rect: Rect) -> Iterator[tuple[Cell, Value]]:
        """See `CellSource`. Raises _TooMuch."""
        for each in self._source.cells(rect):
            yield each
            if time.monotonic() > self._until:
                raise _TooMuch


def _shown(formulas: Formulas, cell: Cell, value: Value) -> ShownCell:
    if value.kind != "f":
        return ShownCell("number" if value.kind == "n" else "text", value.text, value.text, False)
    try:
        result = formulas.shown(cell, value)
    except _TooMuch:
        return ShownCell("text", value.text, value.text, True)
    if isinstance(result, Decimal):
        return ShownCell("number", rounded(result), value.text, True)
    return ShownCell("error" if isinstance(result, Error) else "text", result or "", value.text, True)


def rounded(number: Decimal) -> str:
    """The result of a formula with the decimals of a cell. A smaller result has an exponent."""
    if not number:
        return "0"
    text = f"{number:.{DECIMALS_MOST}f}"
    if not Decimal(text):
        return f"{number:.3e}"
    return text.rstrip("0").rstrip(".")
