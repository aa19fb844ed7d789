"""Conversion of CSV into the canonical lines of a payload."""

import csv
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import TextIO

from onefold.jobs.apps.sheets.cells import COLS_MAX, ROWS_MAX, TEXT_MAX, Value, check, line_of, name_of, number_text

# Unambiguous numbers. "007" and "1e5" may have a different meaning, and stay texts.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,28})(?:\.[0-9]{1,9})?")


class NotATable(ValueError):
    """A sentence with the place in the file and the reason why the file cannot be imported."""


def payload_lines(table: TextIO) -> Iterator[bytes]:
    """The payload lines of a CSV file opened with newline="". Raises NotATable.

    A field that begins with = is a formula. An empty field leaves its cell unchanged.
    """
    csv.field_size_limit(
        4 * TEXT_MAX
    )  # above a cell's bound, so that the error names the cell, but finite for an unclosed quote
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
