"""When Postgres refuses a row: find which, set them aside with the reason, let all others through.

Postgres names the error, not the row. So halve the batch until single rows are left, each try in a transaction of
its own that is always rolled back. This is rare, and it goes through the driver whatever the size of the batch.
"""

import csv
import io
from collections.abc import Mapping

import psycopg
import pyarrow as pa
from psycopg import sql

from onefold.spark_sink.contracts import REJECTED, Target
from onefold.spark_sink.errors import Refused, blames_a_row, sentence
from onefold.spark_sink.landing.land import merge
from onefold.spark_sink.landing.protocols import Records
from onefold.spark_sink.landing.stage import DriverStaged, Stage, by_target
from onefold.spark_sink.postgres.connection import Connection


def set_aside(
    connection: Connection, sink: str, stage: Stage, rows: pa.Table, targets: Mapping[str, Target], records: Records
) -> pa.Table:
    """`rows` again, with each row that Postgres refuses turned into a row for REJECTED.

    Raises:
        psycopg.Error: no single row is to blame.
        Refused: the row stands for the batch as a whole.
    """
    kept: list[pa.Table] = []
    for name, part in by_target(rows):
        if name is None:
            kept.append(part)
            continue
        error = _try(connection, stage, part, targets[name])
        if error and targets[name].reduced:
            raise Refused(f"Postgres refuses what sql/reduce/{name}.sql makes of a batch: {sentence(error)}") from error
        refused = _halve(connection, stage, part, targets[name]) if error else {}
        if error and not refused:
            raise error
        kept.append(_replace(part, sink, refused, records))
    return pa.concat_tables(kept)


def _try(connection: Connection, stage: Stage, part: pa.Table, target: Target) -> psycopg.Error | None:
    """The error that merging `part` runs into, or None. Changes nothing."""
    staged = DriverStaged(stage, part)
    connection.execute("BEGIN")
    try:
        staged.fill(connection)
        connection.execute(merge(target, _in_brackets(staged, target)))
    except psycopg.Error as error:
        if connection.closed or not blames_a_row(error):
            raise
        return error
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")
    return None


def _in_brackets(staged: DriverStaged, target: Target) -> sql.Composable:
    return sql.SQL("({})").format(staged.relation(target.name))


def _halve(connection: Connection, stage: Stage, part: pa.Table, target: Target) -> dict[int, str]:
    """Row number -> reason, for each row that is refused even when it is alone."""
    refused: dict[int, str] = {}
    open_ranges = [(0, part.num_rows)]
    while open_ranges:
        start, end = open_ranges.pop()
        error = _try(connection, stage, part.slice(start, end - start), target)
        if error is not None and end - start == 1:
            refused[start] = f"Postgres refused the row: {sentence(error)}"
        elif error is not None:
            middle = (start + end) // 2
            open_ranges += [(start, middle), (middle, end)]
    return refused


def _replace(part: pa.Table, sink: str, refused: dict[int, str], records: Records) -> pa.Table:
    if not refused:
        return part
    rows = part.to_pylist()
    for number, reason in refused.items():
        row = rows[number]
        record = records.record_from(row["topic"], row["partition"], row["offset"])
        value = (record.value if record and record.offset == row["offset"] else None) or b""
        origin = (row["topic"], row["partition"], row["offset"])
        row["target"], row["line"] = REJECTED, _line(sink, reason, "\\x" + value.hex(), *origin)
    return pa.Table.from_pylist(rows, schema=part.schema)


def _line(*cells: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
