"""The window of rows and columns on a sheet's page, from the page's address, and the links to adjacent windows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onefold.jobs.apps.sheets.cells import COLS_MAX, ROWS_MAX, Cell, Rect, column, letters, parse_cell
from onefold.view import Unreadable

# The default window and the largest window. The maximum limits a page to some hundred kilobytes.
ROWS_SHOWN, COLS_SHOWN = 50, 26
ROWS_MOST, COLS_MOST = 200, 52

_ROWS = re.compile(r"([1-9][0-9]{0,6})-([1-9][0-9]{0,6})")
_COLS = re.compile(r"([A-Z]{1,3})-([A-Z]{1,3})")


class NoWindow(Unreadable):
    """The address requests an invalid part of a sheet."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, 400)


@dataclass(frozen=True)
class WindowLink:
    """A link to an adjacent window.

    Attributes:
        name: "up", "down", "left" or "right".
        items: The query parameters of the window's address.
    """

    name: str
    arrow: str
    text: str
    items: Mapping[str, str]


@dataclass(frozen=True)
class Window:
    """The displayed cells."""

    rect: Rect

    #: The size of the whole sheet.
    row_count = ROWS_MAX
    col_count = COLS_MAX

    @property
    def rows(self) -> str:
        """The rows in the form of the address, such as 1-50."""
        return f"{self.rect.top}-{self.rect.bottom}"

    @property
    def cols(self) -> str:
        """The columns in the form of the address, such as A-Z."""
        return f"{letters(self.rect.left)}-{letters(self.rect.right)}"

    @property
    def heads(self) -> list[tuple[str, int]]:
        """The name and the number of each column."""
        return [(letters(number), number) for number in range(self.rect.left, self.rect.right + 1)]

    @property
    def items(self) -> dict[str, str]:
        """The query parameters of the window's address."""
        return {"rows": self.rows, "cols": self.cols}

    @property
    def ways(self) -> list[WindowLink]:
        """The links to the adjacent windows within the sheet."""
        top, left, bottom, right = self.rect
        height, width = bottom - top + 1, right - left + 1
        there = {
            ("up", "\N{UPWARDS ARROW}"): self._moved(-height, 0) if top > 1 else None,
            ("down", "\N{DOWNWARDS ARROW}"): self._moved(height, 0) if bottom < ROWS_MAX else None,
            ("left", "\N{LEFTWARDS ARROW}"): self._moved(0, -width) if left > 1 else None,
            ("right", "\N{RIGHTWARDS ARROW}"): self._moved(0, width) if right < COLS_MAX else None,
        }
        return [
            WindowLink(
                name, arrow, f"rows {window.rows}" if name in ("up", "down") else f"columns {window.cols}", window.items
            )
            for (name, arrow), window in there.items()
            if window is not None
        ]

    def around(self, cell: Cell) -> Window:
        """This window if it contains the cell; else a window of the same size with the cell."""
        if self.rect.holds(cell):
            return self
        height, width = self.rect.bottom - self.rect.top + 1, self.rect.right - self.rect.left + 1
        return _window((cell[0] - 1) // height * height + 1, (cell[1] - 1) // width * width + 1, height, width)

    def _moved(self, down: int, right: int) -> Window:
        top, left, bottom, end = self.rect
        return _window(max(1, top + down), max(1, left + right), bottom - top + 1, end - left + 1)


def window_of(items: Mapping[str, str]) -> tuple[Window, Cell]:
    """The window of an address, and the selected cell; by default the first cell of the window.

    Raises NoWindow.
    """
    top, bottom = _first_and_last(_ROWS, items.get("rows") or f"1-{ROWS_SHOWN}", int)
    left, right = _first_and_last(_COLS, items.get("cols") or f"A-{letters(COLS_SHOWN)}", column)
    if not (1 <= top <= bottom <= ROWS_MAX and 1 <= left <= right <= COLS_MAX):
        raise NoWindow("Rows are written like 1-50, columns like A-Z; a sheet has A1 to XFD1048576.")
    window = _window(top, left, min(bottom - top + 1, ROWS_MOST), min(right - left + 1, COLS_MOST))
    name = items.get("cell", "").strip().upper()
    if not name:
        return window, (top, left)
    try:
        cell = parse_cell(name)
    except ValueError:
        raise NoWindow("A cell is written like B7; a sheet has A1 to XFD1048576.") from None
    return window.around(cell), cell


def _first_and_last(pattern: re.Pattern[str], text: str, number: Callable[[str], int]) -> tuple[int, int]:
    """The two numbers of a range; (0, 0), outside of every sheet, for an invalid text."""
    found = pattern.fullmatch(text.strip().upper())
    return (number(found[1]), number(found[2])) if found else (0, 0)


def _window(top: int, left: int, height: int, width: int) -> Window:
    return Window(Rect(top, left, min(top + height - 1, ROWS_MAX), min(left + width - 1, COLS_MAX)))
