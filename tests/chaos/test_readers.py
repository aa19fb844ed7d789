"""Readers find the one snapshot in which a rule does not hold, whatever the database does meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from onefold.chaos.readers import Readers
from onefold.config.settings import Settings
from onefold.verify.invariants import invariants
from tests.support.migrated import migrate_all
from tests.support.waiting import eventually

RULES = {"bank.no_debt", "bank.settled_in_full", "bank.total"}
OPEN = (
    'INSERT INTO bank.accounts (account, entries, balance, opened, closed, topic, partition, "offset")'
    " VALUES (%s, 1, %s, %s, false, 'bank.entries', 0, 0)"
)
MOVE = (
    'INSERT INTO bank.transfers (payer, transfer, payee, withdrawn, deposited, returned, topic, partition, "offset")'
    " VALUES (1, 1, 2, %s, %s, %s, 'bank.entries', 0, 0)"
)


@pytest.fixture
def bank(database: str, checkout: Path) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """Two accounts of 10 and 5; each statement is a transaction of its own."""
    migrate_all(database, checkout / "sql")
    with psycopg.connect(database, autocommit=True) as connection:
        for account, balance in ((1, 10), (2, 5)):
            connection.execute(OPEN, (account, balance, balance))
        yield connection


def read(database: str) -> Readers:
    return Readers("bank", Settings(postgres_dsn=database))


def test_what_holds_is_asked_for_again_and_again(database: str, bank: "psycopg.Connection[tuple[object, ...]]") -> None:
    """Money that is on its way belongs to the total; so does money that has arrived before it is known to have left."""
    assert {rule.name for rule in invariants("bank")} == RULES
    with read(database) as readers:
        with bank.transaction():
            bank.execute("UPDATE bank.accounts SET balance = balance - 3 WHERE account = 1")
            bank.execute(MOVE, (3, None, None))
        seen = readers.looks
        eventually(lambda: readers.looks > seen + 5, 20, "they go on looking")
        with bank.transaction():
            bank.execute("UPDATE bank.accounts SET balance = balance + 7 WHERE account = 2")
            bank.execute("UPDATE bank.transfers SET withdrawn = NULL, deposited = 7")
            bank.execute("UPDATE bank.accounts SET balance = balance + 3 WHERE account = 1")
        seen = readers.looks
        eventually(lambda: readers.looks > seen + 5, 20, "they go on looking")
    assert readers.said == []


@pytest.mark.parametrize(
    ("spoil", "rule", "says"),
    [
        (["UPDATE bank.accounts SET balance = 11 WHERE account = 1"], "bank.total", "total 16.00, opened 15"),
        (["UPDATE bank.accounts SET balance = -1, opened = -1 WHERE account = 2"], "bank.no_debt", "balance -1.00"),
        ([MOVE.replace("%s", "{}").format(3, 2, "NULL")], "bank.settled_in_full", "withdrawn 3.00, deposited 2.00"),
        (["DROP VIEW bank.summary"], "bank.total", 'the query does not work: relation "bank.summary" does not exist'),
    ],
    ids=["money out of nowhere", "debt", "less than was withdrawn", "no view"],
)
def test_what_does_not_hold_is_told_once(
    database: str, bank: "psycopg.Connection[tuple[object, ...]]", spoil: list[str], rule: str, says: str
) -> None:
    with read(database) as readers:
        for statement in spoil:
            bank.execute(statement.encode())
        eventually(lambda: readers.broken, 20, "it was seen")
        seen = readers.looks
        eventually(lambda: readers.looks > seen + 5, 20, "they go on looking")
    told = [each for each in readers.said if each.startswith(f"{rule}: ")]
    assert len(told) == 1
    assert says in told[0]


def test_a_deposit_that_was_landed_twice_breaks_the_total(
    database: str, bank: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    """The payee has it twice; the transfer has settled once. Had it been both deposited and returned, the total knew as well."""
    with bank.transaction():
        bank.execute("UPDATE bank.accounts SET balance = balance - 3 WHERE account = 1")
        bank.execute("UPDATE bank.accounts SET balance = balance + 6 WHERE account = 2")
        bank.execute(MOVE, (3, 3, None))
    with read(database) as readers:
        eventually(lambda: readers.broken, 20, "it was seen")
    bank.execute("UPDATE bank.transfers SET returned = 3")
    with read(database) as again:
        eventually(lambda: again.broken, 20, "it was seen")
    assert [each.split(":")[0] for each in (*readers.said, *again.said)] == ["bank.total", "bank.total"]


def test_a_database_that_ends_their_connections_is_asked_again(
    database: str, bank: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    with read(database) as readers:
        eventually(lambda: readers.looks > 3, 20, "they look")
        bank.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'onefold reader'")
        seen = readers.looks
        eventually(lambda: readers.looks > seen + 5, 20, "they look again")
    assert readers.said == []


def test_that_nobody_could_look_is_no_proof() -> None:
    with read("host=127.0.0.1 port=1 dbname=x") as readers:
        pass
    assert "never asked for" in readers.said[0]


def test_a_pipeline_without_rules_is_not_looked_at() -> None:
    with Readers("runner", Settings(postgres_dsn="host=127.0.0.1 port=1 dbname=x")) as readers:
        pass
    assert (readers.looks, readers.said) == (0, [])
