"""Tables of sums, as the judge sees them in a real database: a sum of nothing may be there or not, any other may not."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from onefold.proof.expect import Expected
from onefold.proof.tables import Comparison, Snapshot
from onefold.proof.verdict import Finding
from onefold.proof.workloads import trades
from tests.proof.test_model_trades import A, B, applied, message
from tests.support.migrated import migrate_all
from tests.support.stage import SQL

# The first trade leaves its leaf, in which nothing else ever was.
STORY = applied([message("one", 0, "10.5", A), message("one", 1, "3", B), message("two", 1, "4", B)])
NOTHING = "trades = 0"


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[str]:
    """A database that holds the story as it should, the sums of nothing included."""
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE summed")
        try:
            dsn = psycopg.conninfo.make_conninfo(postgres_dsn, dbname="summed")
            migrate_all(dsn, SQL)
            with psycopg.connect(dsn) as connection:
                for table in trades.WORKLOAD.tables:
                    for values, source in STORY.rows[table.name].values():
                        row = [*values, table.topic, 0, source.offset]
                        connection.execute(f"INSERT INTO {table.name} VALUES ({', '.join(['%s'] * len(row))})", row)
            yield dsn
        finally:
            admin.execute("DROP DATABASE summed WITH (FORCE)")


def findings(dsn: str, spoil: str) -> list[Finding]:
    """The judge's findings after this was done to the tables."""
    with psycopg.connect(dsn) as connection:
        assert connection.execute(spoil).rowcount > 0, "it changed nothing"
    written: dict[str, Any] = {
        table.name: {
            key: SimpleNamespace(partition=0, offset=source.offset, source=source)
            for key, (_, source) in STORY.rows[table.name].items()
        }
        for table in trades.WORKLOAD.tables
    }
    with Snapshot(dsn) as snapshot:
        return list(Comparison(trades.WORKLOAD, snapshot, Expected(STORY), written).findings())


@pytest.mark.parametrize("spoil", ["SELECT 1", f"DELETE FROM trades.risk WHERE {NOTHING}"])
def test_a_sum_of_nothing_may_be_there_or_not(database: str, spoil: str) -> None:
    """Which of them there are depends on how the records fell into batches."""
    assert findings(database, spoil) == []


def test_a_sum_of_something_must_be_there(database: str) -> None:
    (found,) = findings(database, "DELETE FROM trades.risk WHERE num_nulls(risk_type, region, trade_desk) = 3")
    assert (found.kind, found.where) == ("missing row", "trades.risk")


def test_a_sum_of_nothing_must_be_nothing(database: str) -> None:
    found = findings(database, f"UPDATE trades.risk SET value = 1 WHERE {NOTHING}")
    assert {finding.kind for finding in found} == {"different row"}
    assert all(finding.columns.keys() == {"value"} for finding in found)
