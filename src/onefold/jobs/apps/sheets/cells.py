"""Cells of a sheet: their names, their values, and their lines in chunks and payloads.

A line is `[row,col,"n","12.5"]` and a line feed, in UTF-8. Lines are compact canonical JSON, so equal content has equal bytes.
Kinds are n (a number), t (a text) and f (a formula). In a payload `[row,col,null]` clears a cell.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

Cell = tuple[int, int]
"""(row, column), both from 1; compared as pairs, which is the order of every chunk."""

# The size of a sheet in common spreadsheet programs: A1 to XFD1048576.
ROWS_MAX = 1_048_576
COLS_MAX = 16_384
# The bounds of a cell's content in characters, as in the pipeline's handler.
TEXT_MAX = 32_767
FORMULA_MAX = 8_192
#: Above the longest line: a text of 32,767 characters, of up to six bytes each in JSON, and its cell.
LINE_BYTES_MAX = 1 << 18
#: Before the first cell, and after the last.
BEGIN: Cell = (0, 0)
END: Cell = (ROWS_MAX + 1, 0)

_NAME = re.compile(r"([A-Z]{1,3})([1-9][0-9]{0,6})")
# The shortest form of a decimal(38, 9): no exponent, no redundant zeros, no sign before zero.
_NUMBER = r"(?:0|-?(?:[1-9][0-9]{0,28}(?:\.[0-9]{0,8}[1-9])?|0\.[0-9]{0,8}[1-9]))"
_PLAIN = re.compile(rf'\[([1-9][0-9]*),([1-9][0-9]*),(?:null|"n","({_NUMBER})")\]\n'.encode())
_PLACE = re.compile(rb"\[([1-9][0-9]*),([1-9][0-9]*),")


class Value(NamedTuple):
    """The content of a cell.

    Attributes:
        kind: "n", "t" or "f".
        text: The canonical text of a number, a text unchanged, or a formula with its "=".
    """

    kind: str
    text: str


class Rect(NamedTuple):
    """A rectangle of cells, including both corners."""

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
    """A line in a different form than this module's."""


def parse_cell(name: str) -> Cell:
    """The cell of a name: (7, 2) for "B7". Raises ValueError for a name outside A1 to XFD1048576."""
    found = _NAME.fullmatch(name)
    cell = (int(found[2]), column(found[1])) if found else END
    if not inside(cell):
        raise ValueError(f"{name!r} is not a cell: write one like B7, A1 to XFD1048576")
    return cell


def column(letters: str) -> int:
    """The number of a column, from 1: 28 for "AB"."""
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number


def letters(number: int) -> str:
    """The name of a column: "AB" for 28."""
    name = ""
    while number:
        number, digit = divmod(number - 1, 26)
        name = chr(ord("A") + digit) + name
    return name


def name_of(cell: Cell) -> str:
    """The name of a cell: "B7" for (7, 2)."""
    return f"{letters(cell[1])}{cell[0]}"


def parse_rect(text: str) -> Rect:
    """The rectangle of "A1:F20", or of "B7" alone, with corners in any order. Raises ValueError for an invalid text."""
    one, colon, other = text.partition(":")
    (row, col), (to_row, to_col) = parse_cell(one), parse_cell(other if colon else one)
    return Rect(min(row, to_row), min(col, to_col), max(row, to_row), max(col, to_col))


def inside(cell: Cell) -> bool:
    """Whether the cell is within the size of a sheet."""
    return 1 <= cell[0] <= ROWS_MAX and 1 <= cell[1] <= COLS_MAX


def number_text(number: Decimal) -> str:
    """The canonical text of a decimal(38, 9). Raises ValueError for a number out of this range."""
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    text = "0" if text == "-0" else text
    if not re.fullmatch(_NUMBER, text):
        raise ValueError(f"{number} is not a number with at most 29 digits before the point and 9 after it")
    return text


def value_of(number: Decimal | None, text: str | None, formula: str | None) -> Value | None:
    """The cell's value after an edit with these fields; None if the edit clears the cell."""
    if number is not None:
        return Value("n", number_text(number))
    if text is not None:
        return Value("t", text)
    return Value("f", formula) if formula is not None else None


def line_of(cell: Cell, value: Value | None) -> bytes:
    """The canonical line of a cell and its value, which must satisfy `check`. None clears the cell."""
    if value is None:
        return b"[%d,%d,null]\n" % cell
    return json.dumps([*cell, *value], ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def check(value: Value) -> None:
    """Raise ValueError for a value that no cell can have."""
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
    """The cell of a line and its value; None clears the cell. Raises NotCanonical."""
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
    except (
        ValueError,
        TypeError,
        RecursionError,
    ) as error:  # also for invalid JSON, invalid UTF-8, or a wrong number of parts
        raise NotCanonical(f"{line[:60]!r} is not a line of a cell: {error}") from None
    if not same:
        raise NotCanonical(f"{line[:60]!r} is not written as canonical JSON")
    return (row, col), value


def place_of(line: bytes) -> Cell:
    """The cell of a line written by this module. Raises NotCanonical for any foreign line."""
    found = _PLACE.match(line)
    if not found:
        raise NotCanonical(f"{line[:60]!r} is not a line of a chunk")
    return int(found[1]), int(found[2])


def lines_of(content: bytes) -> Iterator[tuple[Cell, bytes]]:
    """The cells and lines of a chunk, in order."""
    for line in content.splitlines(keepends=True):  # safe, because JSON escapes a carriage return
        yield place_of(line), line


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
