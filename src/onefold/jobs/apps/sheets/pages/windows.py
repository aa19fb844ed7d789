"""Which cells of a sheet the page shows: a window of rows and columns, as its address says, and the ways on from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onefold.jobs.apps.sheets.cells import COLS_MAX, ROWS_MAX, Cell, Rect, column, letters, parse_cell
from onefold.view import Unreadable

# What is shown unless the address says otherwise, and at most: a page of some hundred kilobytes, whatever a sheet has.
ROWS_SHOWN, COLS_SHOWN = 50, 26
ROWS_MOST, COLS_MOST = 200, 52

_ROWS = re.compile(r"([1-9][0-9]{0,6})-([1-9][0-9]{0,6})")
_COLS = re.compile(r"([A-Z]{1,3})-([A-Z]{1,3})")


class NoWindow(Unreadable):
    """The address asks for no part of a sheet."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, 400)


@dataclass(frozen=True)
class Way:
    """A link to a neighbouring window.

    Attributes:
        name: "up", "down", "left" or "right".
        items: its address.
    """

    name: str
    arrow: str
    text: str
    items: Mapping[str, str]


@dataclass(frozen=True)
class Window:
    """The cells that are shown."""

    rect: Rect

    #: Of the whole sheet.
    row_count = ROWS_MAX
    col_count = COLS_MAX

    @property
    def rows(self) -> str:
        """As the address has them: 1-50."""
        return f"{self.rect.top}-{self.rect.bottom}"

    @property
    def cols(self) -> str:
        """As the address has them: A-Z."""
        return f"{letters(self.rect.left)}-{letters(self.rect.right)}"

    @property
    def heads(self) -> list[tuple[str, int]]:
        """The name and the number of each column."""
        return [(letters(number), number) for number in range(self.rect.left, self.rect.right + 1)]

    @property
    def items(self) -> dict[str, str]:
        """Its address."""
        return {"rows": self.rows, "cols": self.cols}

    @property
    def ways(self) -> list[Way]:
        """To the windows beside it, as far as the sheet goes."""
        top, left, bottom, right = self.rect
        height, width = bottom - top + 1, right - left + 1
        there = {
            ("up", "\N{UPWARDS ARROW}"): self._moved(-height, 0) if top > 1 else None,
            ("down", "\N{DOWNWARDS ARROW}"): self._moved(height, 0) if bottom < ROWS_MAX else None,
            ("left", "\N{LEFTWARDS ARROW}"): self._moved(0, -width) if left > 1 else None,
            ("right", "\N{RIGHTWARDS ARROW}"): self._moved(0, width) if right < COLS_MAX else None,
        }
        return [
            Way(
                name, arrow, f"rows {window.rows}" if name in ("up", "down") else f"columns {window.cols}", window.items
            )
            for (name, arrow), window in there.items()
            if window is not None
        ]

    def around(self, cell: Cell) -> Window:
        """The window of the same size that has the cell, and this one when it has."""
        if self.rect.holds(cell):
            return self
        height, width = self.rect.bottom - self.rect.top + 1, self.rect.right - self.rect.left + 1
        return _window((cell[0] - 1) // height * height + 1, (cell[1] - 1) // width * width + 1, height, width)

    def _moved(self, down: int, right: int) -> Window:
        top, left, bottom, end = self.rect
        return _window(max(1, top + down), max(1, left + right), bottom - top + 1, end - left + 1)


def window_of(items: Mapping[str, str]) -> tuple[Window, Cell]:
    """The window that an address asks for, and the cell that is chosen in it: its first one unless the address says so.

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
    """Both 0, which no sheet has, when it is not written so."""
    found = pattern.fullmatch(text.strip().upper())
    return (number(found[1]), number(found[2])) if found else (0, 0)


def _window(top: int, left: int, height: int, width: int) -> Window:
    return Window(Rect(top, left, min(top + height - 1, ROWS_MAX), min(left + width - 1, COLS_MAX)))
