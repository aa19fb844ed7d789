"""The judge and time: it takes ticks in the recorded order, by its own rules, and finds a tick rule that is wrong."""

import dataclasses
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onefold import Tick
from onefold.error_codes import Code
from onefold.processor.core.ticks import tick_record
from onefold.processor.loading import topology_of
from onefold.testing import TopologyDriver
from onefold.verify import expect, judge, matching, outputs
from onefold.verify.contracts import contract_of
from onefold.verify.expect import Oracle, Table, Workload
from onefold.verify.fates import Fate
from onefold.verify.model import model
from onefold.verify.order import Order
from onefold.verify.outputs import Outputs
from onefold.verify.record import Record, Source
from onefold.verify.replays import Replays
from onefold.verify.verdict import INVALID, CannotTell
from onefold.workloads import runner
from tests.support.coded import raises
from tests.support.command_line import ROOT
from tests.support.followed import Followed
from tests.verify.test_judging import OrderedStage

SALES = ROOT / "examples" / "sales"
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


def tick(partition: int, offset: int, at_ms: int | bytes, timestamp_ms: int | None = None) -> Record:
    value = at_ms if isinstance(at_ms, bytes) else json.dumps({"at_ms": at_ms}).encode()
    return Record("bids.ticks", partition, offset, None, value, timestamp_ms=timestamp_ms)


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


@pytest.mark.promise("dead-letters-dropped")
def test_a_dropped_tick_is_a_dead_letter_and_has_not_set_the_time(contracts: None) -> None:
    """A bug had set it aside, which the model does not expect; and it cannot be replayed."""
    oracle = Oracle(WORKLOAD, 2)
    here = bids(oracle, "a")["a"]
    dropped = Source("bids.ticks", here, 0)
    oracle.withdrawn = Replays({dropped: True}).withdrawn
    assert oracle.feed(tick(here, 0, 5000)) == Fate.DEAD
    assert set(oracle.expected.dead) == {dropped}
    assert oracle.feed(tick(here, 1, 4000)) == Fate.ACCEPTED


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


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    "ahead_ms", [365 * DAY_MS, HOUR_MS + 1, -365 * DAY_MS, -25 * HOUR_MS - 1], ids=lambda ahead: f"{ahead} ms"
)
def test_a_tick_that_the_time_of_its_own_record_contradicts_is_found(contracts: None, ahead_ms: int) -> None:
    """Also one that changes nothing, and one that is not later than the tick before."""
    oracle, at_ms = Oracle(WORKLOAD, 1), START_MS + ahead_ms
    bids(oracle, "a")
    fates = [oracle.feed(tick(0, offset, at_ms, START_MS)) for offset in range(3)]
    assert fates == [Fate.ACCEPTED, Fate.IGNORED, Fate.IGNORED]
    found = oracle.settled().mistimed
    assert [(one.kind, one.where, one.source) for one in found] == [
        ("wrong time", "bids.ticks", f"bids.ticks/0/{offset}") for offset in range(3)
    ]


@pytest.mark.parametrize("ahead_ms", [0, HOUR_MS, -25 * HOUR_MS])
def test_a_tick_of_its_interval_is_right_whichever_clock_kafka_takes(contracts: None, ahead_ms: int) -> None:
    """The time of the last multiple of the interval, which is a day at most; a broker's clock may differ from a processor's."""
    oracle = Oracle(WORKLOAD, 1)
    oracle.feed(tick(0, 0, START_MS + ahead_ms, START_MS))
    oracle.feed(tick(0, 1, 1000, None))
    oracle.feed(tick(0, 2, -1, START_MS))
    assert oracle.settled().mistimed == []


class Timed(runner.Model):
    """The model of a pipeline whose ticks change nothing."""

    def tick(self, at_ms: int, source: Source) -> bool:
        return False


TIMED = dataclasses.replace(runner.WORKLOAD, ticks=True, model=Timed)
FUTURE = tick_record(START_MS + 365 * DAY_MS)


def test_verify_names_a_tick_of_the_future(module_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "workload", lambda domain: TIMED)
    stage = OrderedStage(module_database, TIMED)
    stage.play(runner.generate(3, 60))
    source = Source("runner.ticks", 1, stage.log.append("runner.ticks", *FUTURE, partition=1, timestamp_ms=START_MS))
    record = Record(*source, *FUTURE)
    stage.oracle.feed(record)
    stage.originals[source], stage.ends[source[:2]] = record, 1
    stage.order()
    stage.report_progress()
    verdict = stage.judge()
    assert verdict.outcome == INVALID
    assert [(one.kind, one.source) for one in verdict.findings] == [("wrong time", "runner.ticks/1/0")]


def test_the_continuous_verifier_names_a_tick_of_the_future(tmp_path: Path) -> None:
    """Once, and whether it was there at the start or came since."""
    ticking = Tick(every_s=1, handle=lambda key, state, at_ms: (state, ()))
    followed = Followed(dataclasses.replace(topology_of("runner"), tick=ticking), TIMED)
    log = followed.driver.log
    log.append("runner.ticks", *FUTURE, partition=0, timestamp_ms=START_MS)
    followed.send(runner.generate(3, 60))
    followed.begin()
    assert [one.source for one in followed.found()] == ["runner.ticks/0/0"]
    log.append("runner.ticks", *FUTURE, partition=1, timestamp_ms=START_MS)
    followed.send(runner.generate(4, 60))
    assert [(one.kind, one.source) for one in followed.found()] == [("wrong time", "runner.ticks/1/0")]


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
                take(Record(topic, partition, offset, entry.key, entry.value, list(entry.headers), entry.timestamp_ms))
    assert order.left_over() == ""
    expected = oracle.settled()
    wrong = [finding.kind for finding in (*said.judge(expected), *expected.mistimed)]
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
