"""`onefold sheets open`: print a sheet as a table, from the newest finished snapshot and the later entries."""

from __future__ import annotations

import json
from contextlib import closing
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onefold.config.errors import UserError, of_postgres
from onefold.config.settings import load
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.printable import printable

if TYPE_CHECKING:
    from onefold.jobs.apps.sheets.cells import Cell, Rect
    from onefold.jobs.apps.sheets.formulas import Result
    from onefold.jobs.apps.sheets.reading import Reading

# The size of a usual terminal.
DEFAULT_RANGE = "A1:J40"
_TEXT_SHOWN = 40
# Nine digits after the point, as in a cell. The context is wide enough for the results of formulas.
_NINTH, _WIDE = Decimal("1E-9"), Context(prec=60, rounding=ROUND_HALF_EVEN)


def command(
    sheet: Annotated[str, typer.Argument(help="The sheet's id.")],
    at: Annotated[int | None, typer.Option(min=1, help="As it was after this entry; the newest if not given.")] = None,
    cells: Annotated[str, typer.Option("--range", help="The cells to print, as A1:F20.")] = DEFAULT_RANGE,
    formulas: Annotated[bool, typer.Option("--formulas", help="Print formulas, not what they amount to.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cells as JSON.")] = False,
) -> None:
    """Print cells of a sheet, and below the cells their snapshot and the number of bytes and rows read.

    Example: onefold sheets open budget --at 250 --range A1:F20
    """
    from onefold.jobs.apps.sheets.cells import parse_rect

    try:
        rect = parse_rect(cells.upper().replace("$", ""))
    except ValueError:
        raise UserError(
            Code.ARGUMENT_WRONG, f"--range {cells} is no range of cells", "Write it like A1:F20.", USAGE
        ) from None
    found = _read(sheet, at, rect, formulas)
    typer.echo(json.dumps(found, ensure_ascii=False, indent=1) if as_json else _text(found, rect))


def _read(sheet: str, at: int | None, rect: Rect, formulas: bool) -> dict[str, Any]:
    """{"sheet", "entry", "snapshot", "tail", "bytes_read", "rows_read", "cells": {name: {"kind", "held", "shown"}}}."""
    import psycopg

    from onefold.jobs.apps.sheets.entries import Entries
    from onefold.jobs.apps.sheets.reading import NotThere, Reading
    from onefold.jobs.objects import open_to_read
    from onefold.jobs.protocols import Missing, Refuse
    from onefold.spark_sink.postgres.connection import connect

    settings = load()
    dsn, store = settings.postgres(), open_to_read(settings.object_store(), settings.objects_endpoint)
    try:
        with closing(Entries(lambda: connect(dsn, "sheet open"))) as entries:
            reading = Reading(entries, store, sheet, at)
            shown = _cells(reading, rect, formulas)
            return {
                "sheet": sheet,
                "entry": reading.entry,
                "snapshot": reading.snapshot,
                "tail": reading.tail,
                "bytes_read": reading.counted.bytes_read,
                "rows_read": entries.rows_read,
                "cells": shown,
            }
    except NotThere as error:
        raise UserError(
            Code.NAME_UNKNOWN, str(error), "SELECT * FROM sheets.sheets has them all: `onefold sql`."
        ) from None
    except psycopg.errors.UndefinedTable:
        raise UserError(
            Code.TABLE_MISSING, "the database has no tables of sheets", "Make them with `onefold migrate`."
        ) from None
    except psycopg.OperationalError as error:
        raise of_postgres(error, "the sheet could not be read") from None
    except Missing as error:
        raise UserError(
            Code.OBJECT_MISSING,
            f"the object {error} of sheet {sheet} is not in the store",
            "Is ONEFOLD_OBJECTS the store that the worker uses?",
        ) from None
    except Refuse as error:
        raise UserError(Code.SHEET_UNREADABLE, f"sheet {sheet} cannot be read: {error}") from None


def _cells(reading: Reading, rect: Rect, formulas: bool) -> dict[str, dict[str, str]]:
    from onefold.jobs.apps.sheets.cells import name_of
    from onefold.jobs.apps.sheets.formulas import Formulas

    evaluated = Formulas(reading)
    # Read all cells before the evaluation, because formulas read from the same database connection.
    held = list(reading.cells(rect))
    return {
        name_of(cell): {
            "kind": value.kind,
            "held": value.text,
            "shown": value.text if formulas else _shown(evaluated.shown(cell, value)),
        }
        for cell, value in held
    }


def _shown(result: Result) -> str:
    from onefold.jobs.apps.sheets.cells import number_text

    if not isinstance(result, Decimal):
        return result or ""
    rounded = result.quantize(_NINTH, context=_WIDE)
    try:
        return number_text(rounded)
    except ValueError:  # after rounding up, the number has a digit more than a cell allows
        return f"{rounded:f}"


def _text(found: dict[str, Any], rect: Rect) -> str:
    return "\n".join([*_table(found["cells"], rect), _footer(found)])


def _table(cells: dict[str, dict[str, str]], rect: Rect) -> list[str]:
    """The rows and columns up to the last nonempty cell. Numbers are right-aligned."""
    from onefold.jobs.apps.sheets.cells import letters, parse_cell

    if not cells:
        return ["(no cell of the range holds anything)"]
    at: dict[Cell, dict[str, str]] = {parse_cell(name): cell for name, cell in cells.items()}
    rows = range(min(row for row, _ in at), max(row for row, _ in at) + 1)
    cols = range(rect.left, max(col for _, col in at) + 1)
    lines = [["", *map(letters, cols)]]
    lines += [[str(row), *(_fitted(at.get((row, col))) for col in cols)] for row in rows if _any(at, row, cols)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    right = {(row, col) for (row, col), cell in at.items() if cell["kind"] != "t"}
    made = []
    for line in lines:
        row = int(line[0] or 0)
        parts = [line[0].rjust(widths[0])]
        for col, text, width in zip(cols, line[1:], widths[1:], strict=True):
            parts.append(text.rjust(width) if (row, col) in right else text.ljust(width))
        made.append("  ".join(parts).rstrip())
    return made


def _any(at: dict[Cell, dict[str, str]], row: int, cols: range) -> bool:
    return any((row, col) in at for col in cols)


def _fitted(cell: dict[str, str] | None) -> str:
    if cell is None:
        return ""
    text = printable(cell["shown"])
    return text if len(text) <= _TEXT_SHOWN or cell["kind"] == "n" else text[: _TEXT_SHOWN - 1] + "…"


def _footer(found: dict[str, Any]) -> str:
    entries = f"{found['tail']:,} {'entry' if found['tail'] == 1 else 'entries'}"
    source = (
        f"the snapshot of entry {found['snapshot']:,} and {entries} after it"
        if found["snapshot"]
        else f"no snapshot, for none is finished yet, and {entries}"
    )
    return (
        f"{found['sheet']} after entry {found['entry']:,}: {source};"
        f" {found['bytes_read']:,} bytes and {found['rows_read']:,} rows read."
    )
