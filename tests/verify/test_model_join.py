"""A model of two topics: a function and a key for each, and notes that are no columns. It is that of examples/shop."""

import importlib
import json
from types import ModuleType
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.verify import expect
from onefold.verify.contracts import contract_of
from onefold.verify.expect import Oracle, Table
from onefold.verify.model import Apply, Key, Rows, model
from onefold.verify.outcomes import Fate
from onefold.verify.record import ReadRecord, Source
from onefold.verify.verdict import CannotTell
from tests.support.coded import raises
from tests.support.rooms import ROOT

SHOP = ROOT / "examples" / "shop"
ORDERS, PAYMENTS = "shop.orders", "shop.payments"


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Its workload, with its own contracts."""
    raw = [json.loads(path.read_text(encoding="utf-8")) for path in (SHOP / "avro").glob("*.avsc")]
    found = {topic: contract_of(each) for each in raw for topic in each["topics"]}
    monkeypatch.setattr(expect, "contracts", lambda domain=None: found)
    monkeypatch.syspath_prepend(str(SHOP))
    return importlib.import_module("shop_workload")


def ignore(value: Any, tables: Any) -> None:
    """Changes nothing."""


def test_a_join_has_a_function_and_a_key_for_each_topic(shop: ModuleType) -> None:
    inputs: list[tuple[str, dict[str, int]]] = [
        (PAYMENTS, {"order": 7, "id": 1, "cents": 40}),
        (ORDERS, {"number": 7, "cents": 100}),
        (PAYMENTS, {"order": 7, "id": 1, "cents": 40}),
        (ORDERS, {"number": 7, "cents": 999}),
        (PAYMENTS, {"order": 7, "id": 2, "cents": 60}),
        (ORDERS, {"number": 8, "cents": 5}),
    ]
    oracle = Oracle(shop.WORKLOAD, 1)
    fates = [
        oracle.feed(ReadRecord(topic, 0, offset, None, json.dumps(value).encode()))
        for offset, (topic, value) in enumerate(inputs)
    ]

    changed, same = Fate.ACCEPTED, Fate.IGNORED
    assert fates == [changed, changed, same, same, changed, changed]
    assert oracle.settled().model.rows["shop.bills"] == {
        (7,): ((7, 100, 100, PAYMENTS, 3), Source(PAYMENTS, 0, 4)),
        (8,): ((8, 5, 0, ORDERS, 1), Source(ORDERS, 0, 5)),
    }


def test_what_is_no_column_is_kept_for_the_model_and_compared_with_nothing(shop: ModuleType) -> None:
    rows = Rows(shop.BILLS)
    bill = {"number": 7, "cents": None, "paid": 0, "first": ORDERS, "changes": 1}
    assert rows.get(7) is None
    rows.put({**bill, "ids": (1,)})
    assert rows.get(7) == {**bill, "ids": (1,)}
    assert rows.expected[7,][0] == tuple(bill.values())
    rows.put(bill)
    assert rows.get(7) == bill, "notes are those of the last put"


def test_a_key_may_be_a_function_for_one_topic_and_a_field_for_the_other(shop: ModuleType) -> None:
    key: dict[str, Key] = {ORDERS: lambda order: order["number"] + 1, PAYMENTS: "order"}
    made = model("shop", ignore, inputs=(ORDERS, PAYMENTS), key=key, tables=(shop.BILLS,)).model()
    assert made.key({"number": 7}, Source(ORDERS, 0, 0)) == "8"
    assert made.key({"order": 7}, Source(PAYMENTS, 0, 0)) == "7"


@pytest.mark.parametrize(
    ("apply", "key", "what"),
    [
        ({ORDERS: ignore}, "number", f"its apply is for {ORDERS}"),
        (ignore, {ORDERS: "number"}, f"its key is for {ORDERS}"),
        (ignore, {ORDERS: "number", PAYMENTS: "order", "shop.refunds": "order"}, "its key is for .*refunds"),
        ({}, "number", "its apply is for none of them"),
    ],
)
def test_topics_without_a_function_or_a_key_are_told_at_once(
    apply: Apply | dict[str, Apply], key: Key | dict[str, Key], what: str
) -> None:
    tables = (Table("shop.bills", "shop.bills", ("number",)),)
    with pytest.raises(
        ValueError, match=f"the model of shop reads {ORDERS}, {PAYMENTS}, and {what}: give one for each"
    ):
        model("shop", apply, inputs=(ORDERS, PAYMENTS), key=key, tables=tables)


def test_a_key_that_is_no_field_is_told(shop: ModuleType) -> None:
    """A join whose topics name it differently, and one key for both."""
    made = model("shop", ignore, inputs=(ORDERS, PAYMENTS), key="number", tables=(shop.BILLS,))
    with raises(CannotTell, Code.MODEL_WRONG, "shop.payments"):
        Oracle(made, 1).feed(ReadRecord(PAYMENTS, 0, 0, None, b'{"order": 7, "id": 1, "cents": 40}'))
