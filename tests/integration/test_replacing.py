"""Tables of one database made what they are in another one, on a real PostgreSQL."""

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from psycopg import sql

from onefold.config.errors import UserError
from onefold.exit_codes import REFUSED
from onefold.operate.rebuild.table_diff import (
    EXAMPLES_MAX,
    Difference,
    Replaced,
    described,
    part_of,
    replace_rows,
    same,
)

pytestmark = pytest.mark.promise("readers-of-a-rebuild")

TOTALS = """
CREATE SCHEMA shop;
CREATE TABLE shop.totals (
    id bigint NOT NULL, day date NOT NULL, cents bigint, name text, topic text, partition integer, "offset" bigint,
    doubled bigint GENERATED ALWAYS AS (cents * 2) STORED, number bigint GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (id, day)
);
CREATE TABLE shop.levels (region text, desk text, trades bigint NOT NULL, UNIQUE NULLS NOT DISTINCT (region, desk));
CREATE TABLE shop.seen (id bigint PRIMARY KEY);
"""
#: Per table how many of its columns, from the first, are the key.
KEYS = {"shop.totals": 2, "shop.levels": 2, "shop.seen": 1}
Row = tuple[Any, ...]


class Pair:
    """The live database and the other one, each with the same empty tables."""

    def __init__(self, live: str, other: str) -> None:
        self.dsn = live
        self.live = psycopg.connect(live, autocommit=True)
        self.other = psycopg.connect(other, autocommit=True)
        for connection in (self.live, self.other):
            connection.execute(TOTALS)

    def fill(self, connection: psycopg.Connection[Any], rows: Sequence[Row], table: str = "shop.totals") -> None:
        for row in rows:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)

    def rows(self, connection: psycopg.Connection[Any], table: str = "shop.totals") -> list[Row]:
        columns = 'id, day, cents, name, topic, partition, "offset", doubled' if table == "shop.totals" else "*"
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall()

    def replace(self, table: str = "shop.totals", while_open: Callable[[], None] = lambda: None) -> Replaced:
        with self.live.transaction():
            done = replace_rows(self.live, self.other, described(self.live, table), 0)
            while_open()
        return done


@pytest.fixture
def pair(database: str, postgres_dsn: str) -> Iterator[Pair]:
    name = f"other_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        made = Pair(database, psycopg.conninfo.make_conninfo(postgres_dsn, dbname=name))
        yield made
        made.live.close()
        made.other.close()
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def total(number: int, cents: int | None = 5, name: str | None = "a", offset: int = 0, day: str = "2026-01-01") -> Row:
    return number, day, cents, name, "shop.orders", 0, offset


def test_what_differs_is_written_and_nothing_else(pair: Pair) -> None:
    """Of equal rows not even the transaction changes."""
    pair.fill(pair.live, [total(1), total(2, 7), total(3), total(4, None), total(6, offset=9)])
    pair.fill(pair.other, [total(1), total(2), total(4, 0), total(5), total(6, offset=10)])
    asked = "SELECT id, xmin::text FROM shop.totals WHERE id = 1"
    before = pair.live.execute(asked).fetchall()
    done = pair.replace()
    assert pair.rows(pair.live) == pair.rows(pair.other)
    assert pair.live.execute(asked).fetchall() == before
    assert (done.rows, done.changed, done.added, done.deleted, done.moved) == (5, 2, 1, 1, 1)
    assert sorted(done.examples, key=lambda one: one.key["id"] or "") == [
        Difference("changed", {"id": "2", "day": "2026-01-01"}, {"cents": ("7", "5")}),
        Difference("deleted", {"id": "3", "day": "2026-01-01"}),
        Difference("changed", {"id": "4", "day": "2026-01-01"}, {"cents": (None, "0")}),
        Difference("added", {"id": "5", "day": "2026-01-01"}),
    ]
    assert pair.replace() == Replaced("shop.totals", 5)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_there_becomes_what_should_be(pair: Pair, seed: int) -> None:
    dice = random.Random(seed)
    for connection in (pair.live, pair.other):
        keys = [key for key in range(12) if dice.random() < 0.6]
        rows = [total(key, dice.choice((None, 0, 1)), dice.choice((None, "", "x")), dice.randrange(2)) for key in keys]
        places = [(region, desk) for region in (None, "", "EU") for desk in (None, "a") if dice.random() < 0.6]
        pair.fill(connection, rows)
        pair.fill(connection, [(*place, dice.randrange(2)) for place in places], "shop.levels")
        pair.fill(connection, [(key,) for key in keys], "shop.seen")
    for table, width in KEYS.items():
        was, should = (
            {row[:width]: row for row in pair.rows(connection, table)} for connection in (pair.live, pair.other)
        )
        done = pair.replace(table)
        assert {row[:width]: row for row in pair.rows(pair.live, table)} == should
        assert (done.rows, done.added) == (len(should), len(should.keys() - was.keys()))
        assert done.deleted == len(was.keys() - should.keys())
        assert done.changed + done.moved == sum(was[key] != should[key] for key in was.keys() & should.keys())
        assert len(done.examples) == min(EXAMPLES_MAX, done.changed + done.added + done.deleted)


def test_readers_see_what_was_there_and_wait_for_nothing(pair: Pair) -> None:
    pair.fill(pair.live, [total(1, 7), total(2)])
    pair.fill(pair.other, [total(1), total(3)])
    before, seen = pair.rows(pair.live), []
    with psycopg.connect(pair.dsn, autocommit=True) as reader:
        reader.execute("SET statement_timeout = '5s'")
        pair.replace(while_open=lambda: seen.append(pair.rows(reader)))
    assert seen == [before]
    assert pair.rows(pair.live) == pair.rows(pair.other)


def test_what_is_taken_back_has_changed_nothing(pair: Pair) -> None:
    pair.fill(pair.live, [total(1, 7)])
    pair.fill(pair.other, [total(1), total(2)])
    before = pair.rows(pair.live)
    with pair.live.transaction(force_rollback=True):
        done = replace_rows(pair.live, pair.other, described(pair.live, "shop.totals"), 0)
    assert (done.changed, done.added) == (1, 1)
    assert pair.rows(pair.live) == before


def test_rows_that_refer_to_a_changed_one_stay(pair: Pair) -> None:
    """A row that were deleted and inserted again would take them along."""
    pair.live.execute(
        "CREATE TABLE shop.notes (id bigint, day date, FOREIGN KEY (id, day) REFERENCES shop.totals ON DELETE CASCADE)"
    )
    pair.fill(pair.live, [total(1, 7)])
    pair.live.execute("INSERT INTO shop.notes VALUES (1, '2026-01-01')")
    pair.fill(pair.other, [total(1)])
    assert pair.replace().changed == 1
    assert pair.live.execute("SELECT id FROM shop.notes").fetchall() == [(1,)]


def test_a_part_of_a_table_leaves_the_rest(pair: Pair) -> None:
    for connection, cents in ((pair.live, 7), (pair.other, 5)):
        pair.fill(connection, [total(1, cents, "mine"), total(2, cents, "theirs"), total(cents, 1, "mine")])
    table = described(pair.live, "shop.totals")
    part = part_of(table, ["id", "day", "cents", "name"], sql.SQL("name = 'mine'"))
    with pair.live.transaction():
        done = replace_rows(pair.live, pair.other, part, 0)
    assert (done.rows, done.changed, done.added, done.deleted) == (2, 1, 1, 1)
    assert [row[0::2][:2] for row in pair.rows(pair.live)] == [(1, 5), (2, 7), (5, 1)]


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("ALTER TABLE shop.totals ADD mine text", "has the column mine text, which by sql/schema is not there"),
        ("ALTER TABLE shop.totals DROP name", "lacks the column name of sql/schema"),
        (
            "ALTER TABLE shop.totals ALTER name TYPE varchar(9)",
            r"has the column name character varying\(9\), which by sql/schema is text",
        ),
        ("ALTER TABLE shop.totals DROP CONSTRAINT totals_pkey", r"has the key none, and by sql/schema \(id, day\)"),
    ],
)
def test_a_table_that_is_another_one_here_is_refused(pair: Pair, statement: str, sentence: str) -> None:
    pair.live.execute(statement)
    with pytest.raises(UserError, match=f"shop.totals {sentence}") as refusal:
        same(described(pair.live, "shop.totals"), described(pair.other, "shop.totals"))
    assert refusal.value.exit_code == REFUSED


def test_a_key_tells_all_rows_apart(pair: Pair) -> None:
    """A unique index takes any number of rows with a NULL, unless it says otherwise; what Postgres counts is no key."""
    assert described(pair.live, "shop.levels").key == ("region", "desk")
    pair.live.execute("CREATE TABLE shop.loose (name text UNIQUE)")
    pair.live.execute("CREATE TABLE shop.counted (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text)")
    pair.live.execute("CREATE TABLE shop.some (id bigint)")
    pair.live.execute("CREATE UNIQUE INDEX ON shop.some (id) WHERE id > 5")
    assert [described(pair.live, f"shop.{name}").key for name in ("loose", "counted", "some", "gone")] == [()] * 4
