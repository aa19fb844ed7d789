"""A sheet for tests of the page, with log and snapshots in a real database and a real store."""

from collections.abc import Mapping
from decimal import Decimal

import psycopg

from onefold.jobs.apps.sheets.cells import parse_cell
from onefold.jobs.protocols import Done, Objects
from tests.support.sheets import Held, SheetLog, done, effect

_STANDING = """
INSERT INTO sheets.sheets (sheet_id, entries, edits, asked, finished, root, topic, partition, "offset")
SELECT %(sheet)s, count(*), count(*) FILTER (WHERE kind <> 'snapshot'),
       coalesce(max(entry) FILTER (WHERE kind = 'snapshot'), 0), coalesce((SELECT max(entry) FROM made), 0),
       (SELECT root FROM made ORDER BY entry DESC LIMIT 1), 'sheets.sheets', 0, count(*)
FROM sheets.entries WHERE sheet_id = %(sheet)s
ON CONFLICT (sheet_id) DO UPDATE
SET entries = excluded.entries, edits = excluded.edits, asked = excluded.asked, finished = excluded.finished,
    root = excluded.root, "offset" = excluded."offset"
"""


class ShownSheet:
    """One sheet, whose cells are set by name and written at once."""

    def __init__(self, dsn: str, store: Objects, sheet_id: str) -> None:
        self.dsn, self.store, self.sheet_id = dsn, store, sheet_id
        self._log = SheetLog(dsn, sheet_id)
        self._landed = 0
        self._newest: Done | None = None

    @property
    def entry(self) -> int:
        """The newest entry."""
        return self._log.entry

    def set(self, cells: Mapping[str, Held | int]) -> None:
        """Edit cells; an int is a number, None clears."""
        for name, held in cells.items():
            self._log.edit(parse_cell(name), Decimal(held) if isinstance(held, int) else held)
        self._land()

    def take_in(self, cells: Mapping[tuple[int, int], Held]) -> None:
        """Import cells."""
        self._log.take_in(cells)
        self._land()

    def snapshot(self) -> str:
        """Request and make a snapshot; returns the root."""
        job = self._log.ask()
        self._land()
        with effect(self.dsn, self.store) as made:
            self._newest = done(made, job, self._newest)
        self._stand()
        return str(self._newest.result["root"])

    def _land(self) -> None:
        later = SheetLog(self.dsn, self.sheet_id, self._log.rows[self._landed :], payloads=self._log.payloads)
        later.land(self.store)
        self._landed = self.entry
        self._stand()

    def _stand(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            made = "WITH made AS (SELECT entry, root FROM sheets.snapshots WHERE sheet_id = %(sheet)s)"
            connection.execute(made + _STANDING, {"sheet": self.sheet_id})
