"""Schema resolution, by cases that are written by hand after the Avro specification: bytes, both schemas, and the value.

The processor and the verifier both have it from fastavro, so that a mistake there would be in both, and no comparison of the two
would show it.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.io.test_lineage import Both, Registered, folder_of, one, order

pytestmark = pytest.mark.promise("earlier-contracts")

INNER = {"type": "record", "name": "Inner", "namespace": "shop"}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapped(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


#: By name: the type of the field as it was written and as it is read, the bytes, and the value; ... is a dead letter.
CASES: dict[str, tuple[Any, Any, str, Any]] = {
    "int to long": ("int", "long", "feffffff0f", 2**31 - 1),
    "a negative int to long": ("int", "long", "ffffffff0f", -(2**31)),
    "int to float": ("int", "float", "03", -2.0),
    "int to double": ("int", "double", "03", -2.0),
    "long to float": ("long", "float", "80808080808001", float(2**41)),
    "long to double": ("long", "double", "80808080808001", float(2**41)),
    "float to double": ("float", "double", "0000c03f", 1.5),
    "string to bytes": ("string", "bytes", "04c3a4", b"\xc3\xa4"),
    "bytes to string": ("bytes", "string", "04c3a4", "ä"),
    "items of an array": (array("int"), array("long"), "04020300", [1, -2]),
    "an array whose block has its size": (array("int"), array("long"), "0304020300", [1, -2]),
    "values of a map": (mapped("int"), mapped("double"), "0202610300", {"a": -2.0}),
    "a union to a wider one": (["null", "int"], ["null", "string", "long"], "0203", -2),
    "null of a union": (["null", "int"], ["null", "long"], "00", None),
    "a type to a union": ("int", ["null", "long"], "03", -2),
    "a union to one of its types": (["null", "int"], "long", "0203", -2),
    "null, where none is read": (["null", "int"], "long", "00", ...),
    "the first branch that matches": ("int", ["null", "double", "long"], "03", -2.0),
    "and not the nearest": ("int", ["null", "double", "int"], "03", -2.0),
}


def read(folder: Path, was: list[dict[str, Any]], now: list[dict[str, Any]], body: str) -> Any:
    """What both make of these bytes behind the number of the schema that wrote them; None: a dead letter."""
    both = Both(folder_of(folder, order(*now)), Registered(order(*was)))
    return both(b"\0" + bytes(4) + bytes.fromhex(body))


@pytest.mark.parametrize("name", CASES)
def test_a_type_is_read_as_another_one(name: str, tmp_path: Path) -> None:
    was, now, body, right = CASES[name]
    found = read(tmp_path, [one("x", was)], [one("x", now)], body)
    if right is ...:
        assert found is None
    else:
        assert found == {"x": right}
        assert type(found["x"]) is type(right)


def test_fields_are_found_by_name_and_alias_and_what_is_missing_has_its_default(tmp_path: Path) -> None:
    """In another order; and a field that is read no more is passed over, whatever is in it."""
    was = [
        one("gone", array("string")),
        one("old", "string"),
        one("kept", "int"),
        one("inner", {**INNER, "fields": [one("a", "int")]}),
    ]
    inner = {**INNER, "fields": [one("b", "string", default="none"), one("a", "long")]}
    now = [
        one("kept", "long"),
        one("new", "string", aliases=["old"]),
        one("more", ["null", "int"], default=None),
        one("inner", inner),
    ]
    body = "04" + "0461620261" + "00" + "0278" + "05" + "02"
    assert read(tmp_path, was, now, body) == {
        "kept": -3, "new": "x", "more": None, "inner": {"b": "none", "a": 1},
    }  # fmt: skip


@pytest.mark.parametrize(("at", "symbol"), [("00", "b"), ("02", "a")])
def test_a_symbol_is_found_by_its_name(tmp_path: Path, at: str, symbol: str) -> None:
    kind = {"type": "enum", "name": "Kind", "namespace": "shop"}
    was, now = {**kind, "symbols": ["b", "a"]}, {**kind, "symbols": ["a", "c", "b"]}
    assert read(tmp_path, [one("x", was)], [one("x", now)], at) == {"x": symbol}
