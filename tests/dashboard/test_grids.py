"""Reading windows of sheets beside the page: what hangs holds up nobody, and nothing can be written."""

import asyncio
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold.dashboard import words
from onefold.dashboard.live import why
from onefold.dashboard.reader import connect_blocking
from onefold.jobs.apps.sheets.pages import grids
from onefold.jobs.apps.sheets.pages.grids import Grids, rounded
from onefold.jobs.apps.sheets.pages.rows import grouped
from onefold.jobs.apps.sheets.pages.windows import Window, window_of
from onefold.jobs.objects.local import LocalStore
from onefold.jobs.protocols import Objects
from onefold.view import Unreadable
from tests.support.floor import Floor
from tests.support.shown_sheet import ShownSheet

SHORT_S = 0.3
WINDOW = window_of({})[0]


class Slow(LocalStore):
    """A store that answers when it is let."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.let = threading.Event()

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self.let.wait(30)
        return super().get(name, start, end)


@pytest.fixture
def budget(floor: Floor, database: str, tmp_path: Path) -> ShownSheet:
    made = ShownSheet(database, LocalStore(tmp_path / "objects"), "budget")
    made.set({"A1": 1, "A2": "=A1+1"})
    made.snapshot()
    return made


@pytest.fixture
def slow(budget: ShownSheet, tmp_path: Path) -> Iterator[Slow]:
    made = Slow(tmp_path / "objects")
    yield made
    made.let.set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "READ_S", SHORT_S)


# By a name that only they have; each test has a database of its own.
_CONNECTIONS = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE application_name = 'onefold dashboard view' AND datname = current_database()"
)  # fmt: skip


def opened(dsn: str, objects: Objects) -> Grids:
    return Grids(lambda: connect_blocking(dsn), lambda: objects)


async def sentence_of(reads: Grids, window: Window = WINDOW) -> str:
    """What is said of a window that cannot be read."""
    with pytest.raises(Unreadable) as said:
        await reads.read("budget", window)
    assert said.value.status == 503
    return why(said.value)


def test_a_store_that_hangs_holds_up_nobody(database: str, slow: Slow, impatient: None) -> None:
    """Whoever waits is told in time, the page goes on meanwhile, and so do the sheets when the store answers again."""

    async def run() -> None:
        reads, turns = opened(database, slow), 0
        loop = asyncio.get_running_loop()

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_later(0.01, turn)

        turn()
        said = await asyncio.gather(*(sentence_of(reads) for _ in range(2 * grids.READERS)))
        assert turns >= 5, "others had their turns"
        assert set(said) == {"The database or the store of objects does not answer."}
        slow.let.set()
        async with asyncio.timeout(20):
            while True:
                try:
                    found = await reads.read("budget", WINDOW)
                    break
                except Unreadable:
                    pass  # the threads come to their ends
        assert found.cells[2, 1].text == "2"
        reads.close()

    asyncio.run(run())


@pytest.mark.slow  # waits for time-outs
def test_a_database_that_hangs_is_hung_up_on(database: str, budget: ShownSheet, impatient: None) -> None:
    """Without waiting for its own time-out; and then all is read again."""

    async def run() -> None:
        reads = opened(database, budget.store)
        before = await reads.read("budget", WINDOW)
        seen: set[int] = set()
        # Within a transaction the view shows what it showed first.
        with psycopg.connect(database) as other, psycopg.connect(database, autocommit=True) as looking:
            other.execute("LOCK TABLE sheets.snapshots IN ACCESS EXCLUSIVE MODE")
            for _ in range(2 * grids.READERS):
                assert "does not answer" in await sentence_of(reads)
                seen |= {pid for (pid,) in looking.execute(_CONNECTIONS)}
        assert len(seen) > grids.READERS, "who was hung up on is replaced while the server still waits"
        async with asyncio.timeout(20):
            while True:
                try:
                    assert (await reads.read("budget", WINDOW)).cells == before.cells
                    break
                except Unreadable:
                    pass
        reads.close()

    asyncio.run(run())


def test_what_has_not_changed_is_not_read_again(database: str, budget: ShownSheet) -> None:
    async def run() -> None:
        reads = opened(database, budget.store)
        first = await reads.read("budget", WINDOW)
        assert await reads.read("budget", WINDOW, first) is first
        budget.set({"ZZ9": 1})
        later = await reads.read("budget", WINDOW, first)
        assert (later.entry, later.cells) == (first.entry + 1, first.cells)
        budget.snapshot()
        assert (await reads.read("budget", WINDOW, later)).snapshot == later.entry + 1
        reads.close()

    asyncio.run(run())


def test_a_formula_that_needs_too_much_stays_as_it_was_written(
    database: str, budget: ShownSheet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part of a sum is shown as if it were the sum; what needs nothing is there."""
    monkeypatch.setattr(grids, "EVALUATE_S", 0)
    budget.set({"A3": "=SUM(A1:A1048576)", "A4": "=1+1"})

    async def run() -> None:
        reads = opened(database, budget.store)
        found = (await reads.read("budget", WINDOW)).cells
        shown = {cell: (found[cell].kind, found[cell].text) for cell in found}
        assert shown == {
            (1, 1): ("number", "1"), (2, 1): ("text", "=A1+1"), (3, 1): ("text", "=SUM(A1:A1048576)"), (4, 1): ("number", "2"),
        }  # fmt: skip
        reads.close()

    asyncio.run(run())


@pytest.mark.parametrize("statement", ["DELETE FROM sheets.entries", "DROP TABLE sheets.entries"])
def test_a_write_is_refused_by_two_locks(database: str, budget: ShownSheet, statement: Any) -> None:
    """As on the page's other connections."""
    connection = connect_blocking(database)
    try:
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute(statement)
        connection.execute("SET default_transaction_read_only = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)
    finally:
        connection.close()


def test_how_numbers_are_written() -> None:
    """Nothing is lost but what no cell could hold."""
    assert [grouped(text) for text in ("0", "-1234567.000000001", "999", "1.5e-12", "12345678901234567890.5")] == [
        "0", "\N{MINUS SIGN}1,234,567.000000001", "999", "1.5e-12", "12,345,678,901,234,567,890.5",
    ]  # fmt: skip
    numbers = ("0", "-0", "1E+3", "0.10", "1", "-2.5", "0.3333333333333333", "1E-12", "-4.5678E-20")
    assert [rounded(Decimal(number)) for number in numbers] == [
        "0", "0", "1000", "0.1", "1", "-2.5", "0.333333333", "1.000e-12", "-4.568e-20",
    ]  # fmt: skip
    assert [words.size(size).replace("\N{NARROW NO-BREAK SPACE}", " ") for size in (None, 0, 999, 1000, 64_512, 20_000_000)] == [
        "\N{EM DASH}", "0 bytes", "999 bytes", "1.0 KB", "65 KB", "20 MB",
    ]  # fmt: skip
