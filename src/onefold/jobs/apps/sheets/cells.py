"""Cells of a sheet: their names, their values, and the lines in which chunks and payloads hold them.

A line is `[row,col,"n","12.5"]` and a line feed, in UTF-8: compact JSON, one way to write each value, so that equal content is
equal bytes. Kinds are n (a number), t (a text) and f (a formula). In a payload `[row,col,null]` clears a cell.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

Cell = tuple[int, int]
"""(row, column), both from 1; compared as pairs, which is the order of every chunk."""

# The size of a sheet in the spreadsheets that people have: A1 to XFD1048576.
ROWS_MAX = 1_048_576
COLS_MAX = 16_384
# What a cell may hold, in characters; the same as the contract of sheets.edits.
TEXT_MAX = 32_767
FORMULA_MAX = 8_192
#: The longest text has 32,767 characters, and JSON writes some of them as six bytes; with its cell that is less.
LINE_BYTES_MAX = 1 << 18
#: Before the first cell, and after the last one.
BEGIN: Cell = (0, 0)
END: Cell = (ROWS_MAX + 1, 0)

_NAME = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")
# As a decimal(38, 9) is written shortest: no exponent, no zeros that say nothing, and a zero without a sign.
_NUMBER = r"(?:0|-?(?:[1-9][0-9]{0,28}(?:\.[0-9]{0,8}[1-9])?|0\.[0-9]{0,8}[1-9]))"
_PLAIN = re.compile(rf'\[([1-9][0-9]*),([1-9][0-9]*),(?:null|"n","({_NUMBER})")\]\n'.encode())
_PLACE = re.compile(rb"\[([1-9][0-9]*),([1-9][0-9]*),")


class Value(NamedTuple):
    """What a cell holds.

    Attributes:
        kind: "n", "t" or "f".
        text: a number as its canonical text, a text as it is, a formula with its "=".
    """

    kind: str
    text: str


class Rect(NamedTuple):
    """A rectangle of cells; both corners are inside."""

    top: int
    left: int
    bottom: int
    right: int

    def holds(self, cell: Cell) -> bool:
        """Whether the cell is inside."""
        return self.top <= cell[0] <= self.bottom and self.left <= cell[1] <= self.right

    def meets(self, first: Cell, last: Cell) -> bool:
        """Whether any cell from `first` to `last`, in the order of chunks, is inside."""
        low, high = max(first, (self.top, self.left)), min(last, (self.bottom, self.right))
        if low > high:
            return False
        if low[0] == high[0]:
            return low[1] <= self.right and high[1] >= self.left
        return high[0] - low[0] > 1 or low[1] <= self.right or high[1] >= self.left


class NotCanonical(ValueError):
    """A line that is not as this module would write it."""


def parse_cell(name: str) -> Cell:
    """(7, 2) of "B7". Raises ValueError: it is not the name of a cell, A1 to XFD1048576."""
    found = _NAME.fullmatch(name)
    cell = (int(found[2]), column(found[1])) if found else END
    if not inside(cell):
        raise ValueError(f"{name!r} is not a cell: write one like B7, A1 to XFD1048576")
    return cell


def column(letters: str) -> int:
    """The number of a column, from 1: 28 of "AB"."""
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def letters(number: int) -> str:
    """The name of a column, from 1: "AB" of 28."""
    name = ""
    while number:
        number, digit = divmod(number - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


def name_of(cell: Cell) -> str:
    """ "B7" of (7, 2)."""
    return f"{letters(cell[1])}{cell[0]}"


def parse_rect(text: str) -> Rect:
    """The rectangle of "A1:F20", or of "B7" alone; corners in any order. Raises ValueError: it is none."""
    one, colon, other = text.partition(":")
    (row, col), (to_row, to_col) = parse_cell(one), parse_cell(other if colon else one)
    return Rect(min(row, to_row), min(col, to_col), max(row, to_row), max(col, to_col))


def inside(cell: Cell) -> bool:
    """Whether a sheet has such a cell."""
    return 1 <= cell[0] <= ROWS_MAX and 1 <= cell[1] <= COLS_MAX


def number_text(number: Decimal) -> str:
    """The canonical text of a decimal(38, 9). Raises ValueError: it is not one."""
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    text = "0" if text == "-0" else text
    if not re.fullmatch(_NUMBER, text):
        raise ValueError(f"{number} is not a number with at most 29 digits before the point and 9 after it")
    return text


def value_of(number: Decimal | None, text: str | None, formula: str | None) -> Value | None:
    """What an edit sets a cell to; None: it clears it."""
    if number is not None:
        return Value("n", number_text(number))
    if text is not None:
        return Value("t", text)
    return Value("f", formula) if formula is not None else None


def line_of(cell: Cell, value: Value | None) -> bytes:
    """Its canonical line. A value is what `check` lets through."""
    if value is None:
        return b"[%d,%d,null]\n" % cell
    return json.dumps([*cell, *value], ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def check(value: Value) -> None:
    """Raises ValueError: no cell can hold it."""
    kind, text = value
    if kind == "n":
        if not re.fullmatch(_NUMBER, text):
            raise ValueError(f"{text[:40]!r} is not a number as it is written shortest")
        return
    if kind not in ("t", "f"):
        raise ValueError(f"{kind[:10]!r} is not a kind of value")
    longest = TEXT_MAX if kind == "t" else FORMULA_MAX
    if len(text) > longest:
        raise ValueError(f"{len(text):,} characters are more than the {longest:,} that a cell may hold")
    if kind == "f" and not text.startswith("="):
        raise ValueError("a formula begins with =")
    if "\0" in text or not _encodes(text):
        raise ValueError("a text has a character that cannot be stored: NUL, or half of a surrogate pair")


def parse_line(line: bytes) -> tuple[Cell, Value | None]:
    """The cell and what it is set to; None clears it. Raises NotCanonical."""
    plain = _PLAIN.fullmatch(line)
    if plain:
        cell = (int(plain[1]), int(plain[2]))
        if not inside(cell):
            raise NotCanonical(f"row {cell[0]}, column {cell[1]} is outside of a sheet")
        return cell, Value("n", plain[3].decode()) if plain[3] is not None else None
    try:
        row, col, kind, text = json.loads(line)
        if not (type(row) is type(col) is int and type(kind) is type(text) is str):
            raise ValueError("not two numbers and two strings")
        value = Value(kind, text)
        check(value)
        if not inside((row, col)):
            raise ValueError(f"row {row}, column {col} is outside of a sheet")
        same = line_of((row, col), value) == line
    except (ValueError, TypeError, RecursionError) as error:  # also what is not JSON, not UTF-8, or not of four parts
        raise NotCanonical(f"{line[:60]!r} is not a line of a cell: {error}") from None
    if not same:
        raise NotCanonical(f"{line[:60]!r} is not written as canonical JSON")
    return (row, col), value


def place_of(line: bytes) -> Cell:
    """The cell of a line that we wrote. Raises NotCanonical: it cannot have been us."""
    found = _PLACE.match(line)
    if not found:
        raise NotCanonical(f"{line[:60]!r} is not a line of a chunk")
    return int(found[1]), int(found[2])


def lines_of(content: bytes) -> Iterator[tuple[Cell, bytes]]:
    """The cells and lines of a chunk, in order."""
    for line in content.splitlines(keepends=True):  # JSON writes a carriage return as two characters
        yield place_of(line), line


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
