"""Logs of sheets in a real database, as if written by the sink; and an independent reader of snapshots."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

from onefold.jobs.apps.sheets.cells import name_of
from onefold.jobs.apps.sheets.entries import Entries
from onefold.jobs.apps.sheets.merge import MergeBounds
from onefold.jobs.apps.sheets.snapshot import FinishedSnapshot, Snapshots
from onefold.jobs.protocols import Done, Job, Objects, Place
from onefold.spark_sink.postgres.connection import connect
from tests.support.rooms import ROOT

#: Content of a cell: a number, a text, or a formula as a text with "=" in front; None: empty.
Held = Decimal | str | None
Cells = Mapping[tuple[int, int], Held]
QUEUE = "sheets.jobs"
# In memory, because syncing thousands of objects to a disk takes minutes, and durability is not tested here.
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
_INSERT = (
    'INSERT INTO sheets.entries (sheet_id, entry, segment, kind, cell, "row", col, number, "text", formula, object_id,'
    " topic, partition, \"offset\") VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 'sheets.entries', 0, %s)"
)


def prepared(dsn: str) -> str:
    """Create the tables of sheets; returns the database's connection string."""
    with psycopg.connect(dsn) as connection:
        connection.execute((ROOT / "sql" / "schema" / "sheets.01.sql").read_bytes())
    return dsn


def payload_of(cells: Cells) -> bytes:
    """Encode a payload, independently of the product."""
    lines = []
    for (row, col), held in sorted(cells.items()):
        if held is None:
            lines.append(f"[{row},{col},null]\n")
        else:
            kind, text = ("n", f"{held}") if isinstance(held, Decimal) else ("f" if held[:1] == "=" else "t", held)
            lines.append(f'[{row},{col},"{kind}",{json.dumps(text, ensure_ascii=False)}]\n')
    return "".join(lines).encode()


@dataclass
class SheetLog:
    """One sheet's log, with a model.

    Attributes:
        model: cells after each snapshot entry.
    """

    dsn: str
    sheet: str
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    cells: dict[tuple[int, int], Held] = field(default_factory=dict)
    model: dict[int, dict[tuple[int, int], Held]] = field(default_factory=dict)
    payloads: dict[str, bytes] = field(default_factory=dict)

    @property
    def entry(self) -> int:
        """The newest entry."""
        return len(self.rows)

    def edit(self, cell: tuple[int, int], held: Held) -> None:
        """Set or clear a cell."""
        number, text = (held, None) if isinstance(held, Decimal) else (None, held)
        is_formula = text is not None and text.startswith("=")
        self._add("edit", name_of(cell), *cell, number, None if is_formula else text, text if is_formula else None)
        self._set({cell: held})

    def take_in(self, cells: Cells) -> str:
        """Import a payload; returns the name of the required object."""
        content = payload_of(cells)
        name = "payloads/" + hashlib.sha256(content).hexdigest()
        self.payloads[name] = content
        self._add("import", object_id=name)
        self._set(cells)
        return name

    def ask(self) -> Job:
        """Add a snapshot entry, and return the job."""
        self._add("snapshot")
        self.model[self.entry] = dict(self.cells)
        return self.job(self.entry)

    def job(self, entry: int) -> Job:
        """The job of a snapshot entry."""
        place = Place((entry - 1) // 1000, entry)
        return Job(QUEUE, self.sheet, place, {"log_id": self.sheet, **place._asdict()})

    @property
    def jobs(self) -> list[Job]:
        """The jobs of all snapshot entries, in order."""
        return [self.job(entry) for entry in self.model]

    def land(self, *objects: Objects) -> None:
        """Write the entries to the tables, and the payloads to the stores."""
        with psycopg.connect(self.dsn) as connection, connection.cursor() as rows:
            rows.executemany(_INSERT, self.rows)
        for store in objects:
            for name, content in self.payloads.items():
                store.put(name, content)

    def _set(self, cells: Cells) -> None:
        for cell, held in cells.items():
            if held is None:
                self.cells.pop(cell, None)
            else:
                self.cells[cell] = held

    def _add(
        self,
        kind: str,
        cell: str | None = None,
        row: int | None = None,
        col: int | None = None,
        number: Decimal | None = None,
        text: str | None = None,
        formula: str | None = None,
        object_id: str | None = None,
    ) -> None:
        entry, segment = self.entry + 1, self.entry // 1000
        self.rows.append(
            (self.sheet, entry, segment, kind, cell, row, col, number, text, formula, object_id, self.entry)
        )


def finish_in_tables(dsn: str, told: FinishedSnapshot) -> None:
    """Write the row of a finished snapshot."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO sheets.snapshots (sheet_id, segment, entry, root, cells, size, chunks, shared, topic, partition,"
            " \"offset\") VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 'sheets.snapshots', 0, 0) ON CONFLICT DO NOTHING",
            (told.sheet_id, told.segment, told.entry, told.root, told.cells, told.size, told.chunks, told.shared),
        )


@contextmanager
def effect(dsn: str, objects: Objects, bounds: MergeBounds | None = None) -> Iterator[Snapshots]:
    """One worker's effect, which writes finished snapshots directly to the tables."""
    entries = Entries(lambda: connect(dsn, "test"))
    try:
        yield Snapshots(entries, objects, lambda told: finish_in_tables(dsn, told), bounds)
    finally:
        entries.close()


def stored(state: Any) -> Any:
    """A checkpoint as the database returns it."""
    return json.loads(json.dumps(state))


def done(made: Snapshots, job: Job, newest: Done | None, state: Any = None) -> Done:
    """Do a job from a checkpoint on, without interruption."""
    for reached in made.steps(job, state, newest):
        state = stored(reached)
    return Done(job.place, stored(made.finish(job, state)))


def all_done(made: Snapshots, jobs: Iterable[Job]) -> list[Done]:
    """Do the jobs of a log in order."""
    finished: list[Done] = []
    for job in jobs:
        newest = finished[-1] if finished else None
        assert made.before(job, newest) == []
        finished.append(done(made, job, newest))
    return finished


def reachable(objects: Objects, root: str) -> set[str]:
    """All objects of a snapshot, by an independent reader."""
    pages = json.loads(objects.get(root))["pages"]
    chunks = {chunk["id"] for page in pages for chunk in json.loads(objects.get(page))["chunks"]}
    return {root, *pages, *chunks}


def read_back(objects: Objects, root: str) -> dict[tuple[int, int], Held]:
    """Read the cells of a snapshot, and check the data in pages and root."""
    top = json.loads(objects.get(root))
    cells: dict[tuple[int, int], Held] = {}
    total = 0
    for page in top["pages"]:
        for chunk in json.loads(objects.get(page))["chunks"]:
            content = objects.get(chunk["id"])
            lines = [json.loads(line) for line in content.decode().split("\n")[:-1]]
            places = [(row, col) for row, col, *_ in lines]
            assert places == sorted(set(places)), "lines are in order, each cell once"
            assert not cells or max(cells) < places[0], "chunks are in order"
            assert [chunk["first"], chunk["last"]] == [lines[0][:2], lines[-1][:2]]
            assert (chunk["cells"], chunk["size"]) == (len(lines), len(content))
            cells |= {
                (row, col): Decimal(rest[1]) if rest[0] == "n" else rest[1] for row, col, *rest in lines
            }  # fmt: skip
            total += len(content)
    assert (top["cells"], top["size"]) == (len(cells), total)
    return cells
