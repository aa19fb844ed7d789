"""The judge and time: it takes ticks in the recorded order, by its own rules, and finds a tick rule that is wrong."""

import dataclasses
import importlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.proof import expect, matching, outputs
from onefold.proof.contracts import contract_of
from onefold.proof.expect import Oracle, Table, Workload
from onefold.proof.fates import Fate
from onefold.proof.model import model
from onefold.proof.order import Order
from onefold.proof.outputs import Outputs
from onefold.proof.record import Record, Source
from onefold.proof.verdict import CannotTell
from onefold.testing import TopologyDriver
from tests.support.coded import raises
from tests.support.command_line import ROOT

SALES = ROOT / "docs" / "examples" / "sales"
START_MS = 1_767_225_600_000
LONG, STRING = {"type": "long"}, {"type": "string"}


def contract(name: str, **fields: Any) -> Any:
    columns = [{"name": field, **kind} for field, kind in fields.items()]
    return contract_of({"type": "record", "name": name, "namespace": "bids", "fields": columns})


BID = contract("Bid", item=STRING, cents=LONG)
SALE = contract("Sale", item=STRING, cents=LONG, at_ms=LONG)
TABLE = Table("bids.sales", "bids.sales", ("item",))


def bid(value: Any, tables: Any) -> None:
    """The highest bid so far, of an item that is not sold."""
    held = tables[TABLE.name].get(value["item"])
    if held is None or (held["at_ms"] == 0 and value["cents"] > held["cents"]):
        tables[TABLE.name].put({**value, "at_ms": 0})


def sell(at_ms: int, tables: Any) -> None:
    """At a tick everything is sold that has a bid."""
    for row in tables[TABLE.name].here():
        if row["at_ms"] == 0:
            tables[TABLE.name].put({**row, "at_ms": at_ms})


WORKLOAD = model("bids", bid, inputs=("bids.bids",), key="item", tables=(TABLE,), tick=sell)


@pytest.fixture
def contracts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expect, "contracts", lambda domain=None: {"bids.bids": BID, "bids.sales": SALE})


def tick(partition: int, offset: int, at_ms: int | bytes) -> Record:
    value = at_ms if isinstance(at_ms, bytes) else json.dumps({"at_ms": at_ms}).encode()
    return Record("bids.ticks", partition, offset, None, value)


def bids(oracle: Oracle, *items: str) -> dict[str, int]:
    """Where each item belongs."""
    return {item: next(p for p in range(2) if oracle.feed(_bid(item, p)) == Fate.ACCEPTED) for item in items}


def _bid(item: str, partition: int) -> Record:
    return Record("bids.bids", partition, ord(item), None, json.dumps({"item": item, "cents": 5}).encode())


def test_a_tick_is_for_the_keys_of_its_partition(contracts: None) -> None:
    """And a row that it puts has it as its source."""
    oracle = Oracle(WORKLOAD, 2)
    homes = bids(oracle, *"abcdef")
    assert set(homes.values()) == {0, 1}
    assert oracle.feed(tick(1, 0, 7000)) == Fate.ACCEPTED
    rows = oracle.settled().model.rows[TABLE.name]
    assert {row[0]: row[2] for row, _ in rows.values()} == {item: 7000 * home for item, home in homes.items()}
    assert {source for row, source in rows.values() if row[2]} == {Source("bids.ticks", 1, 0)}


def test_of_the_ticks_of_a_partition_each_is_later_than_the_last(contracts: None) -> None:
    """One from a clock that is behind is ignored although there is something to sell, one that changes nothing too, and what is
    no tick is dead. The other partition has a time of its own.
    """
    oracle = Oracle(WORKLOAD, 2)
    here = bids(oracle, "a")["a"]
    assert oracle.feed(tick(here, 0, 3000)) == Fate.ACCEPTED
    more = bids(oracle, *"bcdef")
    assert set(more.values()) == {0, 1}
    ticks: list[int | bytes] = [3000, 2000, b"noon", b'{"at_ms": -1}', 10**15, b'{"at_ms": 4000.0}', 4000, 5000]
    fates = [oracle.feed(tick(here, 1 + offset, at_ms)) for offset, at_ms in enumerate(ticks)]
    assert fates == [*[Fate.IGNORED] * 2, *[Fate.DEAD] * 4, Fate.ACCEPTED, Fate.IGNORED]
    assert oracle.feed(tick(1 - here, 0, 2000)) == Fate.ACCEPTED


def test_a_workload_with_ticks_needs_a_model_with_a_tick(contracts: None) -> None:
    class Timeless:
        rows: Any = {}  # noqa: RUF012 - never written to

        def key(self, value: Any, source: Source) -> str:
            return ""

        def apply(self, value: Any, source: Source) -> bool:
            return False

        def settle(self) -> None:
            """Nothing."""

    oracle = Oracle(Workload("bids", ("bids.bids",), (TABLE,), Timeless, ticks=True), 1)
    with raises(CannotTell, Code.MODEL_WRONG):
        oracle.feed(tick(0, 0, 1000))


# --- the example's rule, and what is wrong with it


def right(rule: Callable[..., Any], key: str, shop: Any, at_ms: int) -> Any:
    return rule(key, shop, at_ms)


def too_early(rule: Callable[..., Any], key: str, shop: Any, at_ms: int) -> Any:
    return rule(key, shop, at_ms + 10_000)


def too_late(rule: Callable[..., Any], key: str, shop: Any, at_ms: int) -> Any:
    return rule(key, shop, at_ms - 1)


def one_short(rule: Callable[..., Any], key: str, shop: Any, at_ms: int) -> Any:
    after, rows = rule(key, shop, at_ms)
    return after, [(topic, {**row, "orders": row["orders"] - 1}) for topic, row in rows]


def told_twice(rule: Callable[..., Any], key: str, shop: Any, at_ms: int) -> Any:
    after, rows = rule(key, shop, at_ms)
    return after, [*rows, *rows[:1]]


def forgets_what_it_told(rule: Callable[..., Any], key: str, shop: Any, at_ms: int) -> Any:
    after, rows = rule(key, shop, at_ms)
    return dataclasses.replace(after, minutes=dataclasses.replace(after.minutes, closed_ms=None)), rows


def judged(monkeypatch: pytest.MonkeyPatch, rule: Callable[..., Any]) -> list[str]:
    """Runs the example with its tick rule replaced, on the simulated log with crashes, and judges it; what is wrong."""
    monkeypatch.syspath_prepend(str(SALES))
    monkeypatch.setenv("ONEFOLD_PROJECT", str(SALES))
    sales, workload = importlib.import_module("sales"), importlib.import_module("sales_workload")
    found = {topic: contract_of(json.loads((SALES / "avro" / f"sales.{name}.avsc").read_text(encoding="utf-8")))
             for topic, name in (("sales.orders", "Order"), ("sales.minutes", "Minute"))}  # fmt: skip
    for module in (expect, matching, outputs):
        monkeypatch.setattr(module, "contracts", lambda domain=None: found)
    of_example = sales.TOPOLOGY
    planted = dataclasses.replace(of_example.tick, handle=lambda *given: rule(of_example.tick.handle, *given), due=None)
    topology = dataclasses.replace(of_example, tick=planted)
    driver = TopologyDriver(topology, contracts=str(SALES / "avro"), partitions=2)
    orders = list(workload.generate(7, 400, START_MS))
    for wave in range(20):
        for order in orders[20 * wave : 20 * wave + 20]:
            driver.send("sales.orders", json.loads(order.value))
        driver.tick(START_MS - 180_000 + 10_000 * wave)
        driver.crash_at("before_commit", 1 + wave % 3)
        driver.run()
    return differences(driver, workload.WORKLOAD)


def differences(driver: TopologyDriver, workload: Workload) -> list[str]:
    """As `verify` does it, without the database: fates and counts, output records, dead letters, and the rows themselves."""
    oracle, said = Oracle(workload, driver.partitions), Outputs(workload)
    order = Order(workload.reads, oracle.feed)
    order_topic, dead = driver.topology.order or "", driver.topology.dead.values()
    for topic, take in (
        *((topic, order.feed) for topic in workload.reads),
        (order_topic, order.add),
        *((topic, said.feed) for topic in (*workload.outputs, *dead)),
    ):
        for partition in range(driver.partitions):
            for offset, entry in driver.log.read(topic, partition, 0)[0]:
                take(Record(topic, partition, offset, entry.key, entry.value, list(entry.headers)))
    assert order.left_over() == ""
    expected = oracle.settled()
    wrong = [finding.kind for finding in said.judge(expected)]
    rows = {key: row for key, (row, _) in expected.model.rows["sales.minutes"].items()}
    made = {(row["shop"], row["minute"]): tuple(row.values()) for row in driver.read("sales.minutes")}
    wrong += ["rows"] * (rows != made)
    totals = [driver.task(partition).progress.counts for partition in range(driver.partitions)]
    counted = [sum(getattr(counts, name) for counts in totals) for name in ("accepted", "ignored", "dead")]
    wrong += ["counts"] * (counted != [expected.counts.accepted, expected.counts.ignored, expected.counts.dead])
    assert expected.counts.dead > 10, "some orders came too late"
    return wrong


def test_the_judge_and_the_example_agree_on_every_minute_and_every_late_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, right) == []


@pytest.mark.parametrize("rule", [too_early, too_late, one_short, told_twice, forgets_what_it_told])
def test_the_judge_finds_a_bug_in_a_tick_rule(monkeypatch: pytest.MonkeyPatch, rule: Callable[..., Any]) -> None:
    assert judged(monkeypatch, rule) != []
