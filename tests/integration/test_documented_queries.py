"""The queries that the documents give work on the tables that the migrations make."""

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.migrated import migrate_all


def queries(page: Path) -> list[str]:
    return re.findall(r"^```sql\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def tables(database: str, reader: "psycopg.Connection[Any]", checkout: Path) -> "psycopg.Connection[Any]":
    migrate_all(database, checkout / "sql")
    return reader


@pytest.mark.parametrize("page", ["bank.md", "sheets.md"])
def test_every_query_works(page: str, tables: "psycopg.Connection[Any]", checkout: Path) -> None:
    found = queries(checkout / "docs" / page)
    assert found
    for query in found:
        assert tables.execute(query.encode()).fetchall() == []


ENTRIES = """
    INSERT INTO sheets.entries (sheet_id, entry, segment, kind, cell, row, col, number, text, topic, partition, "offset")
    SELECT 'sheet-1', entry, 0, CASE entry WHEN 101 THEN 'snapshot' ELSE 'edit' END,
           'A' || nullif(entry, 101) % 60, nullif(entry, 101) % 60, 1 + nullif(entry, 101) * 0, nullif(entry, 101), NULL,
           'sheets.entries', 0, entry
    FROM generate_series(1, 103) AS entry
"""


def test_of_a_sheet_they_say_how_far_it_is_and_what_is_in_it(tables: "psycopg.Connection[Any]", checkout: Path) -> None:
    """103 entries, of which the 101st is a snapshot entry, and made."""
    tables.execute(ENTRIES)
    tables.execute(
        "INSERT INTO sheets.sheets VALUES ('sheet-1', 103, 102, 101, 101, 'snapshots/1', 'sheets.sheets', 0, 9)"
    )
    how_far, behind, cells = (
        tables.execute(query.encode()).fetchall() for query in queries(checkout / "docs/sheets.md")
    )
    assert how_far == [("sheet-1", 103, 101, 101, 2)]
    assert [row[:3] for row in behind] == [(102, "A42", 102), (103, "A43", 103)]
    assert {row[0]: row[1] for row in cells} == {f"A{entry % 60}": entry for entry in range(1, 104) if entry != 101}
