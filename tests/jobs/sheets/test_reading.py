"""Opening a sheet: the snapshot and the entries after it, any entry, any range; and how little is read for it."""

import json
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.cli.main import run
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, UNAVAILABLE, USAGE
from onefold.jobs.apps.sheets.cells import Rect, Value
from onefold.jobs.apps.sheets.entries import EVERYWHERE, Entries
from onefold.jobs.apps.sheets.merge import Bounds
from onefold.jobs.apps.sheets.reading import NotThere, Reading
from onefold.jobs.objects.local import LocalStore
from onefold.spark_sink.postgres.connection import connect
from tests.support.coded import code_of
from tests.support.sheets import MEMORY, Held, SheetLog, all_done, effect, prepared

NAMES = (f"sheet-{number}" for number in count(1))


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as made:
        yield Path(made)


@pytest.fixture
def store(home: Path) -> LocalStore:
    return LocalStore(home / "objects")


@pytest.fixture
def tables(database: str) -> str:
    return prepared(database)


@pytest.fixture
def entries(tables: str) -> Iterator[Entries]:
    made = Entries(lambda: connect(tables, "test"))
    yield made
    made.close()


@pytest.fixture
def arguments(tables: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a user with a database and a folder of objects."""
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", tables)
    monkeypatch.setenv("ONEFOLD_OBJECTS", (home / "objects").as_uri())


def held(value: Value) -> Held:
    return Decimal(value.text) if value.kind == "n" else value.text


CELLS = st.tuples(st.integers(1, 8), st.integers(1, 4))
HELD = st.one_of(st.none(), st.integers(0, 99).map(Decimal), st.just("text"), st.just("=A1"))
OPS = st.lists(
    st.one_of(
        st.tuples(CELLS, HELD), st.tuples(CELLS, HELD), st.dictionaries(CELLS, HELD, max_size=12), st.none()
    ),
    min_size=1,
    max_size=25,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(ops=OPS, unfinished=st.integers(0, 2), corners=st.tuples(CELLS, CELLS))
def test_every_entry_can_be_read(
    ops: list[object], unfinished: int, corners: tuple[tuple[int, int], ...], tables: str, entries: Entries
) -> None:
    """As the model has it after that entry, in any range, with any number of the last snapshots not finished."""
    one, other = corners
    rect = Rect(*map(min, one, other), *map(max, one, other))
    log, after = SheetLog(tables, next(NAMES)), []
    for op in ops:
        if op is None:
            log.ask()
        elif isinstance(op, dict):
            log.take_in(op)
        else:
            assert isinstance(op, tuple)
            log.edit(*op)
        after.append(dict(log.cells))
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        store = LocalStore(Path(folder) / "store")
        log.land(store)
        finished = log.jobs[: len(log.jobs) - unfinished]
        with effect(tables, store, Bounds(chunk_bytes=60)) as worker:
            all_done(worker, finished)
        for entry, cells in enumerate(after, 1):
            reading = Reading(entries, store, log.sheet, entry)
            assert {cell: held(value) for cell, value in reading.cells(EVERYWHERE)} == cells
            assert {cell: held(value) for cell, value in reading.cells(rect)} == {
                cell: value for cell, value in cells.items() if rect.holds(cell)
            }
            assert reading.snapshot == max((job.place.entry for job in finished if job.place.entry <= entry), default=0)
        newest = Reading(entries, store, log.sheet)
        assert (newest.entry, dict(newest.cells(EVERYWHERE)) == {}) == (log.entry, after[-1] == {})


def test_what_is_not_there_is_said(tables: str, entries: Entries, store: LocalStore) -> None:
    log = SheetLog(tables, next(NAMES))
    for row in range(1, 6):
        log.edit((row, 1), Decimal(row))
    del log.rows[3]
    log.land()
    with pytest.raises(NotThere, match="there is no sheet other"):
        Reading(entries, store, "other")
    with pytest.raises(NotThere, match="has no entry 4 yet: 3 are in PostgreSQL"):
        Reading(entries, store, log.sheet, 4)
    assert Reading(entries, store, log.sheet).entry == 3, "what comes behind a gap is not read"


def million(tables: str, sheet: str, store: LocalStore, upto: int) -> int:
    """A sheet whose log is so many edits of a hundred thousand cells, with a finished snapshot, and 37 entries after it."""
    with psycopg.connect(tables) as connection:
        connection.execute(
            'INSERT INTO sheets.entries (sheet_id, entry, segment, kind, cell, "row", col, number, topic, partition, "offset")'
            " SELECT %s, n, (n - 1) / 1000, 'edit', '-', 1 + n / 20 %% 5000, 1 + n %% 20, n, 't', 0, n"
            " FROM generate_series(1, %s) AS n",
            (sheet, upto),
        )
        connection.execute(
            'INSERT INTO sheets.entries (sheet_id, entry, segment, kind, topic, partition, "offset")'
            " VALUES (%s, %s, %s, 'snapshot', 't', 0, 0)",
            (sheet, upto + 1, upto // 1000),
        )
        connection.execute(
            'INSERT INTO sheets.entries (sheet_id, entry, segment, kind, cell, "row", col, number, topic, partition, "offset")'
            " SELECT %s, n, (n - 1) / 1000, 'edit', '-', n - %s, 1, -1, 't', 0, n FROM generate_series(%s, %s) AS n",
            (sheet, upto + 1, upto + 2, upto + 38),
        )
    log = SheetLog(tables, sheet)
    with effect(tables, store) as worker:
        (made,) = all_done(worker, [log.job(upto + 1)])
    return int(made.result["size"])


@pytest.mark.long  # 9 s
@pytest.mark.slow  # tens of seconds: a million rows
def test_a_sheet_of_a_million_edits_is_the_snapshot_and_the_tail(
    tables: str, entries: Entries, store: LocalStore
) -> None:
    """Counted: the root, its page, the chunks of the range, and 37 rows."""
    size = million(tables, "big", store, 1_000_000)
    reading = Reading(entries, store, "big")
    opened = entries.rows_read
    cells = dict(reading.cells(Rect(1, 1, 40, 10)))

    assert (reading.entry, reading.snapshot, reading.tail) == (1_000_038, 1_000_001, 37)
    assert len(cells) == 400
    assert [cells[row, 1] for row in (1, 37, 38)] == [Value("n", "-1"), Value("n", "-1"), Value("n", "900740")]
    assert opened <= 5
    assert entries.rows_read - opened == 37
    assert reading.counted.objects_read == 3
    assert reading.counted.bytes_read < size / 25

    list(Reading(entries, store, "big").cells(Rect(2500, 1, 2500, 1)))
    assert entries.rows_read - opened <= 37 + 5, "the tail outside of the range is not fetched"


def test_of_a_payload_after_the_snapshot_only_the_part_of_the_range_is_read(
    tables: str, entries: Entries, store: LocalStore
) -> None:
    log = SheetLog(tables, next(NAMES))
    name = log.take_in({(row, col): Decimal(row) for row in range(1, 20_001) for col in range(1, 6)})
    log.land(store)
    for rect in (Rect(1, 1, 3, 3), Rect(9_999, 2, 10_001, 3), Rect(19_999, 1, 20_010, 5), Rect(30_000, 1, 30_001, 1)):
        reading = Reading(entries, store, log.sheet)
        found = {cell: held(value) for cell, value in reading.cells(rect)}
        assert found == {cell: value for cell, value in log.cells.items() if rect.holds(cell)}
        assert reading.counted.bytes_read < 300_000 < len(log.payloads[name]) / 5


def small(tables: str, store: LocalStore) -> SheetLog:
    log = SheetLog(tables, "budget")
    log.take_in({(1, 1): "item", (1, 2): "cost", (2, 1): "tea\x1b[7m", (2, 2): Decimal("1.25"), (3, 2): Decimal("-10")})
    log.ask()
    log.edit((4, 2), "=SUM(B2:B3)/3")
    log.edit((4, 3), "=C4")
    log.land(store)
    with effect(tables, store) as worker:
        all_done(worker, log.jobs)
    return log


@pytest.mark.usefixtures("arguments")
def test_a_sheet_is_printed(tables: str, store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    small(tables, store)
    assert run(["sheets", "open", "budget"]) == 0
    *table, footer = capsys.readouterr().out.splitlines()
    assert table == [
        "   A           B             C",
        "1  item        cost",
        "2  tea\\x1b[7m          1.25",
        "3                       -10",
        "4              -2.916666667  #CYCLE!",
    ]
    assert footer.startswith("budget after entry 4: the snapshot of entry 2 and 2 entries after it; ")
    assert run(["sheets", "open", "budget", "--formulas", "--range", "b4:$b$9"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["   B", "4  =SUM(B2:B3)/3"]
    assert run(["sheets", "open", "budget", "--at", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["entry"], told["snapshot"], told["tail"]) == (1, 0, 1)
    assert told["cells"]["B2"] == {"kind": "n", "held": "1.25", "shown": "1.25"}
    assert run(["sheets", "open", "budget", "--at", "1", "--range", "X1:Y9"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "(no cell of the range holds anything)"
    assert run(["sheets", "open", "budget", "--at", "1"]) == 0
    assert "budget after entry 1: no snapshot, for none is finished yet, and 1 entry; " in capsys.readouterr().out


@pytest.mark.usefixtures("arguments")
def test_what_cannot_be_opened_is_a_sentence(
    tables: str, store: LocalStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = small(tables, store)

    def told(*words: str) -> tuple[int, Code]:
        exit_code = run(["sheets", "open", *words])
        return exit_code, code_of(capsys.readouterr().err)

    assert told("other") == (FAILED, Code.NAME_UNKNOWN)
    assert told("budget", "--at", "5") == (FAILED, Code.NAME_UNKNOWN)
    assert told("budget", "--range", "A0") == (USAGE, Code.ARGUMENT_WRONG)
    (name,) = log.payloads
    store.delete(name)
    assert told("budget", "--at", "1") == (FAILED, Code.OBJECT_MISSING)
    store.put(name, b"junk\n")
    assert told("budget", "--at", "1") == (FAILED, Code.SHEET_UNREADABLE)
    with psycopg.connect(tables) as connection:
        connection.execute("DROP SCHEMA sheets CASCADE")
    assert told("budget") == (FAILED, Code.TABLE_MISSING)
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", "postgresql://nobody@127.0.0.1:1/none")
    assert told("budget") == (UNAVAILABLE, Code.POSTGRES_SILENT)
