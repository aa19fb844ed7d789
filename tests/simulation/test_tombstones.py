"""Tombstones, the null values by which compacted topics and change data capture delete a key: dead letters, ignored, or events.
The judge has a declaration of its own for them.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from onefold import Event, Outputs, Rejected, Topology
from onefold.error_codes import Code
from onefold.model import Inadmissible
from onefold.processor.core.errors import Refused
from onefold.processor.testing.partition import partition_of
from onefold.testing import STEPS, TopologyDriver
from onefold.verify import expect, matching, outputs
from onefold.verify.contracts import contract_of
from onefold.verify.expect import Oracle, Table, Workload
from onefold.verify.model import model
from onefold.verify.outcomes import Fate
from onefold.verify.record import ReadRecord
from onefold.verify.verdict import CannotTell
from tests.support.coded import raises
from tests.support.judged import judged

pytestmark = pytest.mark.promise("tombstones")

PARTITIONS = 2
ITEMS, PRICES, STOCK = "stock.items", "stock.prices", "stock.stock"
SCHEMAS: dict[str, dict[str, Any]] = {
    ITEMS: {"sku": "string", "count": "long"},
    PRICES: {"item": "string", "cents": "long"},
    STOCK: {"sku": "string", "count": "long", "cents": "long", "deletes": "long"},
}


class Item(Struct):
    """What is known of an item; both topics say something of it."""

    count: int = 0
    cents: int = 0


def handle(item: Item | None, event: Event) -> tuple[Item | None, Outputs]:
    """A tombstone of either topic forgets the item, and leaves a row that says so."""
    if event.value is None:
        assert event.key is not None
        if event.key == b"never":
            raise Rejected("this item is never deleted")
        if item is None:
            return item, ()
        return None, ((STOCK, {"sku": event.key.decode(), "count": 0, "cents": 0, "deletes": 1}),)
    held, value = item or Item(), event.value
    if event.topic == ITEMS:
        after, sku = Item(value.count, held.cents), value.sku
    else:
        after, sku = Item(held.count, value.cents), value.item
    return after, ((STOCK, {"sku": sku, "count": after.count, "cents": after.cents, "deletes": 0}),)


TOPOLOGY = Topology(
    name="stock",
    inputs=(ITEMS, PRICES),
    key={ITEMS: lambda value: value.sku, PRICES: lambda value: value.item},
    state=Item,
    handle=handle,
    outputs={STOCK: ("sku",)},
)
TABLE = Table(STOCK, STOCK, ("sku",))


def _held(tables: Any, sku: str) -> dict[str, Any] | None:
    held = tables[STOCK].get(sku)
    return held if held is not None and not held["deletes"] else None


def _item(value: Any, tables: Any) -> None:
    held = _held(tables, value["sku"]) or {"cents": 0}
    tables[STOCK].put({**value, "cents": held["cents"], "deletes": 0})


def _price(value: Any, tables: Any) -> None:
    held = _held(tables, value["item"]) or {"count": 0}
    tables[STOCK].put({"sku": value["item"], "count": held["count"], "cents": value["cents"], "deletes": 0})


def _delete(sku: str, tables: Any) -> None:
    if sku == "never":
        raise Inadmissible("this item is never deleted")
    if _held(tables, sku) is not None:
        tables[STOCK].put({"sku": sku, "count": 0, "cents": 0, "deletes": 1})


def workload(tombstones: str) -> Workload:
    return model(
        "stock",
        {ITEMS: _item, PRICES: _price},
        inputs=(ITEMS, PRICES),
        key={ITEMS: "sku", PRICES: "item"},
        tables=(TABLE,),
        tombstones=tombstones,
        delete=_delete if tombstones == "event" else None,
    )


@pytest.fixture
def contracts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for each topic, and the same for the judge."""
    found = {}
    for topic, fields in SCHEMAS.items():
        columns = [{"name": name, "type": kind} for name, kind in fields.items()]
        schema = {"type": "record", "name": topic.partition(".")[2], "namespace": "stock", "fields": columns}
        (tmp_path / f"{topic}.avsc").write_text(json.dumps({**schema, "topics": [topic]}), encoding="utf-8")
        found[topic] = contract_of(schema)
    for module in (expect, matching, outputs):
        monkeypatch.setattr(module, "contracts", lambda domain=None: found)
    return tmp_path


def send_all(driver: TopologyDriver) -> None:
    """Items and prices, and of tombstones each kind: of a key that is there and of one that is not, in its partition and in
    the other, without a key, with a key that is no text, and one that the handler refuses. An empty value is no tombstone.
    """
    away = 1 - partition_of("b", PARTITIONS)
    for sku in ("a", "b", "c"):
        driver.send(ITEMS, {"sku": sku, "count": 3})
        driver.send(PRICES, {"item": sku, "cents": 5})
    driver.run()
    driver.send(ITEMS, None, key="a")
    driver.send(PRICES, None, key="b", partition=away)
    driver.send(ITEMS, None, key="unknown")
    driver.send(ITEMS, None)
    driver.send(ITEMS, None, key=b"\xff", partition=0)
    driver.send(PRICES, None, key="never")
    driver.send(ITEMS, b"", key="c")
    driver.run()
    driver.send(ITEMS, {"sku": "a", "count": 9})
    driver.run()


FATES = {
    # accepted, ignored, repartitioned, dead
    "reject": (7, 0, 0, 7),
    "ignore": (7, 6, 0, 1),
    "event": (9, 1, 1, 4),
}


@pytest.mark.parametrize("step", [None, *STEPS])
@pytest.mark.parametrize("tombstones", FATES)
def test_what_becomes_of_tombstones(tombstones: Any, step: str | None, contracts: Path) -> None:
    """Also when a task ends in the middle of it. The judge, told the same, finds nothing wrong; told otherwise, it does."""
    driver = TopologyDriver(replace(TOPOLOGY, tombstones=tombstones), contracts=contracts, partitions=PARTITIONS)
    if step is not None:
        driver.crash_at(step, 3)
    send_all(driver)
    findings, expected = judged(workload(tombstones), driver)
    counts = [driver.task(partition).progress.counts for partition in range(PARTITIONS)]

    assert findings == []
    assert tuple(counts[0].plus(counts[1])) == tuple(vars(expected.counts).values()) == FATES[tombstones]
    assert driver.table(STOCK)["a",] == {
        "sku": "a",
        "count": 9,
        "cents": 0 if tombstones == "event" else 5,
        "deletes": 0,
    }
    for other in set(FATES) - {tombstones}:
        assert judged(workload(other), driver)[0]


def test_dead_letters_of_tombstones_say_why(contracts: Path) -> None:
    driver = TopologyDriver(replace(TOPOLOGY, tombstones="event"), contracts=contracts, partitions=PARTITIONS)
    send_all(driver)
    letters = [letter for topic in (ITEMS, PRICES) for letter in driver.records(f"{topic}.dead")]
    reasons = {(key, value): (headers["onefold-reason"] or b"").decode() for key, value, headers in letters}

    assert reasons[None, None] == "the value is null, and there is no key that says what is deleted"
    assert "its key is no UTF-8 text that says what is deleted" in reasons[b"\xff", None]
    assert reasons[b"never", None] == "this item is never deleted"
    assert reasons[b"c", b""] == "the value is empty"


def test_an_event_has_its_key(contracts: Path) -> None:
    """Every event has; that of a copy is the text of the state key."""
    seen: list[tuple[Any, bytes | None]] = []

    def see(item: Item | None, event: Event) -> tuple[Item, Outputs]:
        seen.append((event.value and event.value.sku, event.key))
        return Item(), ()

    topology = replace(TOPOLOGY, inputs=(ITEMS,), key=TOPOLOGY.keys[ITEMS], handle=see, tombstones="event")
    driver = TopologyDriver(topology, contracts=contracts, partitions=PARTITIONS)
    body = json.dumps({"sku": "a", "count": 1}).encode()
    driver.send(ITEMS, {"sku": "a", "count": 1})
    driver.send(ITEMS, body, key=b"\xff", partition=partition_of("a", PARTITIONS))
    driver.send(ITEMS, body, partition=1 - partition_of("a", PARTITIONS))
    driver.send(ITEMS, None, key="a")
    driver.run()
    assert seen == [("a", b"a"), ("a", b"\xff"), (None, b"a"), ("a", b"a")]


def test_a_word_that_is_none_of_the_three_is_refused() -> None:
    with raises(Refused, Code.PIPELINE_WRONG):
        replace(TOPOLOGY, tombstones="delete")  # type: ignore[arg-type]  # as a user may write it
    with pytest.raises(ValueError, match="the verification model of stock has tombstones='delete'"):
        replace(workload("reject"), tombstones="delete")


@pytest.mark.parametrize(
    "change",
    [
        lambda: model("s", _item, inputs=(ITEMS,), key="sku", tables=(), tombstones="event"),
        lambda: model("s", _item, inputs=(ITEMS,), key="sku", tables=(), delete=_delete),
    ],
    ids=["without delete", "without event"],
)
def test_a_model_has_a_delete_if_tombstones_are_events(change: Callable[[], Workload]) -> None:
    with pytest.raises(ValueError, match="if, and only if, it has tombstones='event'"):
        change()


def test_a_class_without_delete_cannot_judge_events(contracts: Path) -> None:
    made = replace(workload("reject"), tombstones="event", model=lambda: _Without(workload("reject").model()))
    with raises(CannotTell, Code.MODEL_WRONG):
        Oracle(made, 1).feed(ReadRecord(ITEMS, 0, 0, b"a", None))
    assert Oracle(made, 1).feed(ReadRecord(ITEMS, 0, 0, None, None)) == Fate.DEAD


class _Without:
    """A model of somebody who has not heard of tombstones."""

    def __init__(self, made: Any) -> None:
        self.key, self.apply, self.settle, self.rows = made.key, made.apply, made.settle, made.rows
