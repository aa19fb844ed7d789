"""The judge's model of the bank: what it makes of an account's lines."""

from decimal import Decimal
from typing import Any

from onefold.verify.record import Source
from onefold.workloads import bank


def accounts(*records: tuple[str, dict[str, Any]]) -> dict[Any, Any]:
    """The rows of the accounts after these records."""
    model = bank.Model()
    for offset, (topic, value) in enumerate(records):
        model.apply(value, Source(topic, 0, offset))
    return {key: row for key, (row, _) in model.rows["bank.accounts"].items()}


def test_an_account_stands_as_its_last_line_has_it() -> None:
    opened = bank.ACCOUNTS, {"account": 1, "change": "open", "balance": Decimal(10)}
    paid = bank.TRANSFERS, {"payer": 1, "transfer": 1, "payee": 2, "amount": Decimal(3)}
    closed = bank.ACCOUNTS, {"account": 1, "change": "close", "balance": Decimal(0)}
    assert accounts(opened) == {(1,): (1, 1, 10, 10, False)}
    assert accounts(opened, paid) == {(1,): (1, 2, 7, 10, False)}
    assert accounts(opened, paid, closed) == {(1,): (1, 3, 7, 10, True)}


def test_a_payment_is_in_flight_until_it_is_deposited_or_returned() -> None:
    """The lines of payer and payee may come in any order."""
    [table] = [table for table in bank.WORKLOAD.tables if table.name == "bank.transfers"]
    gathered: Any = table.sums
    withdraw, deposit, back = ((1, 2, kind, 1, 1, 2, 3, 7, 10, False) for kind in ("withdraw", "deposit", "return"))
    withdrawn = (1, 1, 2, -3, None, None, "in flight")
    assert gathered.row(None, withdraw) == withdrawn
    assert gathered.row(withdrawn, deposit) == (1, 1, 2, -3, 3, None, "deposited")
    assert gathered.row(withdrawn, back) == (1, 1, 2, -3, None, 3, "returned")
    assert gathered.row(None, deposit) == (1, 1, 2, None, 3, None, "arrived first")


def test_of_lines_in_any_order_the_one_with_the_highest_number_holds() -> None:
    [table] = [table for table in bank.WORKLOAD.tables if table.name == "bank.accounts"]
    gathered: Any = table.sums
    lines = [(1, 1, "open", None, None, None, 10, 10, 10, False), (1, 2, "withdraw", 1, 1, 2, -3, 7, 10, False)]
    for first, second in (lines, reversed(lines)):
        assert gathered.row(gathered.row(None, first), second) == (1, 2, 7, 10, False)
