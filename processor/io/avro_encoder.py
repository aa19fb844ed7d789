"""Avro's binary encoding of flat records, compiled once per schema.

fastavro interprets the schema again for each record. The few shapes of outputs therefore have a compiled function.
fastavro encodes all other records, and a test checks that both give the same bytes.
"""

import io
from collections.abc import Callable
from functools import cache, partial
from keyword import iskeyword
from struct import Struct
from typing import Any, cast

import fastavro
import fastavro.schema

from onefold.processor.core.values import Fields
from onefold.processor.io.logical_types import carried, lowering

#: From fields, in a dict or as attributes, to a prefix and the bytes of the record. Raises ValueError, TypeError,
#: AttributeError, KeyError or struct.error if the fields do not match the schema.
Encode = Callable[[Fields], bytes]

# The encoder looks up zigzag numbers in tables, two bytes at a time.
_TABLE = 1 << 14
_LOW = _TABLE - 1

#: A text field with this attribute in the schema has few distinct values. The encoder keeps the bytes of each value.
LOW_CARDINALITY = "onefold.lowCardinality"
# The most values kept. A field with more values gets no faster, but uses no more memory.
_KNOWN_MAX = 4096

_DOUBLE = Struct("<d").pack


def encoder(schema: Any, prefix: bytes) -> Encode:
    """Return the fastest available encoder for a parsed record schema."""
    plain = fastavro.parse_schema(carried(schema))
    return compile_record(schema, prefix) or partial(
        _by_fastavro, plain, lowering(fastavro.schema.expand_schema(schema)), prefix
    )


def _by_fastavro(schema: Any, lower: Callable[[Any], Any] | None, prefix: bytes, record: Fields) -> bytes:
    if not isinstance(record, dict):
        record = {field["name"]: getattr(record, field["name"]) for field in schema["fields"]}
    record = lower(record) if lower else record
    buffer = io.BytesIO()
    buffer.write(prefix)
    fastavro.schemaless_writer(buffer, schema, record)
    return buffer.getvalue()


def compile_record(schema: Any, prefix: bytes) -> Encode | None:
    """Compile the encoder of a parsed record schema. Return None if the schema has an unsupported type."""
    items: list[str] = []
    attributes: list[str] = []
    parts: list[str] = []
    for place, field in enumerate(schema["fields"]):
        part = _part(field["type"], f"v{place}", "low cardinality" if field.get(LOW_CARDINALITY) else "string")
        if part is None:
            return None
        name = repr(field["name"])
        found = f"record.get({name}, {field['default']!r})" if "default" in field else f"record[{name}]"
        items.append(f"        v{place} = {found}")
        plain = field["name"].isidentifier() and not iskeyword(field["name"])
        attribute = f"record.{field['name']}" if plain else f"getattr(record, {name})"
        attributes.append(f"        v{place} = {attribute}")
        parts.append(part)
    body = ["    if isinstance(record, dict):", *items, "    else:", *attributes]
    lines = ["def encode(record):", *body, f"    return join((prefix, {', '.join(parts)}))"]
    last, more = _tables()
    names: dict[str, Any] = {"prefix": prefix, "join": b"".join, "last": last, "more": more, "number": number}
    known: dict[str, bytes] = {}
    names |= {"known": known, "keep": partial(_keep, known)}
    names |= {"double": _DOUBLE, "boolean": _boolean}
    # The source contains the schema's field names and plain defaults only, each as a Python literal or a name.
    exec("\n".join(lines), names)  # noqa: S102
    return cast("Encode", names["encode"])


def _part(schema: Any, name: str, text: str) -> str | None:
    """Return an expression that encodes the variable `name`, with texts as `text` says; None for an unsupported schema."""
    match text if schema == "string" else schema:
        case "long":
            # Zigzag, inline up to eight bytes, which hold this century's microseconds, because a call would be slow.
            low, second, third = (f"more[{shifted} & {_LOW}]" for shifted in ("z", "z >> 14", "z >> 28"))
            return (
                f"(last[z] if (z := {name} + {name} if {name} >= 0 else ~({name} + {name})) < {_TABLE}"
                f" else {low} + last[z >> 14] if z < {_TABLE**2}"
                f" else {low} + {second} + last[z >> 28] if z < {_TABLE**3}"
                f" else {low} + {second} + {third} + last[z >> 42] if z < {_TABLE**4} else number(z))"
            )
        case "low cardinality":
            return f"(known.get({name}) or keep({name}))"
        case "string":
            short = f"last[len(data) << 1] + data if len(data := {name}.encode()) < {_TABLE // 2}"
            return f"({short} else number(len(data) << 1) + data)"
        case "double" | "boolean":
            return f"{schema}({name})"
        case ["null", str(kind)] if (part := _part(kind, name, text)) is not None:
            return rf"(b'\x00' if {name} is None else b'\x02' + {part})"
    return None


def _keep(known: dict[str, bytes], text: str) -> bytes:
    data = text.encode()
    encoded = number(len(data) << 1) + data
    if len(known) < _KNOWN_MAX:
        known[text] = encoded
    return encoded


def number(zigzag: int) -> bytes:
    """Encode a zigzag number in base 128, low digits first. Raises `ValueError` beyond 64 bits."""
    if zigzag >= 1 << 64:
        raise ValueError("a number does not fit into 64 bits")
    last, more = _tables()
    data = b""
    while zigzag >= _TABLE:
        data += more[zigzag & _LOW]
        zigzag >>= 14
    return data + last[zigzag]


@cache
def _tables() -> tuple[list[bytes], list[bytes]]:
    """Return the bytes of each 14-bit number as the last part of an encoding, and as a part with further parts after it."""
    last = [bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(_TABLE)]
    return last, [bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(_TABLE)]


def _boolean(value: Any) -> bytes:
    if value is not True and value is not False:
        raise TypeError(f"{value!r} is no boolean")
    return b"\x01" if value else b"\x00"
