"""The list of sheets: the length of each log, and its newest snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

PAGE_SHEETS = 50

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


@dataclass(frozen=True)
class Sheet:
    """A sheet of the list.

    Attributes:
        entries: The number of entries in the log.
        snapshot: The entry of the newest finished snapshot; 0 without a snapshot.
        snapshots: The number of finished snapshots.
        cells, size, chunks, shared: Of the newest snapshot. `size` is in bytes, and `shared` counts the chunks from earlier
            snapshots.
    """

    sheet_id: str
    entries: int
    snapshot: int
    snapshots: int
    cells: int | None
    size: int | None
    chunks: int | None
    shared: int | None


async def there(connection: Connection) -> bool:
    """Whether the database has the tables of `sheets` and the connection may read the tables. Raises psycopg.Error."""
    (found,) = await (await connection.execute(_THERE)).fetchone() or (False,)
    return bool(found)


async def fetch(connection: Connection, after: str) -> tuple[list[Sheet], bool]:
    """A page of sheets in the order of their ids, and whether more sheets follow. Raises psycopg.Error."""
    rows = await (await connection.execute(_SHEETS, (after, PAGE_SHEETS + 1))).fetchall()
    return [Sheet(*row) for row in rows[:PAGE_SHEETS]], len(rows) > PAGE_SHEETS


async def known(connection: Connection, sheet_id: str) -> bool:
    """Whether the sheet exists. Raises psycopg.Error."""
    cursor = await connection.execute("SELECT FROM sheets.entries WHERE sheet_id = %s LIMIT 1", (sheet_id,))
    return await cursor.fetchone() is not None


_THERE = """
SELECT coalesce(bool_and(has_table_privilege(to_regclass(name), 'SELECT')), false)
FROM unnest(ARRAY['sheets.sheets', 'sheets.entries', 'sheets.snapshots']) AS name
WHERE CASE WHEN to_regnamespace('sheets') IS NULL THEN false ELSE has_schema_privilege('sheets', 'USAGE') END
"""
_SHEETS = """
SELECT sheet_id, sheet.entries, sheet.finished, made.snapshots, newest.cells, newest.size, newest.chunks, newest.shared
FROM (SELECT * FROM sheets.sheets WHERE sheet_id > %s ORDER BY sheet_id LIMIT %s) AS sheet
CROSS JOIN LATERAL (
    SELECT count(*) AS snapshots FROM sheets.snapshots AS each WHERE each.sheet_id = sheet.sheet_id
) AS made
LEFT JOIN LATERAL (
    SELECT cells, size, chunks, shared FROM sheets.snapshots AS each
    WHERE (each.sheet_id, each.entry) = (sheet.sheet_id, sheet.finished)
) AS newest ON true
ORDER BY sheet_id
"""
