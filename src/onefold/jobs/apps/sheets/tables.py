"""CSV into the canonical lines of a payload, line by line."""

import csv
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import TextIO

from onefold.jobs.apps.sheets.cells import COLS_MAX, ROWS_MAX, TEXT_MAX, Value, check, line_of, name_of, number_text

# What is a number for everybody. "007" and "1e5" may be anything, and stay as they are written.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,28})(?:\.[0-9]{1,9})?")


class NotATable(ValueError):
    """What cannot be imported, and where; as a sentence."""


def payload_lines(table: TextIO) -> Iterator[bytes]:
    """The lines of what a CSV file holds; it is opened with newline="". What begins with = is a formula, an empty field leaves
    its cell as it is. Raises NotATable.
    """
    csv.field_size_limit(
        4 * TEXT_MAX
    )  # what is too long for a cell is said by its name, and what has no end is not read
    row = 0
    try:
        for row, fields in enumerate(csv.reader(table, strict=True), 1):
            if row > ROWS_MAX or len(fields) > COLS_MAX:
                raise NotATable(
                    f"row {row:,} has {len(fields):,} fields: a sheet has {ROWS_MAX:,} rows and {COLS_MAX:,} columns"
                )
            for col, field in enumerate(fields, 1):
                if field:
                    yield line_of((row, col), _checked((row, col), field))
    except csv.Error as error:
        raise NotATable(f"row {row + 1:,} is not CSV: {error}") from None
    except UnicodeDecodeError:
        raise NotATable(f"what comes after row {row:,} is not text in UTF-8") from None


def _checked(cell: tuple[int, int], field: str) -> Value:
    if _NUMBER.fullmatch(field):
        return Value("n", number_text(Decimal(field)))
    value = Value("f" if field.startswith("=") else "t", field)
    try:
        check(value)
    except ValueError as error:
        raise NotATable(f"cell {name_of(cell)}: {error}") from None
    return value
