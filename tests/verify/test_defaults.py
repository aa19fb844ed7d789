"""Defaults of fields that were not written, wherever in a schema they stand."""

from copy import deepcopy
from decimal import Decimal
from typing import Any

import pytest

from onefold.verify.defaults import to_read_with

PRICED: dict[str, Any] = {
    "type": "record",
    "name": "Priced",
    "fields": [
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "default": "\u0002",
        }
    ],
}


@pytest.mark.parametrize(
    ("within", "path"),
    [
        (PRICED, []),
        (["null", PRICED], [1]),
        ({"type": "array", "items": PRICED}, ["items"]),
        ({"type": "map", "values": ["null", PRICED]}, ["values", 1]),
        ({"type": "record", "name": "Outer", "fields": [{"name": "f", "type": PRICED}]}, ["fields", 0, "type"]),
    ],
)
def test_a_default_is_a_value(within: Any, path: list[Any]) -> None:
    """JSON has the bytes of a decimal as a text."""
    found = to_read_with(deepcopy(within), within)
    for step in path:
        found = found[step]
    assert found["fields"][0]["default"] == Decimal("0.02")
