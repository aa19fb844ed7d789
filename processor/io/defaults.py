"""Values of the defaults in a schema: JSON writes bytes, and the digits of a decimal, as text with one byte per character.

In these functions `whole` is a schema with each named type expanded in place.
"""

from decimal import Decimal
from typing import Any

from onefold.avro_types import key
from onefold.contract_files import fits
from onefold.processor.io import logical_types


def value(whole: Any, written: Any) -> Any:
    """Return the value of a missing field; a record is a dict."""
    if isinstance(whole, list):
        return value(next(part for part in whole if fits(part, written)), written)
    if logical_types.is_decimal(whole):
        unscaled = int.from_bytes(written.encode("latin-1"), "big", signed=True)
        return Decimal(f"{unscaled}E-{whole.get('scale', 0)}")  # `scaleb` would round to 28 digits
    if (found := logical_types.logical(whole)) is not None:
        return found.take(written.encode("latin-1") if key(whole)[0] in ("bytes", "fixed") else written)
    match whole["type"] if isinstance(whole, dict) else whole:
        case "double":
            return float(written)
        case "array":
            return [value(whole["items"], item) for item in written]
        case "map":
            return {key: value(whole["values"], item) for key, item in written.items()}
        case "record":
            return {
                part["name"]: value(part["type"], written.get(part["name"], part.get("default")))
                for part in whole["fields"]
            }
    return written


def meant(parsed: Any, whole: Any) -> Any:
    """Replace the defaults in a parsed schema by values, in place: fastavro returns the JSON default of a missing field."""
    if isinstance(parsed, list):
        for part, of in zip(parsed, whole, strict=True):
            meant(part, of)
    elif isinstance(parsed, dict):
        for field, of in zip(parsed.get("fields", ()), whole.get("fields", ()), strict=True):
            if "default" in of:
                field["default"] = value(of["type"], of["default"])
            meant(field["type"], of["type"])
        for part in ("items", "values"):
            if parsed["type"] in ("array", "map") and part in parsed:
                meant(parsed[part], whole[part])
    return parsed
