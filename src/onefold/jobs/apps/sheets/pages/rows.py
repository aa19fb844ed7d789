"""The page of a sheet as HTML: parts, each of which is exchanged by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onefold.jobs.apps.sheets.cells import Cell, name_of
from onefold.jobs.apps.sheets.pages.grids import Grid, Shown
from onefold.jobs.apps.sheets.pages.windows import Window
from onefold.view import Page

TEXT_MAX = 300  # characters of a cell that are shown; it may hold 32,767, and 10,000 cells may be shown
MINUS = "\N{MINUS SIGN}"  # as wide as a digit, unlike the hyphen
TITLE_FROM = 16  # a text so long may not fit into its cell

#: By the id of its element, which no two parts have in common: a part of the page as HTML.
Parts = Mapping[str, str]


@dataclass(frozen=True)
class CellView:
    """A cell.

    Attributes:
        kind: its classes, of "number", "text", "error" and "formula".
        text: what stands in it.
        content: what was put there: the same, the number without commas, or the formula. Long ones are cut.
        title: what is shown on pointing at it, or "".
        cut: whether `content` is not all of it.
    """

    kind: str = ""
    text: str = ""
    content: str = ""
    title: str = ""
    cut: bool = False
    chosen: bool = False


@dataclass(frozen=True)
class RowView:
    """A row; number: from 1."""

    number: int
    cells: list[CellView]


@dataclass(frozen=True)
class Chosen:
    """The chosen cell: its name, and all that was put there."""

    name: str
    content: str


def parts(page: Page, grid: Grid | None, window: Window, trouble: str, chosen: Cell | None = None) -> Parts:
    """The parts of the page of a window that was read (None: nothing could be read), with what is wrong, or "".

    chosen: the cell that is marked.
    """
    made = {"standing": page.text("sheet_standing.html", grid=grid, trouble=trouble)}
    if grid is not None:
        for row in rows(grid, window, chosen):
            made[f"row-{row.number}"] = page.text("sheet_row.html", row=row).strip()
    return made


def rows(grid: Grid, window: Window, chosen: Cell | None = None) -> Iterator[RowView]:
    """The rows of a window."""
    top, left, bottom, right = window.rect
    for row in range(top, bottom + 1):
        cells = [_view(grid.cells.get((row, col)), (row, col) == chosen) for col in range(left, right + 1)]
        yield RowView(row, cells)


def chosen_of(grid: Grid, cell: Cell) -> Chosen:
    """What the line above the cells says of one of them."""
    shown = grid.cells.get(cell)
    return Chosen(name_of(cell), shown.content if shown else "")


def _view(shown: Shown | None, chosen: bool) -> CellView:
    if shown is None:
        return CellView(chosen=chosen)
    text = grouped(shown.text) if shown.kind == "number" else _short(shown.text)
    content = _short(shown.content)
    title = content if shown.formula else text if len(text) > TITLE_FROM else ""
    kind = f"{shown.kind} formula" if shown.formula else shown.kind
    return CellView(kind, text, content, title, len(shown.content) > TEXT_MAX, chosen)


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}\N{HORIZONTAL ELLIPSIS}"


def grouped(number: str) -> str:
    """A number as a sheet has it, in thousands: -1234.5 is written with a minus sign and a comma."""
    digits = number.removeprefix("-")
    before, point, behind = digits.partition(".")
    if not (before + behind).isdecimal():
        return number  # with an exponent
    return f"{MINUS if number.startswith('-') else ''}{int(before):,}{point}{behind}"
