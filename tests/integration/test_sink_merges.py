"""Laws of the real merges on a real Postgres: order, duplicates and replays of staged rows change nothing."""

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from onefold.spark_sink.contracts import Target, load_domain
from onefold.spark_sink.landing.land import merge
from tests.support.migrated import migrate_all

Row = tuple[Any, ...]
QUESTIONS = Path(__file__).resolve().parents[2] / "sql" / "query"

# For each merge: its table, and rows that fight for the same keys, ties included. The origin is added below.
CASES: dict[str, tuple[str, list[Row]]] = {
    "runner.stats": (
        "runner.stats",
        [(1, 1, 1, 150, 0), (1, 1, 2, 270, 600_000), (1, 1, 2, 271, 600_001), (1, 2, 1, 5, 0), (2, 1, 3, 9, 0)],
    ),
    "runner.tendency": (
        "runner.tendency",
        [
            (1, 1, 10, "good job", "fine"),
            (1, 2, 20, "well done", "good job"),
            (1, 2, 21, "x", "y"),
            (2, 1, 1, "a", "b"),
        ],
    ),
    "runner.messages": (
        "runner.messages",
        [(1, 1, 10, 1, 150), (1, 2, 20, 1, 120), (1, 2, 20, 1, 120), (2, 1, 1, 9, 1)],
    ),
    "campaigns.totals": (
        "campaigns.totals",
        [
            (7, "a@b", "s", "2021-12-01 12:00:00", 1000, None, None, None, 1, 1),
            (7, "a@b", "s", "2021-12-01 12:00:00", 1000, "2021-12-02 12:00:00.500000", 100, None, 2, 2),
            (7, "a@b", "s", "2021-12-01 12:00:00", 1000, "2021-12-02 12:00:00.500000", 100, 11, 3, 3),
            (7, "a@b", "s", None, None, None, None, None, 0, 4),
            (8, "b@b", "", "0001-01-01 00:00:00", 1, None, None, None, 1, 1),
        ],
    ),
    "bank.entries": (
        "bank.entries",
        [
            (1, 1, "open", None, None, None, "5.00", "5.00", "5.00", False),
            (1, 2, "withdraw", 1, 1, 2, "-5.00", "0.00", "5.00", False),
            (1, 2, "withdraw", 1, 1, 2, "-5.00", "0.00", "5.00", False),
            (2, 1, "open", None, None, None, "0.00", "0.00", "0.00", False),
            (2, 2, "deposit", 1, 1, 2, "5.00", "5.00", "0.00", False),
            (1, 3, "close", None, None, None, "0.00", "0.00", "5.00", True),
        ],
    ),
    "bank.refusals": (
        "bank.refusals",
        [
            (1, 1, 2, "5.00", "closed_account"),
            (1, 1, 2, "5.00", "insufficient_funds"),
            (1, 2, 2, "0.01", "unknown_account"),
            (2, 1, 1, "0.01", "unknown_account"),
        ],
    ),
    "sheets.entries": (
        "sheets.entries",
        [
            ("s", 1, 0, "edit", "B7", 7, 2, "12.5", None, None, None),
            ("s", 1, 0, "edit", "B7", 7, 2, "12.5", None, None, None),
            ("s", 2, 0, "import", None, None, None, None, None, None, "payloads/1"),
            ("s", 3, 0, "snapshot", None, None, None, None, None, None, None),
            ("S", 1, 0, "edit", "A1", 1, 1, None, None, None, None),
        ],
    ),
    "sheets.sheets": (
        "sheets.sheets",
        [
            ("s", 1, 1, 0, 0, None),
            ("s", 101, 100, 101, 0, None),
            ("s", 101, 100, 101, 101, "snapshots/1"),
            ("S", 1, 1, 0, 0, None),
        ],
    ),
    "sheets.snapshots": (
        "sheets.snapshots",
        [
            ("s", 101, 0, "snapshots/1", 7, 90, 2, 0),
            ("s", 101, 0, "snapshots/1", 7, 90, 2, 0),
            ("s", 202, 0, "snapshots/2", 8, 99, 2, 1),
            ("t", 101, 0, "snapshots/3", 0, 0, 0, 0),
        ],
    ),
    "sheets.refusals": (
        "sheets.refusals",
        [("a/1", "s", "discarded"), ("a/1", "t", "discarded"), ("a/1", "s", "discarded"), ("a/2", "s", "discarded")],
    ),
    "campaigns.accepted": (
        "campaigns.sends",
        [
            (7, "2021-12-01 12:00:00", 100, "a", "s", 0),
            (7, "2021-12-01 12:00:00", 0, "a", "s", 1),
            (7, "2021-12-01 12:00:00", 0, "b", "s", 1),
            (7, "2021-12-01 12:00:00", 0, "b", "\uffff", 1),
            (7, "2021-12-01 12:00:00", 0, "b", "\U0001f600", 1),  # after U+FFFF by code point, before it in UTF-16
            (8, "2021-12-01 12:00:00", 5, "B", "s", 0),
            (8, "2021-12-01 12:00:00", 5, "a", "s", 0),  # after "B" by code point, before it in most languages
        ],
    ),
}


@pytest.fixture(scope="module")
def targets(module_database: str, checkout: Path) -> dict[str, Target]:
    migrate_all(module_database, checkout / "sql")
    domains = [
        load_domain(name, checkout / "avro", checkout / "sql") for name in ("runner", "campaigns", "bank", "sheets")
    ]
    return {name: target for domain in domains for name, target in domain.targets.items()}


@pytest.fixture
def reader(targets: dict[str, Target], module_database: str) -> "Iterator[psycopg.Connection[Any]]":
    """A connection to tables that are empty."""
    with psycopg.connect(module_database, autocommit=True, options="-c synchronous_commit=off") as connection:
        for table in sorted({table for table, _ in CASES.values()}):
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(*table.split("."))))
        yield connection


@pytest.mark.long  # 8 s
@pytest.mark.parametrize("topic", sorted(CASES))
def test_every_order_of_the_rows_gives_the_same_table(
    topic: str, targets: dict[str, Target], reader: "psycopg.Connection[Any]"
) -> None:
    """All permutations, each cut into two batches at every place, with the first batch replayed at the end."""
    table, rows = _case(topic)
    _merge(reader, targets[topic], rows)
    expected = _table(reader, table)
    assert expected
    dice = random.Random(topic)
    for order in dice.sample(list(itertools.permutations(rows)), 60 if len(rows) > 4 else 24):
        reader.execute(sql.SQL("DELETE FROM {}").format(table))
        cut = dice.randrange(len(rows) + 1)
        for batch in (order[:cut], order[cut:], order[:cut]):
            _merge(reader, targets[topic], batch)
        assert _table(reader, table) == expected, f"order {order}, cut at {cut}"


@pytest.mark.parametrize("topic", sorted(CASES))
def test_one_batch_may_hold_everything_twice(
    topic: str, targets: dict[str, Target], reader: "psycopg.Connection[Any]"
) -> None:
    table, rows = _case(topic)
    _merge(reader, targets[topic], rows)
    expected = _table(reader, table)
    _merge(reader, targets[topic], [*rows, *reversed(rows)])
    assert _table(reader, table) == expected


def test_the_greatest_send_is_the_greatest_by_code_point(
    targets: dict[str, Target], reader: "psycopg.Connection[Any]"
) -> None:
    _, rows = _case("campaigns.accepted")
    _merge(reader, targets["campaigns.accepted"], rows)
    found = reader.execute("SELECT id, version, sent, email, subject FROM campaigns.sends ORDER BY id").fetchall()
    assert found == [(7, 1, 0, "b", "\U0001f600"), (8, 0, 5, "a", "s")]


def test_the_total_is_computed_by_postgres_and_by_nobody_else(
    targets: dict[str, Target], reader: "psycopg.Connection[Any]"
) -> None:
    _, rows = _case("campaigns.totals")
    _merge(reader, targets["campaigns.totals"], rows[:3])
    assert reader.execute("SELECT computed FROM campaigns.totals").fetchall() == [(1111,)]
    with pytest.raises(psycopg.errors.GeneratedAlways):
        reader.execute("UPDATE campaigns.totals SET computed = 5")


def test_both_roads_to_the_totals_agree(
    targets: dict[str, Target], reader: "psycopg.Connection[Any]", checkout: Path
) -> None:
    """The wide table and the view over the sends, with a withdrawn send and a third one; then one of them is wrong."""
    sends = [
        (7, "2021-12-01 12:00:00", 1000, "a", "first", 0),
        (7, "2021-12-02 12:00:00", 100, "a", "second", 0),
        (7, "2021-12-03 12:00:00", 11, "a", "third", 0),
        (7, "2021-12-04 12:00:00", 0, "a", "withdrawn", 1),
        (8, "2021-12-04 12:00:00", 0, "b", "all withdrawn", 1),
    ]
    wide = [
        (7, "a", "third", "2021-12-01 12:00:00", 1000, "2021-12-02 12:00:00", 100, 11, 3, 5),
        (8, "b", "all withdrawn", None, None, None, None, None, 0, 2),
    ]
    _merge(reader, targets["campaigns.accepted"], _with_origin(sends))
    _merge(reader, targets["campaigns.totals"], _with_origin(wide))
    question = (checkout / "sql/query/campaigns_both_roads.sql").read_bytes()
    assert reader.execute(question).fetchall() == []
    reader.execute("UPDATE campaigns.sends SET sent = 12 WHERE subject = 'third'")
    assert reader.execute(question).fetchall() == [(7, 1111, 1112, 3, 3)]


@pytest.mark.parametrize("name", [path.stem for path in sorted(QUESTIONS.glob("*.sql"))])
def test_every_question_can_be_asked(
    name: str, targets: dict[str, Target], reader: "psycopg.Connection[Any]", checkout: Path
) -> None:
    reader.execute((checkout / f"sql/query/{name}.sql").read_bytes())


def _case(topic: str) -> tuple[sql.Identifier, list[Row]]:
    table, rows = CASES[topic]
    return sql.Identifier(*table.split(".")), _with_origin(rows)


def _with_origin(rows: Sequence[Row]) -> list[Row]:
    return [(*row, "topic", 0, offset) for offset, row in enumerate(rows)]


def _merge(connection: "psycopg.Connection[Any]", target: Target, rows: Sequence[Row]) -> None:
    with connection.transaction():
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.postgres_type))
            for column in target.columns
        )
        connection.execute(sql.SQL("CREATE TEMPORARY TABLE staged ({}) ON COMMIT DROP").format(columns))
        with connection.cursor() as cursor, cursor.copy("COPY staged FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        connection.execute(merge(target, sql.Identifier("staged")))


def _table(connection: "psycopg.Connection[Any]", table: sql.Identifier) -> list[Row]:
    return sorted(connection.execute(sql.SQL("SELECT * FROM {}").format(table)).fetchall(), key=repr)
