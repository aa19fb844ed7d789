"""What is said of a row's columns: by which record, and what is not known because only one topic was looked through."""

from typing import Any

import psycopg
import pytest

from onefold.operate import explain
from onefold.operate.explained import Cause, Explanation, History, Shown, Step

ORIGIN = {"topic": "shop.totals", "partition": "0", "offset": "7"}
ONE = "shop.orders/0/3, by shop.totals/0/7"


def explained(accumulated: tuple[str, ...] = ()) -> Explanation:
    """A row of one record, out of one partition, which was looked through from its beginning."""
    row: dict[str, str | None] = {"id": "1", "orders": "2", "paid": "9", "seen": "5", **ORIGIN}
    told = Explanation("shop.totals", {"id": "1"}, row, "shop.totals/0/7", list(accumulated))
    told.history = [Step(Shown("shop.totals/0/7"), [Cause("caused by", Shown("shop.orders/0/3"))], None)]
    told.looked = History("shop.totals/0", 0, True, ["id"])
    return told


@pytest.mark.parametrize(
    ("others", "paid", "orders"),
    [
        ({}, "not a field of the record: the merge or the table computes it", ONE),
        (
            {"shop.payments": ("id", "paid")},
            "a field of shop.payments, which feeds the table too and is not looked through here",
            ONE,
        ),
        (
            {"shop.payments": ("paid", "orders"), "shop.refunds": ("paid",)},
            "a field of shop.payments or shop.refunds, which feeds the table too and is not looked through here",
            f"{ONE}, as far as shop.totals/0 tells; shop.payments has that field too",
        ),
    ],
)
def test_a_column_of_another_topic_is_said_to_be_one(others: dict[str, Any], paid: str, orders: str) -> None:
    told = explained()
    told.say_what_columns_are({"id": 1, "orders": 2}, others)
    assert told.columns["paid"] == paid
    assert told.columns["orders"] == orders
    assert told.columns["seen"] == "not a field of the record: the merge or the table computes it"
    assert told.columns.keys() == {"id", "orders", "paid", "seen"}


def test_of_a_row_of_several_records_one_partition_is_looked_through() -> None:
    """As of bank.transfers: each column may be of one record, and the first record may lie in another partition."""
    told = explained(accumulated=("paid",))
    told.say_what_columns_are({"id": 1, "orders": 2, "paid": 9}, {})
    assert told.columns["paid"].endswith("of one record or of several records")
    assert told.columns["orders"] == f"{ONE}, as far as shop.totals/0 tells"


def test_what_is_older_than_what_was_looked_through_is_said_to_be() -> None:
    told = explained(accumulated=("paid",))
    told.looked = History("shop.totals/0", 5, False, ["id"])
    told.say_what_columns_are({"id": 1, "orders": 2}, {"shop.payments": ("orders",)})
    assert told.columns["orders"] == "older than what was looked through"


@pytest.mark.parametrize(
    ("said", "shown"), [("connection refused\nIs it running?", "connection refused"), ("", "OperationalError")]
)
def test_what_the_database_says_is_a_sentence_without_quotes(said: str, shown: str) -> None:
    assert explain.problem_of(psycopg.OperationalError(said)).message == f"the database does not answer: {shown}"
