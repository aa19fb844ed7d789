"""Snapshots: what they hold, that whoever makes them and wherever it is cut off the same objects come of it, and sharing."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onefold.jobs.apps.sheets.merge import MergeBounds
from onefold.jobs.objects.local import LocalStore
from onefold.jobs.protocols import Done, Job, Place, Refuse
from tests.support.sheets import MEMORY, SheetLog, all_done, done, effect, prepared, reachable, read_back, stored

pytestmark = pytest.mark.promise("same-snapshots")

NAMES = (f"sheet-{number}" for number in count(1))

CELLS = st.tuples(st.integers(1, 9), st.integers(1, 4))
HELD = st.one_of(
    st.none(),
    st.decimals(-999, 999, places=2, allow_nan=False)
    .map(lambda number: number.normalize() + 0)
    .map(lambda number: Decimal(f"{number:f}")),
    st.text('aé"\\\n\r 𝄞', max_size=8),
    st.just("=A1+1"),
    st.text("x", min_size=60, max_size=90),
)
EDIT = st.tuples(st.just("edit"), CELLS, HELD)
IMPORT = st.tuples(st.just("import"), st.dictionaries(CELLS, HELD, max_size=30))
OPS = st.lists(st.one_of(EDIT, EDIT, EDIT, IMPORT, st.just(("ask",))), max_size=40)
#: Of lines of about 15 bytes: so that a few of them are many chunks, some larger than a chunk may be.
BOUNDS = st.builds(
    MergeBounds,
    st.sampled_from([20, 64, 150]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 256]),
    st.sampled_from([1, 3, 99]),
    st.sampled_from([7, 40, 65_536]),
)


@pytest.fixture(scope="module")
def tables(postgres_dsn: str) -> Iterator[str]:
    """A database for all examples of this file; each has a sheet of its own."""
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS test_snapshots")
        admin.execute("CREATE DATABASE test_snapshots")
    yield prepared(psycopg.conninfo.make_conninfo(postgres_dsn, dbname="test_snapshots"))
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("DROP DATABASE test_snapshots WITH (FORCE)")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as made:
        yield Path(made)


@pytest.fixture
def store(folder: Path) -> LocalStore:
    return LocalStore(folder / "store")


def log_of(dsn: str, ops: Sequence[tuple[Any, ...]]) -> SheetLog:
    """A log with these operations, and a snapshot at its end."""
    log = SheetLog(dsn, next(NAMES))
    for op, *rest in (*ops, ("ask",)):
        apply: dict[str, Callable[..., Any]] = {"edit": log.edit, "import": log.take_in, "ask": log.ask}
        apply[op](*rest)
    return log


class Cut(Exception):
    """A worker that dies."""


class Mortal:
    """A store whose worker dies with its nth write: before it, or after it."""

    def __init__(self, store: LocalStore, writes: int, after: bool) -> None:
        self._store, self._writes, self._after = store, writes, after

    def put(self, name: str, content: bytes) -> bool:
        self._writes -= 1
        if self._writes == 0 and not self._after:
            raise Cut
        new = self._store.put(name, content)
        if self._writes == 0:
            raise Cut
        return new

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def made_by_mortals(
    dsn: str, store: LocalStore, bounds: MergeBounds, job: Job, newest: Done | None, data: st.DataObject
) -> Done:
    """A job by workers that die at their writes or between two steps; each goes on from some checkpoint of the ones before."""
    states: list[Any] = [None]
    for _ in range(data.draw(st.integers(0, 6), label="deaths")):
        state = data.draw(st.sampled_from(states), label="checkpoint")
        writes, after = data.draw(st.tuples(st.integers(1, 9), st.booleans()), label="write")
        mortal: Any = Mortal(store, writes, after)
        with effect(dsn, mortal, bounds) as worker:
            try:
                for reached in worker.steps(job, state, newest):
                    states.append(stored(reached))
                    if data.draw(st.integers(0, 4), label="dies") == 0:
                        break
                else:
                    worker.finish(job, states[-1])
            except Cut:
                continue
    with effect(dsn, store, bounds) as worker:
        return done(worker, job, newest, data.draw(st.sampled_from(states), label="last checkpoint"))


def made_by_two(
    dsn: str, store: LocalStore, bounds: MergeBounds, job: Job, newest: Done | None, data: st.DataObject
) -> Done:
    """A job by two workers at once, each with its own connection, interleaved step by step."""
    with effect(dsn, store, bounds) as one, effect(dsn, store, bounds) as other:
        runs = [[worker, worker.steps(job, None, newest), None] for worker in (one, other)]
        results = []
        while runs:
            run = data.draw(st.sampled_from(runs), label="turn")
            reached = next(run[1], None)
            if reached is None:
                results.append(stored(run[0].finish(job, run[2])))
                runs.remove(run)
            else:
                run[2] = stored(reached)
    assert results[0] == results[1]
    return Done(job.place, results[0])


@pytest.mark.long  # 9 s
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(ops=OPS, bounds=BOUNDS, data=st.data())
def test_however_it_is_made_it_is_the_same(
    ops: list[tuple[Any, ...]], bounds: MergeBounds, data: st.DataObject, tables: str
) -> None:
    """The cells of the model; the same objects and results by workers that die, by two at once, and twice; no orphans."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    plain, tried = LocalStore(folder / "plain"), LocalStore(folder / "tried")
    log = log_of(tables, ops)
    log.land(plain, tried)
    with effect(tables, plain, bounds) as worker:
        expected = all_done(worker, log.jobs)
        roots = [one.result["root"] for one in expected]
        for one, cells in zip(expected, log.model.values(), strict=True):
            assert read_back(plain, one.result["root"]) == cells
            assert worker.stands(log.job(one.place.entry), one.result)
        all_ids = set(plain.ids("snapshots/"))
        assert all_ids == set().union(*(reachable(plain, root) for root in roots))
        assert all_done(worker, log.jobs) == expected
        assert set(plain.ids("snapshots/")) == all_ids

    # How often there is a checkpoint changes nothing.
    others = replace(
        bounds,
        range_bytes=16,
        passed=data.draw(st.sampled_from([1, 2, 5])),
        cleared=data.draw(st.sampled_from([1, 2, 5])),
    )
    newest = None
    for job, one in zip(log.jobs, expected, strict=True):
        way = data.draw(st.sampled_from([made_by_mortals, made_by_two]), label="way")
        newest = way(tables, tried, others, job, newest, data)
        assert newest == one
    assert set(tried.ids("snapshots/")) == all_ids
    assert all(tried.get(name) == plain.get(name) for name in all_ids)
    shutil.rmtree(folder)


def thousand(dsn: str) -> SheetLog:
    """A sheet of 20,000 cells in many chunks, with a snapshot."""
    log = SheetLog(dsn, next(NAMES))
    log.take_in({(row, col): Decimal(row * col) for row in range(1, 1001) for col in range(1, 21)})
    log.ask()
    return log


class Counting:
    """A store that counts what is read of it."""

    def __init__(self, store: LocalStore) -> None:
        self._store, self.read = store, list[str]()

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self.read.append(name)
        return self._store.get(name, start, end)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_what_nothing_touched_is_shared_and_not_read(tables: str, store: LocalStore) -> None:
    log = thousand(tables)
    log.edit((500, 3), Decimal(7))
    log.ask()
    log.land(store)
    counting: Any = Counting(store)
    bounds = MergeBounds(chunk_bytes=2048)
    with effect(tables, counting, bounds) as worker:
        first = done(worker, log.jobs[0], None)
        before = set(store.ids("snapshots/"))
        counting.read.clear()
        second = done(worker, log.jobs[1], first)

    assert first.result["chunks"] > 150
    assert second.result["shared"] == second.result["chunks"] - 1 == first.result["chunks"] - 1
    assert len(set(store.ids("snapshots/")) - before) == 3, "a chunk, a page and a root"
    assert len(counting.read) == 3, "the old root, its page, and the chunk that is changed"
    assert read_back(store, second.result["root"]) == log.model[second.place.entry]


def test_a_change_that_changes_nothing_shares_everything(tables: str, store: LocalStore) -> None:
    log = thousand(tables)
    log.edit((500, 3), Decimal(1500))
    log.edit((2000, 1), None)
    log.ask()
    log.land(store)
    with effect(tables, store, MergeBounds(chunk_bytes=2048)) as worker:
        first, second = all_done(worker, log.jobs)

    assert second.result["shared"] == second.result["chunks"] == first.result["chunks"]
    assert len(set(store.ids("snapshots/"))) == first.result["chunks"] + 3, "a page, and two roots"


@pytest.mark.slow  # 5 s
def test_cells_that_come_one_by_one_do_not_make_tiny_chunks(tables: str, store: LocalStore) -> None:
    """In the middle of a sheet; and cells that go one by one do not leave tiny ones."""
    log = SheetLog(tables, next(NAMES))
    log.take_in({(row, 1): Decimal(row) for row in range(1, 1001)})
    log.ask()
    for at in range(40):
        for row in range(400, 500):
            log.edit((row, 2 + at), Decimal(at))
        log.ask()
    log.take_in({(row, col): None for row in range(1, 1001) for col in range(1, 50) if row % 97})
    log.ask()
    log.land(store)
    with effect(tables, store, MergeBounds(chunk_bytes=1024)) as worker:
        *grown, cleared = all_done(worker, log.jobs)

    assert grown[-1].result["size"] / grown[-1].result["chunks"] > 500
    assert cleared.result["chunks"] <= 2
    assert cleared.result["cells"] == len(log.cells) > 0


def test_an_empty_sheet_has_a_snapshot(tables: str, store: LocalStore) -> None:
    """Also one that was cleared."""
    log = SheetLog(tables, next(NAMES))
    log.ask()
    log.edit((1, 1), "here")
    log.ask()
    log.edit((1, 1), None)
    log.ask()
    log.edit((1, 1), "again")
    log.ask()
    log.land(store)
    with effect(tables, store) as worker:
        made = all_done(worker, log.jobs)

    assert [one.result["cells"] for one in made] == [0, 1, 0, 1]
    assert [one.result["chunks"] for one in made] == [0, 1, 0, 1]


@pytest.mark.slow  # 5 s
def test_all_again_gives_the_same_bytes(tables: str, store: LocalStore) -> None:
    log = thousand(tables)
    for row in range(1, 300):
        log.edit((row * 7, 5), f"text {row}")
        if row % 100 == 0:
            log.ask()
    log.land(store)
    with effect(tables, store, MergeBounds(chunk_bytes=2048)) as worker:
        made = all_done(worker, log.jobs)
        content = {name: store.get(name) for name in store.ids("snapshots/")}
        for name in content:
            store.delete(name)
        assert not any(worker.stands(job, one.result) for job, one in zip(log.jobs, made, strict=True))
        assert all_done(worker, log.jobs) == made

    assert {name: store.get(name) for name in store.ids("snapshots/")} == content


def test_it_does_not_stand_without_any_of_its_objects(tables: str, store: LocalStore) -> None:
    log = thousand(tables)
    log.land(store)
    with effect(tables, store, MergeBounds(chunk_bytes=32_768)) as worker:
        (made,) = all_done(worker, log.jobs)
        for name in reachable(store, made.result["root"]):
            content = store.get(name)
            store.delete(name)
            assert not worker.stands(log.jobs[0], made.result), name
            store.put(name, content)
        assert worker.stands(log.jobs[0], made.result)


def test_nothing_is_done_before_all_entries_have_landed(tables: str, store: LocalStore) -> None:
    """One that is missing in the middle, or at the end, is enough."""
    log = SheetLog(tables, next(NAMES))
    for row in range(1, 10):
        log.edit((row, 1), Decimal(row))
    job = log.ask()
    with effect(tables, store) as worker:
        rows, log.rows = log.rows, log.rows[:4] + log.rows[5:]
        assert worker.before(job, None) is None
        log.land()
        assert worker.before(job, None) is None
        log.rows = rows[4:5]
        log.land()
        assert worker.before(job, None) == []


def test_snapshots_in_between_are_found(tables: str, store: LocalStore) -> None:
    log = SheetLog(tables, next(NAMES))
    for row in range(1, 2500):
        log.edit((row, 1), Decimal(row))
        if row % 800 == 0:
            log.ask()
    last = log.ask()
    log.land(store)
    with effect(tables, store) as worker:
        found = worker.before(last, None)
        assert found == log.jobs[:-1]
        assert [job.place for job in found] == [Place(0, 801), Place(1, 1602), Place(2, 2403)]
        assert [job.value["segment"] for job in found] == [0, 1, 2]
        assert worker.before(last, Done(Place(1, 1602), None)) == [log.jobs[2]]
        with pytest.raises(Refuse, match=r"entry 5 of sheet .* is no snapshot entry"):
            worker.before(log.job(5), None)


@pytest.mark.parametrize(
    "payload",
    [
        b'[1,1,"n","1"]',
        b'[1,1,"n","1.0"]\n',
        b'[1,1,"n", "1"]\n',
        b'[1,2,"n","1"]\n[1,1,"n","1"]\n',
        b'[1,1,"n","1"]\n[1,1,"n","1"]\n',
        b"hello\n",
        b"\n",
        b'[1,1,"t","\\u0061"]\n',
        b'[1,1,"t","\\ud800"]\n',
        b'[1,1,"t","\xff"]\n',
        b'[1048577,1,"n","1"]\n',
        b"[" * 100_000 + b"\n",
        b"[" * 1_000_000,
    ],
)
def test_a_payload_that_is_none_is_refused(payload: bytes, tables: str, store: LocalStore) -> None:
    log = SheetLog(tables, next(NAMES))
    name = log.take_in({})
    log.payloads[name] = payload
    job = log.ask()
    log.land(store)
    with effect(tables, store) as worker, pytest.raises(Refuse, match=f"the object {name} is no payload"):
        done(worker, job, None)
