"""The earlier versions of a schema in `avro/earlier/`, and whether their records are still readable.

A file there is an earlier version of the schema with the same full name. In single-object encoding a record has the
fingerprint of the writer's schema, so a topic may hold old and new records. Reading follows Avro's schema resolution, except
if the resolution would round a number or confuse two units: Onefold refuses the change. The verifier has a separate reader,
and does not use this module.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import fastavro.schema

from onefold.avro_types import PRIMITIVES, key
from onefold.contract_files import Unusable, full_name, records

#: The folder of earlier schemas, inside the folder of schemas.
FOLDER = "earlier"

#: The first two bytes of Avro's single-object encoding; the fingerprint of the writer's schema follows.
SINGLE_OBJECT = b"\xc3\x01"
#: The number of bytes before the body of a value.
HEADER_BYTES = len(SINGLE_OBJECT) + 8

# Avro also allows long to double and int to float, but these conversions round numbers.
_WIDER = {("int", "long"), ("int", "double"), ("float", "double")}


def header(raw: Any) -> bytes:
    """The ten bytes before each value of a schema in single-object encoding: the marker and the fingerprint (CRC-64-AVRO)."""
    return SINGLE_OBJECT + _fingerprint(fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(raw)))


@functools.cache
def _fingerprint(canonical: str) -> bytes:
    """CRC-64-AVRO in pure Python. Cached, because the computation is slow and tests load the schemas often."""
    # fastavro's hex text is already in little-endian order, as in single-object encoding.
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def earlier(folder: Path, now: dict[str, Any]) -> dict[bytes, dict[str, Any]]:
    """The earlier versions of a schema in `folder`, by header, in order of the files, without versions with the header of `now`.

    Raises:
        Unusable: a file there holds no schema, or records of an earlier version cannot be read with `now`.
    """
    paths = sorted((folder / FOLDER).glob("*.avsc"))
    if not paths:
        return {}
    name, names = full_name(now), _names(folder)
    found = {}
    for path, raw in ((file, raw) for file in paths for raw in records(file)):
        if names is not None and full_name(raw) not in names:
            raise Unusable(f"{path} is an earlier schema of {full_name(raw)}, and no schema in {folder} has that name")
        if full_name(raw) != name:
            continue
        if lost := differences(raw, now):
            raise Unusable(f"{path}: records written with it cannot be read as {name} any more: {'; '.join(lost)}")
        if header(raw) != header(now):
            found[header(raw)] = raw
    return found


def _names(folder: Path) -> set[str] | None:
    """The full names of the schemas in a folder; None if a file is unusable, which the load of its topic reports."""
    try:
        return {full_name(raw) for path in folder.glob("*.avsc") for raw in records(path)}
    except Unusable:
        return None


def differences(was: Any, now: Any) -> list[str]:
    """The reasons why the schema `now` cannot read all values of the schema `was`, a clause per field; [] without a reason."""
    return list(_differences(_expanded(was), _expanded(now), ""))


def _expanded(raw: Any) -> Any:
    """The type with each use of a name replaced by the named type, except within the type itself."""
    return fastavro.schema.expand_schema(raw)


def _differences(was: Any, now: Any, where: str) -> Iterator[str]:
    if isinstance(was, list):
        for branch in was:
            if not _readable(branch, now):
                yield _changed(was, now, where)
                return
    elif isinstance(now, list):
        if not any(_readable(was, branch) for branch in now):
            yield _changed(was, now, where)
    elif _kind(was) == _kind(now) == "record":
        yield from _of_records(was, now, where)
    elif _kind(was) == _kind(now) and _kind(was) in ("array", "map"):
        part = "items" if _kind(was) == "array" else "values"
        yield from _differences(was[part], now[part], f"{where}[]")
    elif not _same_value(was, now):
        yield _changed(was, now, where)


def _readable(was: Any, now: Any) -> bool:
    return not list(_differences(was, now, ""))


def _of_records(was: dict[str, Any], now: dict[str, Any], where: str) -> Iterator[str]:
    if full_name(was) != full_name(now):
        yield _changed(was, now, where)
        return
    written = {field["name"]: field for field in was["fields"]}
    for field in now["fields"]:
        at = f"{where}.{field['name']}"
        names = [name for name in (field["name"], *field.get("aliases", ())) if name in written]
        if len(names) > 1:
            yield f"field {at[1:]} is {' and '.join(names)} of before, and can have one value only"
        elif names:
            yield from _differences(written[names[0]]["type"], field["type"], at)
        elif "default" not in field:
            yield f"field {at[1:]} is new and has no default"


def _same_value(was: Any, now: Any) -> bool:
    """Whether each value of a primitive type, an enum or a fixed is the same value by both schemas."""
    kinds, logical = zip(key(was), key(now), strict=True)
    if logical[0] != logical[1]:
        return False
    if logical[0] == "decimal":
        same_scale = was.get("scale", 0) == now.get("scale", 0)
        if not same_scale or was["precision"] > now["precision"]:
            return False
    if kinds == ("enum", "enum"):
        return full_name(was) == full_name(now) and set(was["symbols"]) <= set(now["symbols"])
    if kinds == ("fixed", "fixed"):
        return full_name(was) == full_name(now) and was["size"] == now["size"]
    if kinds[0] not in PRIMITIVES:
        return bool(was == now)  # the name of an enclosing type
    return kinds[0] == kinds[1] or kinds in _WIDER


def _kind(schema: Any) -> str:
    return key(schema)[0]


def _changed(was: Any, now: Any, where: str) -> str:
    return f"{f'field {where[1:]}' if where else 'it'} was {_told(was)} and is {_told(now)}"


def _told(schema: Any) -> str:
    """A type for a sentence, with the properties that determine its values."""
    if isinstance(schema, list):
        return " or ".join(map(_told, schema))
    if not isinstance(schema, dict):
        return str(schema)
    kind, logical = key(schema)
    match kind:
        case "enum":
            return f"{full_name(schema)} of {', '.join(schema['symbols'])}"
        case "record":
            return full_name(schema)
        case "array":
            return f"array of {_told(schema['items'])}"
        case "map":
            return f"map of {_told(schema['values'])}"
    found = f"{full_name(schema)}, {schema['size']} bytes" if kind == "fixed" else kind
    if logical == "decimal":
        logical = f"decimal({schema['precision']}, {schema.get('scale', 0)})"
    return f"{logical} in {found}" if logical else found
