"""Tables of sums, as the judge sees them in a real database: a sum of nothing may be there or not, any other may not."""

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from onefold.proof.expect import Expected, Table
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
def database(database: str) -> str:
    """A database that holds the story as it should, the sums of nothing included."""
    migrate_all(database, SQL)
    with psycopg.connect(database) as connection:
        for table in trades.WORKLOAD.tables:
            for values, source in STORY.rows[table.name].values():
                row = [*values, table.topic, 0, source.offset]
                connection.execute(f"INSERT INTO {table.name} VALUES ({', '.join(['%s'] * len(row))})", row)
    return database


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


def test_a_row_that_is_there_twice_is_found_where_another_one_is_missing(database: str) -> None:
    """In a table without a key: as many rows as there should be, and each of them right."""
    with psycopg.connect(database) as connection:
        connection.execute("ALTER TABLE trades.current DROP CONSTRAINT current_pkey")
        connection.execute("DELETE FROM trades.current WHERE trade_id = 'two'")
    doubled, missing = findings(database, "INSERT INTO trades.current SELECT * FROM trades.current")
    assert (doubled.kind, doubled.key, doubled.text) == (
        "extra row",
        {"trade_id": "one"},
        "there are 2 rows with this key",
    )
    assert (missing.kind, missing.key) == ("missing row", {"trade_id": "two"})


@pytest.mark.parametrize(
    "index",
    [
        "INDEX ON public.pairs (a)",
        "UNIQUE INDEX ON public.pairs (a, b)",
        "UNIQUE INDEX ON public.pairs (a) WHERE b > 100",
        "UNIQUE INDEX ON public.pairs ((a + b))",
        "UNIQUE INDEX ON public.pairs (b) INCLUDE (a)",
    ],
)
def test_an_index_that_allows_two_rows_with_a_key_is_not_believed(database: str, index: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE public.pairs (a int NOT NULL, b int NOT NULL)")
        connection.execute("INSERT INTO public.pairs VALUES (1, 1), (1, 2), (2, 3)")
        connection.execute(f"CREATE {index}")
    pairs = Table("public.pairs", "pairs", ("a",))
    with Snapshot(database) as snapshot:
        assert list(snapshot.doubled(pairs)) == [(1, 2)]


def test_an_index_of_a_table_of_nearly_the_same_name_is_not_believed(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE public.bills (a int PRIMARY KEY)")
        connection.execute('CREATE TABLE public."Bills" AS VALUES (1), (1)')
        connection.execute('ALTER TABLE public."Bills" RENAME column1 TO a')
    with Snapshot(database) as snapshot:
        assert list(snapshot.doubled(Table("public.Bills", "bills", ("a",)))) == [(1, 2)]


def test_a_table_without_a_key_has_one_row(database: str) -> None:
    total = Table("public.total", "total", ())
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.total AS SELECT 1")
        for found in ([], [(2,)]):
            with Snapshot(database) as snapshot:
                assert list(snapshot.doubled(total)) == found
            connection.execute("INSERT INTO public.total VALUES (2)")


@pytest.mark.parametrize(("nulls", "found"), [("", [(None, 2)]), ("NULLS NOT DISTINCT", [])])
def test_nor_one_that_takes_nulls_for_different(database: str, nulls: str, found: list[tuple[Any, ...]]) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(f"CREATE TABLE public.single (a int, UNIQUE {nulls} (a))")
        connection.execute(f"INSERT INTO public.single VALUES (1), (NULL){', (NULL)' * len(found)}")
    with Snapshot(database) as snapshot:
        assert list(snapshot.doubled(Table("public.single", "single", ("a",)))) == found
