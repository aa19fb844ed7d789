"""The values of defaults in schemas."""

from decimal import Decimal
from typing import Any


def default(kind: Any, value: Any) -> Any:
    """Return the value of a default. JSON has bytes as text, one character for each byte. In `kind`, each use of a named type
    must be replaced by its definition.
    """
    if isinstance(kind, list):
        return default(next((branch for branch in kind if _may_be(branch, value)), "null"), value)
    name = kind["type"] if isinstance(kind, dict) else kind
    if name in ("bytes", "fixed"):
        data = value.encode("latin-1")
        if isinstance(kind, str) or kind.get("logicalType") != "decimal":
            return data
        number = int.from_bytes(data, "big", signed=True)
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -kind.get("scale", 0)))
    if name == "array":
        return [default(kind["items"], item) for item in value]
    if name == "map":
        return {key: default(kind["values"], item) for key, item in value.items()}
    if name == "record":
        return {
            part["name"]: default(part["type"], value.get(part["name"], part.get("default"))) for part in kind["fields"]
        }
    return value


_JSON: dict[str, type | tuple[type, ...]] = {
    "null": type(None), "boolean": bool, "int": int, "long": int, "float": (int, float), "double": (int, float), "string": str,
    "bytes": str, "fixed": str, "enum": str, "array": list, "map": dict, "record": dict,
}  # fmt: skip


def _may_be(kind: Any, value: Any) -> bool:
    name = kind["type"] if isinstance(kind, dict) else kind
    return isinstance(value, _JSON[name]) and isinstance(value, bool) == (name == "boolean")


def to_read_with(parsed: Any, expanded: Any) -> Any:
    """Replace the defaults in a parsed schema by values, because fastavro inserts a default unconverted. Return the schema."""
    if isinstance(parsed, list):
        for part, whole in zip(parsed, expanded, strict=True):
            to_read_with(part, whole)
    elif isinstance(parsed, dict):
        for field, whole in zip(parsed.get("fields", ()), expanded.get("fields", ()), strict=True):
            if "default" in field:
                field["default"] = default(whole["type"], field["default"])
            to_read_with(field["type"], whole["type"])
        for part in {"array": ["items"], "map": ["values"]}.get(parsed["type"], ()):
            to_read_with(parsed[part], expanded[part])
    return parsed
