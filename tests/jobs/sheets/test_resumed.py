"""A snapshot's checkpoints, gone on from by others, on a real Postgres and a real store."""

from decimal import Decimal
from pathlib import Path

import pytest

from onefold.jobs.apps.sheets.merge import MergeBounds
from onefold.jobs.objects.local import LocalStore
from tests.support.sheets import SheetLog, done, effect, prepared, read_back, stored


@pytest.fixture
def tables(database: str) -> str:
    return prepared(database)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_a_checkpoint_whose_objects_are_gone_is_no_checkpoint(tables: str, store: LocalStore) -> None:
    """They were thrown away while nobody was at it: whoever goes on makes them again."""
    log = SheetLog(tables, "sheet-1")
    log.take_in({(row, 1): Decimal(row) for row in range(1, 200)})
    job = log.ask()
    log.land(store)
    with effect(tables, store, MergeBounds(chunk_bytes=500)) as worker:
        steps = worker.steps(job, None, None)
        state = [stored(next(steps)) for _ in range(3)][-1]
        gone = list(store.ids("snapshots/"))
        assert gone
        for name in gone:
            store.delete(name)
        made = done(worker, job, None, state)

        assert worker.stands(job, made.result)
        assert read_back(store, made.result["root"]) == log.model[job.place.entry]


def test_each_checkpoint_may_be_anothers_beginning(tables: str, store: LocalStore) -> None:
    """A worker for every step: what one was given in its checkpoint is not in the next one, when it is written by then."""
    bounds = MergeBounds(chunk_bytes=20, page_chunks=1, passed=1, cleared=1, range_bytes=16)
    log = SheetLog(tables, "sheet-1")
    jobs = [log.ask()]
    log.take_in({(1, 1): None, (1, 2): Decimal(0), (2, 1): None})
    jobs.append(log.ask())
    log.take_in({(1, 2): None, (1, 3): Decimal(7), (2, 2): None, (3, 3): Decimal(5)})
    jobs.append(log.ask())
    log.land(store)
    newest = None
    for job in jobs:
        state, steps = None, 0
        while state is None or not state["ended"]:
            with effect(tables, store, bounds) as worker:
                state = stored(next(worker.steps(job, state, newest)))
            steps += 1
            assert steps < 50, f"it comes to no end: {state}"
        with effect(tables, store, bounds) as worker:
            made = done(worker, job, newest, state)
            assert read_back(store, made.result["root"]) == log.model[job.place.entry]
            assert made == done(worker, job, newest)
            newest = made
