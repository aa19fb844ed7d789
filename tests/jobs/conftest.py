"""The rows of jobs twice: simulated, and in a real Postgres. What is shown of one has to hold for the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import psycopg
import pytest

from onefold.jobs.pending import PostgresPending
from onefold.jobs.protocols import JobRows
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from tests.support.simulated_jobs import SimulatedPending


@dataclass
class Clock:
    """Seconds, which a test moves."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Rows:
    """`pending`, as each worker makes one of its own; `passes(seconds)` lets time pass in all of them."""

    pending: Callable[[], JobRows]
    passes: Callable[[float], None]


@pytest.fixture
def jobs_database(database: str, checkout: Path) -> str:
    """The DSN of a database with the engine's tables."""
    migrate(database, ENGINE, checkout / "sql")
    return database


@pytest.fixture
def postgres_rows(jobs_database: str) -> Iterator[Rows]:
    # Two workers at once are two connections; a third one takes the place of a dead one.
    two = [PostgresPending(jobs_database, f"test-{number}", "orders") for number in range(2)]
    turns = cycle(two)
    with psycopg.connect(jobs_database, autocommit=True) as connection:

        def passes(seconds: float) -> None:
            # To the database it looks as if that much had passed: there is no other clock.
            connection.execute("UPDATE onefold.pending SET modified = modified - make_interval(secs => %s)", (seconds,))

        yield Rows(lambda: next(turns), passes)
    for one in two:
        one.close()


@pytest.fixture
def simulated_rows() -> Rows:
    clock = Clock()
    one = SimulatedPending(clock)

    def passes(seconds: float) -> None:
        clock.now += seconds

    return Rows(lambda: one, passes)


@pytest.fixture(params=["simulated", pytest.param("postgres", marks=pytest.mark.postgres)])
def rows(request: pytest.FixtureRequest) -> Rows:
    found: Rows = request.getfixturevalue(f"{request.param}_rows")
    return found
