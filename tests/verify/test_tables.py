"""Tables of sums, as the judge sees them in a real database: a sum of nothing may be there or not, any other may not."""

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from onefold.error_codes import Code
from onefold.verify.derived_tables import Gathered
from onefold.verify.expect import Column, Expected, Table, Workload
from onefold.verify.record import Source
from onefold.verify.snapshot import DatabaseSnapshot, unanswered
from onefold.verify.tables import Comparison, different
from onefold.verify.verdict import CannotTell, Finding
from onefold.workloads import trades
from tests.support.migrated import migrate_all
from tests.support.stage import SQL
from tests.verify.test_model_trades import A, B, applied, message

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
    with DatabaseSnapshot(dsn) as snapshot:
        return list(Comparison(trades.WORKLOAD, snapshot, Expected(STORY), written).findings())


def test_the_weight_of_a_row_is_how_far_its_numbers_are_off() -> None:
    """NULL is nothing, and a text has no distance."""
    columns = {"a": (5, 3), "b": (None, 4), "c": (7, None), "d": ("x", "y"), "e": (None, "y")}
    assert different(Table("t", "t", ("id",)), (1,), columns, None, None).weight == 2 + 4 + 7


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (psycopg.OperationalError("server closed the connection\nmore"), "the database does not answer: server closed"),
        (psycopg.errors.LockNotAvailable("canceling\nmore"), "the database does not answer as Onefold's would: canc"),
        (psycopg.errors.UndefinedTable("no such table\nmore"), "the database does not answer as Onefold's would: no s"),
    ],
)
def test_a_database_that_refuses_is_told_from_one_that_is_away(error: psycopg.Error, what: str) -> None:
    assert str(unanswered(error)).startswith(what)


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
    with DatabaseSnapshot(database) as snapshot:
        assert list(snapshot.doubled(pairs)) == [(1, 2)]


def test_an_index_of_a_table_of_nearly_the_same_name_is_not_believed(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE public.bills (a int PRIMARY KEY)")
        connection.execute('CREATE TABLE public."Bills" AS VALUES (1), (1)')
        connection.execute('ALTER TABLE public."Bills" RENAME column1 TO a')
    with DatabaseSnapshot(database) as snapshot:
        assert list(snapshot.doubled(Table("public.Bills", "bills", ("a",)))) == [(1, 2)]


def test_a_table_without_a_key_has_one_row(database: str) -> None:
    total = Table("public.total", "total", ())
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.total AS SELECT 1")
        for found in ([], [(2,)]):
            with DatabaseSnapshot(database) as snapshot:
                assert list(snapshot.doubled(total)) == found
            connection.execute("INSERT INTO public.total VALUES (2)")


@pytest.mark.parametrize(("nulls", "found"), [("", [(None, 2)]), ("NULLS NOT DISTINCT", [])])
def test_nor_one_that_takes_nulls_for_different(database: str, nulls: str, found: list[tuple[Any, ...]]) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(f"CREATE TABLE public.single (a int, UNIQUE {nulls} (a))")
        connection.execute(f"INSERT INTO public.single VALUES (1), (NULL){', (NULL)' * len(found)}")
    with DatabaseSnapshot(database) as snapshot:
        assert list(snapshot.doubled(Table("public.single", "single", ("a",)))) == found


class Rows:
    """A model that has just these rows of a table."""

    def __init__(self, table: Table, rows: list[tuple[Any, ...]]) -> None:
        places = [[column.name for column in table.columns].index(name) for name in table.key]
        keyed = {tuple(row[place] for place in places): (row, Source("t", 0, at)) for at, row in enumerate(rows)}
        self.rows = {table.name: keyed}


def compared(dsn: str, table: Table, rows: list[tuple[Any, ...]], made: str) -> list[Finding]:
    """What the judge finds in a table that was made so, where its model has these rows."""
    with psycopg.connect(dsn) as connection:
        connection.execute(made)
    model: Any = Rows(table, rows)
    written: dict[str, Any] = {
        table.name: {
            key: SimpleNamespace(partition=0, offset=source.offset, source=source)
            for key, (_, source) in model.rows[table.name].items()
        }
    }
    workload = Workload("sums", ("t",), (table,), lambda: model)
    with DatabaseSnapshot(dsn) as snapshot:
        return list(Comparison(workload, snapshot, Expected(model), written).findings())


ORIGINS = 'topic text, partition integer, "offset" bigint'
# Of a table of sums there is an output topic as well; which fields it has is not asked here.
SUMS: dict[str, Any] = {"topic": "trades.deltas", "summed": True}


def test_a_row_of_a_fold_must_be_there_whatever_it_says(database: str) -> None:
    """Of a table of sums a row of nothing may be missing; the rows of a fold are each what their records say together."""
    columns = Column("id", "long"), Column("balance", "long"), Column("closed", "boolean")
    fold = Gathered("trades.current", lambda row: row, lambda row, other: other)
    table = Table("public.accounts", **SUMS, key=("id",), only=columns, sums=fold)
    made = f"CREATE TABLE public.accounts (id bigint, balance bigint, closed boolean, {ORIGINS})"
    (found,) = compared(database, table, [(7, 0, False)], made)
    assert (found.kind, found.key) == ("missing row", {"id": 7})


def test_a_grand_total_must_be_there_wherever_its_key_stands(database: str) -> None:
    """What is nothing is told by the amounts: all columns but those of the key."""
    columns = Column("amount", "long"), Column("who", "text")
    table = Table("public.owed", **SUMS, key=("who",), only=columns)
    made = f"CREATE TABLE public.owed (amount bigint, who text, {ORIGINS})"
    (found,) = compared(database, table, [(12, None), (0, "nobody")], made)
    assert (found.kind, found.key) == ("missing row", {"who": None})


SINGLE: dict[str, Any] = {"topic": "trades.deltas", "key": ("id",)}


def test_who_may_not_read_a_table_cannot_tell(database: str) -> None:
    """To others PostgreSQL shows no columns in information_schema: that they are missing would be a false alarm."""
    table = Table("public.closed", **SINGLE, only=(Column("id", "long"),))
    made = f"CREATE TABLE public.closed (id bigint, {ORIGINS}); INSERT INTO public.closed VALUES (1, 'trades.deltas', 0, 0)"
    assert compared(database, table, [(1,)], made) == []
    with psycopg.connect(database, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"CREATE ROLE {name}_reader LOGIN PASSWORD 'reader'")
    reader = psycopg.conninfo.make_conninfo(database, user=f"{name}_reader", password="reader")
    model: Any = Rows(table, [(1,)])
    try:
        with DatabaseSnapshot(reader) as snapshot, pytest.raises(CannotTell) as told:
            list(Comparison(Workload("w", ("t",), (table,), lambda: model), snapshot, Expected(model), {}).findings())
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"DROP ROLE {name}_reader")
    assert told.value.code is Code.POSTGRES_REFUSES
    assert "public.closed" in str(told.value)


def test_a_text_in_a_column_of_fixed_width_is_the_text_without_its_padding(database: str) -> None:
    """PostgreSQL fills `character(8)` up with spaces, which mean nothing there; in a `text` they do."""
    table = Table(
        "public.codes", **SINGLE, only=(Column("id", "text"), Column("padded", "text"), Column("text", "text"))
    )
    made = (
        f"CREATE TABLE public.codes (id character(8), padded character(4), text text, {ORIGINS}); "
        "INSERT INTO public.codes VALUES ('one', 'ab', 'ab', 'trades.deltas', 0, 0), "
        "('two', 'x', 'ab ', 'trades.deltas', 0, 1)"
    )
    (found,) = compared(database, table, [("one", "ab", "ab"), ("two", "x", "ab")], made)
    assert (found.kind, found.key, found.columns) == ("different row", {"id": "two"}, {"text": ("ab", "ab ")})


def test_a_name_that_postgresql_cuts_is_found(database: str) -> None:
    """At 63 bytes, and never within a character."""
    table_name, column = "t" * 62 + "ä", "c" * 70
    table = Table(f"public.{table_name}", **SINGLE, only=(Column("id", "long"), Column(column, "long")))
    made = (
        f'CREATE TABLE public."{table_name}" (id bigint, "{column}" bigint, {ORIGINS}); '
        f"INSERT INTO public.\"{table_name}\" VALUES (1, 2, 'trades.deltas', 0, 0)"
    )
    assert compared(database, table, [(1, 2)], made) == []


@pytest.mark.parametrize(
    ("made", "is_", "not_"),
    [
        ("id integer", "integer", "bigint"),
        ("other bigint", "missing", "bigint"),
        ("id bigint GENERATED ALWAYS AS (1) STORED", "generated bigint", "bigint"),
        ("id public.own", "", ""),
        ("id bigint[]", "bigint[]", "bigint"),
    ],
)
def test_a_column_of_another_type_is_named(database: str, made: str, is_: str, not_: str) -> None:
    """A domain counts as the type that it is made of."""
    table = Table("public.typed", **SINGLE, only=(Column("id", "long"),))
    made = f"CREATE DOMAIN public.own AS bigint; CREATE TABLE public.typed ({made}, {ORIGINS})"
    found = [one.text for one in compared(database, table, [], made)]
    assert found == ([f"id is {is_}, not {not_}"] if is_ else [])
