"""The page of a sheet as HTML, in separately replaceable parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onefold.jobs.apps.sheets.cells import Cell, name_of
from onefold.jobs.apps.sheets.pages.grids import Grid, ShownCell
from onefold.jobs.apps.sheets.pages.windows import Window
from onefold.view import Page

TEXT_MAX = 300  # displayed characters of a cell, because a page may show 10,000 cells of 32,767 characters
MINUS = "\N{MINUS SIGN}"  # as wide as a digit, unlike the hyphen
TITLE_FROM = 16  # a longer text may not fit into its cell

#: The parts of the page as HTML, by the unique id of the part's element.
Parts = Mapping[str, str]


@dataclass(frozen=True)
class CellView:
    """A displayed cell.

    Attributes:
        kind: The CSS classes, from "number", "text", "error" and "formula".
        text: The displayed text.
        content: The content of the cell: the text, the number without commas, or the formula. Long content is cut.
        title: The tooltip, or "".
        cut: Whether `content` is cut.
    """

    kind: str = ""
    text: str = ""
    content: str = ""
    title: str = ""
    cut: bool = False
    chosen: bool = False


@dataclass(frozen=True)
class RowView:
    """A row of cells, numbered from 1."""

    number: int
    cells: list[CellView]


@dataclass(frozen=True)
class Chosen:
    """The selected cell: its name, and its complete content."""

    name: str
    content: str


def parts(page: Page, grid: Grid | None, window: Window, trouble: str, chosen: Cell | None = None) -> Parts:
    """The parts of a window's page.

    Args:
        grid: The content of the window; None without a successful read.
        trouble: The reason of a failed read, or "".
        chosen: The selected cell.
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
    """The content of the line above the cells for this cell."""
    shown = grid.cells.get(cell)
    return Chosen(name_of(cell), shown.content if shown else "")


def _view(shown: ShownCell | None, chosen: bool) -> CellView:
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
    """A number with commas between thousands and with a minus sign instead of a hyphen."""
    digits = number.removeprefix("-")
    before, point, behind = digits.partition(".")
    if not (before + behind).isdecimal():
        return number  # the number has an exponent
    return f"{MINUS if number.startswith('-') else ''}{int(before):,}{point}{behind}"
