"""Contracts that have changed: records of before and of today are read side by side, the same by processor and judge."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onefold import Event, Output, Outputs, schema_history
from onefold.processor.core.errors import Misconfigured, Refused, Rejected
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Record
from onefold.processor.io import avro_reader, contracts, schemas
from onefold.processor.io.serde import AvroCodec, decode_plain
from onefold.processor.testing import TopologyDriver
from onefold.processor.testing.log import SimulatedLog
from onefold.spark_sink.contracts import _contract
from onefold.verify import avro
from onefold.verify import contracts as judged
from onefold.verify import decode as judge
from tests.support.single_object import single_object

pytestmark = pytest.mark.promise("earlier-contracts")

TOPIC = "shop.orders"


class Nothing(msgspec.Struct):
    """A state."""


def order(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "shop", "topics": [TOPIC], "fields": list(fields)}


def one(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def enum(*symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": "Kind", "namespace": "shop", "symbols": list(symbols)}


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
#: First the order as it was, then as it is: each of the four ways in which a contract may change, and a place deeper in it.
WAS = order(
    one("id", "int"),
    one("sum", decimal(9, 2)),
    one("note", "string"),
    one("kind", enum("old", "new")),
    one("place", {"type": "record", "name": "Place", "namespace": "shop", "fields": [one("town", "string")]}),
)
IS = order(
    one("id", "long"),
    one("amount", decimal(18, 2), aliases=["sum", "total"]),
    one("currency", "string", default="EUR"),
    one("kind", ["null", enum("new", "old", "returned")], default=None),
    one("place", {"type": "record", "name": "Place", "namespace": "shop",
                  "fields": [one("city", "string", aliases=["town"])]}),
)  # fmt: skip
OLD = {"id": 7, "sum": Decimal("12.30"), "note": "gone", "kind": "old", "place": {"town": "Ulm"}}
READ = {"id": 7, "amount": Decimal("12.30"), "currency": "EUR", "kind": "old", "place": {"city": "Ulm"}}


def folder_of(folder: Path, now: dict[str, Any], *before: dict[str, Any]) -> Path:
    """A folder of contracts with a history."""
    (folder / "earlier").mkdir(exist_ok=True)
    (folder / "shop.Order.avsc").write_text(json.dumps(now), encoding="utf-8")
    for number, was in enumerate(before):
        (folder / "earlier" / f"shop.Order.{number}.avsc").write_text(json.dumps(was), encoding="utf-8")
    return folder


class Registered:
    """A registry with these schemas, numbered from 0."""

    def __init__(self, *raw: dict[str, Any]) -> None:
        self.texts = list(map(json.dumps, raw))

    def schema(self, schema_id: int) -> avro_reader.WriterSchema:
        """As the processor has it."""
        return schemas.parse(schema_id, self.texts[schema_id])

    def judged(self, schema_id: int) -> avro.WrittenSchema:
        """As the judge has it."""
        return avro.schema(self.texts[schema_id])


class Both:
    """The processor's reading of a value and the judge's, which have to be the same."""

    def __init__(self, folder: Path, registered: Registered | None = None) -> None:
        self.contracts = contracts.load(folder)
        topology: Any = Topology(
            name="shop", inputs=(TOPIC,), outputs={}, key=lambda value: value.id, state=Nothing,
            handle=lambda state, event: (state, ()),
        )  # fmt: skip
        self._codec = AvroCodec(topology, self.contracts, registered)
        self._judge = judged.load(folder)[TOPIC]
        self._registry = registered.judged if registered else None

    def __call__(self, value: bytes) -> dict[str, Any] | None:
        try:
            read: Any = self._codec.decode(Record(TOPIC, 0, 0, None, value))
        except Rejected:
            with pytest.raises(judge.Inadmissible):
                judge.decode(self._judge, value, self._registry)
            return None
        found: dict[str, Any] = msgspec.to_builtins(read, builtin_types=(Decimal, bytes))
        assert found == judge.decode(self._judge, value, self._registry)
        return found


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(folder_of(tmp_path, IS, WAS))


def test_a_record_of_before_is_read_as_the_contract_of_today(both: Both) -> None:
    """Added with a default, removed, renamed by an alias, promoted; and in a record within."""
    assert both(single_object(WAS, OLD)) == READ
    new = {"id": 2**40, "amount": Decimal("0.01"), "currency": "CHF", "kind": None, "place": {"city": "Bern"}}
    assert both(single_object(IS, new)) == new
    assert decode_plain(both.contracts[TOPIC], single_object(WAS, OLD))["amount"] == "12.30", (
        "whoever shows it reads it too"
    )


def test_confluents_spelling_is_read_by_the_same_rules(tmp_path: Path) -> None:
    """Also with a schema that the contract never was: what it lacks has a default, what only it has is left out."""

    def confluent(number: int, raw: dict[str, Any], value: dict[str, Any]) -> bytes:
        return b"\0" + number.to_bytes(4, "big") + single_object(raw, value)[10:]

    foreign = order(*(part for part in WAS["fields"] if part["name"] != "note"), one("colour", "string"))
    other = order(*(part for part in WAS["fields"] if part["name"] != "sum"))
    both = Both(folder_of(tmp_path, IS, WAS), Registered(WAS, IS, foreign, other))
    new = {**READ, "id": 2**40, "currency": "CHF"}
    assert both(confluent(0, WAS, OLD)) == READ
    assert both(confluent(1, IS, new)) == new
    assert both(confluent(2, foreign, {**OLD, "colour": "red"})) == READ
    assert both(confluent(3, other, OLD)) is None, "the sum has no default"


def test_json_may_use_a_name_of_before(both: Both) -> None:
    new: dict[str, Any] = {"id": 7, "amount": "12.30", "kind": "old", "place": {"city": "Ulm"}}
    for called in ("amount", "sum", "total"):
        for town in ("city", "town"):
            text = {"id": 7, called: "12.30", "kind": "old", "place": {town: "Ulm"}}
            assert both(json.dumps(text).encode()) == READ
    assert both(json.dumps({**new, "sum": "12.30"}).encode()) is None, "two names, even with one value"
    assert both(json.dumps({**new, "place": {"city": "Ulm", "town": "Ulm"}}).encode()) is None
    assert both(json.dumps({name: value for name, value in new.items() if name != "amount"}).encode()) is None
    assert both(json.dumps({**new, "amount": "x"}).encode()) is None
    del new["amount"]
    assert both(json.dumps({**new, "sum": "x"}).encode()) is None, (
        "what it is called changes nothing of what it must be"
    )


def test_a_name_of_before_may_have_a_default(tmp_path: Path) -> None:
    both = Both(folder_of(tmp_path, order(one("id", "long"), one("tags", {"type": "array", "items": "string"},
                                                                   default=[], aliases=["labels"]))))  # fmt: skip
    assert both(b'{"id": 1}') == {"id": 1, "tags": []}
    assert both(b'{"id": 1, "labels": ["a"]}') == {"id": 1, "tags": ["a"]}


def test_what_no_contract_was_is_refused_as_before(both: Both) -> None:
    stranger = order(one("id", "string"))
    assert both(single_object(stranger, {"id": "7"})) is None
    body = single_object(WAS, OLD)
    for broken in (body[:-1], body + b"\0", body[:10]):
        assert both(broken) is None


# What a field was, what it is, and how the sentence says it.
LOST = {
    "another type": (one("a", "string"), one("a", "long"), "field a was string and is long"),
    "a smaller number": (one("a", "long"), one("a", "int"), "field a was long and is int"),
    "rounded": (one("a", "long"), one("a", "double"), "field a was long and is double"),
    "rounded to 32 bits": (one("a", "int"), one("a", "float"), "field a was int and is float"),
    "null no more": (one("a", ["null", "long"]), one("a", "long"), "field a was null or long and is long"),
    "no default": (one("b", "long"), one("a", "long"), "field a is new and has no default"),
    "another unit": (one("a", MILLIS), one("a", MICROS), "field a was timestamp-millis in long and is timestamp-micros in long"),
    "a unit for none": (one("a", "long"), one("a", MICROS), "field a was long and is timestamp-micros in long"),
    "another scale": (one("a", decimal(9, 2)), one("a", decimal(18, 4)),
                      "field a was decimal(9, 2) in bytes and is decimal(18, 4) in bytes"),
    "fewer digits": (one("a", decimal(9, 2)), one("a", decimal(8, 2)),
                     "field a was decimal(9, 2) in bytes and is decimal(8, 2) in bytes"),
    "a lost symbol": (one("a", enum("x", "y")), one("a", enum("x")), "field a was shop.Kind of x, y and is shop.Kind of x"),
    "within an array": (one("a", {"type": "array", "items": "string"}), one("a", {"type": "array", "items": "long"}),
                        "field a[] was string and is long"),
    "within a record": (
        one("a", {"type": "record", "name": "In", "namespace": "shop", "fields": [one("b", "string")]}),
        one("a", {"type": "record", "name": "In", "namespace": "shop", "fields": [one("b", "bytes")]}),
        "field a.b was string and is bytes"),
    "another record": (
        one("a", {"type": "record", "name": "In", "namespace": "shop", "fields": []}),
        one("a", {"type": "record", "name": "On", "namespace": "shop", "fields": []}),
        "field a was shop.In and is shop.On"),
    "another size": (
        one("a", {"type": "fixed", "name": "F", "namespace": "shop", "size": 4}),
        one("a", {"type": "fixed", "name": "F", "namespace": "shop", "size": 5}),
        "field a was shop.F, 4 bytes and is shop.F, 5 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_what_cannot_be_read_any_more_is_refused_with_the_difference(name: str, tmp_path: Path) -> None:
    """By the processor, by `onefold check`, which asks it, and by the sink."""
    was, now, sentence = LOST[name]
    folder = folder_of(tmp_path, order(one("id", "long"), now), order(one("id", "long"), was))
    said = f"shop.Order.0.avsc: records written with it cannot be read as shop.Order any more: {sentence}"
    with pytest.raises(Refused) as refused:
        contracts.load(folder)
    assert str(refused.value).endswith(said)
    with pytest.raises(Misconfigured) as misconfigured:
        _contract(folder / "shop.Order.avsc", order(one("id", "long"), now))
    assert str(misconfigured.value) == str(refused.value)


KEPT = {
    "the same": (one("a", "string"), one("a", "string")),
    "wider": (one("a", "int"), one("a", "double")),
    "wider of 32 bits": (one("a", "float"), one("a", "double")),
    "now null too": (one("a", "int"), one("a", ["null", "long"])),
    "a branch less": (one("a", ["int", "null"]), one("a", ["null", "long", "string"])),
    "a doc": (one("a", "string", doc="x"), one("a", "string", doc="y")),
    "a name of its own": (one("a", {"type": "string", "logicalType": "email"}), one("a", "string")),
    "a map": (one("a", {"type": "map", "values": "int"}), one("a", {"type": "map", "values": "long"})),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_can_be_read_is_not_refused(name: str) -> None:
    was, now = KEPT[name]
    assert schema_history.differences(order(was), order(now)) == []


def test_all_that_is_different_is_said_at_once(tmp_path: Path) -> None:
    now = order(one("a", "long"), one("b", "string"), one("c", "long", aliases=["x", "y"]))
    was = order(one("a", "string"), one("x", "long"), one("y", "long"))
    with pytest.raises(
        Refused, match="field a was string and is long; field b is new and has no default; field c is x and y"
    ):
        contracts.load(folder_of(tmp_path, now, was))


def test_what_is_in_the_folder_by_mistake_is_said(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, IS, order(one("a", "long"), name="Ordr"))
    with pytest.raises(Refused, match=r"earlier schema of shop\.Ordr, and no schema in .* has that name"):
        contracts.load(folder)
    no_type = '{"type": "record", "name": "Order", "fields": [{"name": "a"}]}'
    for text in ("{", "[]", no_type, '{"type": "enum", "name": "E", "symbols": ["a"]}'):
        (folder / "earlier" / "shop.Order.0.avsc").write_text(text, encoding="utf-8")
        with pytest.raises(Refused, match=r"shop\.Order\.0\.avsc(: | is no JSON)"):
            contracts.load(folder)


def test_two_names_of_one_contract_are_not_the_same(tmp_path: Path) -> None:
    taken = one("a", "long"), one("b", "long", aliases=["a"])
    shared = one("a", "long", aliases=["x"]), one("b", "long", aliases=["x"])
    for fields in (taken, shared):
        with pytest.raises(Refused, match="two fields are called"):
            contracts.load(folder_of(tmp_path, order(*fields)))


def test_a_copy_made_before_a_change_is_no_earlier_one(tmp_path: Path) -> None:
    """Nothing has changed yet; and where only what the bytes mean has, nothing tells old records from new ones."""
    assert contracts.load(folder_of(tmp_path, IS, IS))[TOPIC].earlier == {}
    with pytest.raises(Refused, match="was timestamp-millis in long and is timestamp-micros in long"):
        contracts.load(folder_of(tmp_path, order(one("at", MICROS)), order(one("at", MILLIS))))


class Total(msgspec.Struct, frozen=True):
    """What the version before keeps of a customer."""

    orders: int = 0


class TotalNow(msgspec.Struct, frozen=True):
    """What today's keeps: one more."""

    orders: int = 0
    cents: int = 0


TOTAL_WAS: dict[str, Any] = {"type": "record", "name": "Total", "namespace": "shop", "topics": ["shop.totals"],
             "fields": [one("customer", "string"), one("orders", "int")]}  # fmt: skip
TOTAL_IS: dict[str, Any] = {**TOTAL_WAS, "fields": [one("customer", "string"), one("count", "long", aliases=["orders"]),
                                    one("cents", "long", default=0)]}  # fmt: skip
ORDER_WAS = order(one("customer", "string"))
ORDER_IS = order(one("customer", "string"), one("cents", "long", default=100))


def before(state: Total | None, event: Event) -> tuple[Total, Outputs]:
    found = Total((state or Total()).orders + 1)
    return found, [Output("shop.totals", {"customer": event.value.customer, "orders": found.orders})]


def today(state: TotalNow | None, event: Event) -> tuple[TotalNow, Outputs]:
    last = state or TotalNow()
    found = TotalNow(last.orders + 1, last.cents + event.value.cents)
    return found, [
        Output("shop.totals", {"customer": event.value.customer, "count": found.orders, "cents": found.cents})
    ]


def test_an_upgrade_goes_on_with_states_and_topics_of_before(tmp_path: Path) -> None:
    """The log of before, and a processor of today: inputs, states and outputs of both stand in the same topics."""
    old, new = tmp_path / "old", tmp_path / "new"
    log: SimulatedLog | None = None
    for folder, orders, totals, handle, state in (
        (old, (ORDER_WAS,), (TOTAL_WAS,), before, Total),
        (new, (ORDER_IS, ORDER_WAS), (TOTAL_IS, TOTAL_WAS), today, TotalNow),
    ):
        (folder / "earlier").mkdir(parents=True)
        for kind, (now, *were) in (("Order", orders), ("Total", totals)):
            (folder / f"shop.{kind}.avsc").write_text(json.dumps(now), encoding="utf-8")
            for was in were:
                (folder / "earlier" / f"shop.{kind}.avsc").write_text(json.dumps(was), encoding="utf-8")
        topology = Topology(
            "shop", (TOPIC,), lambda value: value.customer, state, handle, {"shop.totals": ("customer",)}
        )
        driver = TopologyDriver(topology, contracts=folder, log=log)
        driver.send(TOPIC, single_object(ORDER_WAS, {"customer": "ann"}))
        if folder is new:
            driver.send(TOPIC, single_object(ORDER_IS, {"customer": "ann", "cents": 7}))
            driver.send(TOPIC, {"customer": "ann"})
        driver.run()
        driver.kill()
        log = driver.log
    assert [(total["count"], total["cents"]) for total in driver.read("shop.totals")] == [
        (1, 0), (4, 207),
    ]  # fmt: skip
    contract = judged.load(new)["shop.totals"]
    found = [judge.decode_output(contract, value) for _, value, _ in driver.records("shop.totals")]
    assert found == driver.read("shop.totals")
    assert driver.table("shop.totals") == {("ann",): {"customer": "ann", "count": 4, "cents": 207}}
    assert driver.states() == {"ann": TotalNow(4, 207)}


class Renamed(msgspec.Struct, frozen=True):
    """The count of `Total` by another name."""

    count: int = 0


class RenamedInCode(msgspec.Struct, frozen=True):
    """The same, by the name that is stored."""

    count: int = msgspec.field(default=0, name="orders")


@pytest.mark.parametrize(("kind", "count", "stored"), [(Renamed, 1, "count"), (RenamedInCode, 3, "orders")])
def test_a_field_of_a_state_that_is_renamed_is_another_one(
    kind: type[Renamed | RenamedInCode], count: int, stored: str, tmp_path: Path
) -> None:
    """As docs/evolution.md says: the value of the old one is dropped, unless the stored name stays."""

    def renamed(state: Renamed | RenamedInCode | None, event: Event) -> tuple[Renamed | RenamedInCode, Outputs]:
        return kind((state or kind()).count + 1), []

    for name, contract in (("Order", ORDER_WAS), ("Total", TOTAL_WAS)):
        (tmp_path / f"shop.{name}.avsc").write_text(json.dumps(contract), encoding="utf-8")
    log: SimulatedLog | None = None
    for handle, state, orders in ((before, Total, 2), (renamed, kind, 1)):
        topology = Topology(
            "shop", (TOPIC,), lambda value: value.customer, state, handle, {"shop.totals": ("customer",)}
        )
        driver = TopologyDriver(topology, contracts=tmp_path, log=log)
        for _ in range(orders):
            driver.send(TOPIC, {"customer": "ann"})
        driver.run()
        driver.kill()
        log = driver.log
    assert driver.states() == {"ann": kind(count)}
    assert json.loads(driver.codec.encode_state(driver.states()["ann"])) == {stored: count}
