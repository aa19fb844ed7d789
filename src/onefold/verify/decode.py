"""Decode input records, and refuse inadmissible ones.

The decoder is plain Python with the JSON parser of the standard library. So an error in the parser of the processor shows as a
mismatch, and is not shared.

A value is inadmissible, and must become a dead letter, if it is null, empty or longer than 1 MiB; `expect` has the rules for
tombstones. The first byte determines the encoding: 0xC3 Avro single-object encoding, 0x00 the Confluent wire format, any other
byte JSON.

JSON
  - The value is UTF-8 without a byte order mark: one object, followed by nothing but white space (space, tab, CR, LF).
  - Lone surrogates, raw or escaped, raw control characters in strings, NaN and Infinity are inadmissible.
  - The nesting is at most 64 levels deep, including the record and fields unknown to the schema.
  - All fields without a default are present. Unknown fields are ignored. Names are case-sensitive.
  - An integer is spelled as an integer (`1.0`, `1e2`, `true` and `"1"` are inadmissible; `-0` is 0) and fits its 64 or 32 bits.
  - A decimal is a number, or a text in the syntax of Python's decimal module, with all its digits.
  - A double is a finite number in 64 bits. A float is the nearest number in 32 bits.
  - A date, a time, a timestamp (with an offset or Z) and a local timestamp (without) are texts in ISO 8601, or Avro's integers:
    see `dates`. An id is its text, bytes are base64, an enum value is its name.
  - A text has no NUL. An explicit null never stands for the default.
  - The last value of a repeated field counts, but each value must have the type of the field.
  - A field may have an alias as its name, but not two names in one record.

Avro
  - The value starts with C3 01 and the fingerprint of the topic's schema, or of an earlier version in `avro/earlier/`. A value
    of an earlier version is read with the earlier schema and resolved to the present one.
  - The body is exactly one value in Avro's encoding (`onefold.verify.encoding`), with no byte missing or left over. Texts are
    UTF-8 and have no NUL; doubles are finite. A decimal has at most 256 bytes, and no more digits than its precision.

Confluent
  - The value starts with the id of an Avro schema in the registry, which also has all referenced schemas. The value is read
    with the registered schema and resolved to the topic's schema. Without a registry, the record is inadmissible.
    `onefold.verify.avro` has the rules for schemas.

Further rules for numbers and dates belong to the model of a pipeline.
"""

import binascii
import decimal
import functools
import math
import struct
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from onefold.verify import avro, dates, defaults, json_text
from onefold.verify.contracts import PREFIX_BYTES, VerifiedSchema
from onefold.verify.json_text import Pairs, Real

VALUE_BYTES_MAX = 1_048_576
_CONFLUENT_PREFIX_BYTES = 5

#: Returns the schema with a Confluent schema id; raises `Inadmissible` if the schema is missing or refused.
Registry = Callable[[int], avro.WrittenSchema]


class Inadmissible(Exception):
    """The input record must become a dead letter. The text is the reason."""


def decode(contract: VerifiedSchema, value: bytes | None, registry: Registry | None = None) -> dict[str, Any]:
    """Return the fields of an input record; raises `Inadmissible` for an invalid record."""
    if not value:
        raise Inadmissible("null value" if value is None else "empty value")
    if len(value) > VALUE_BYTES_MAX:
        raise Inadmissible(f"{len(value)} bytes")
    if value[0] == 0xC3:
        return _fields_of(contract)(_from_single_object(contract, value).items())
    if value[0] == 0:
        return _fields_of(contract)(_from_confluent(contract, value, registry).items())
    return _from_json(contract, value)


def decode_output(contract: VerifiedSchema, value: bytes | None) -> dict[str, Any]:
    """Return the fields of an output record, always in single-object encoding."""
    if not value:
        raise Inadmissible("no value")
    return _from_single_object(contract, value)


# --- Avro


def _from_single_object(contract: VerifiedSchema, value: bytes) -> dict[str, Any]:
    body = value[PREFIX_BYTES:]
    if value.startswith(contract.prefix):
        return _read_avro(body, contract.written, None)
    writer = contract.before.get(value[:PREFIX_BYTES])
    if writer is None:
        raise Inadmissible(f"unknown schema fingerprint {value[2:PREFIX_BYTES].hex()}")
    return _read_avro(body, writer, contract.reader)


def _from_confluent(contract: VerifiedSchema, value: bytes, registry: Registry | None) -> dict[str, Any]:
    if registry is None or len(value) < _CONFLUENT_PREFIX_BYTES:
        raise Inadmissible("Confluent wire format, and no schema for it")
    writer = registry(int.from_bytes(value[1:_CONFLUENT_PREFIX_BYTES], "big"))
    if not avro.same_units(writer, contract.written):
        raise Inadmissible("the writer counts in other units than the schema")
    return _read_avro(value[_CONFLUENT_PREFIX_BYTES:], writer, contract.reader)


def _read_avro(body: bytes, writer: avro.WrittenSchema, reader: Any) -> dict[str, Any]:
    try:
        value = avro.read(body, writer, reader)
    except avro.InvalidSchema as reason:
        raise Inadmissible(str(reason)) from None
    if not isinstance(value, dict):
        raise Inadmissible("no record")
    return value


# --- JSON


def _from_json(contract: VerifiedSchema, value: bytes) -> dict[str, Any]:
    try:
        parsed = json_text.read(value)
    except json_text.Malformed as reason:
        raise Inadmissible(str(reason)) from None
    if not isinstance(parsed, Pairs):
        raise Inadmissible("no JSON object")
    return _fields_of(contract)(parsed)


# --- values against the contract's types


class _Misfit(Exception):
    """The value does not fit the type."""


#: Converts a value to its type; raises `_Misfit`. Python's bool is an int; JSON's is not.
_Fit = Callable[[Any], Any]
_Fields = Callable[[Iterable[tuple[str, Any]]], dict[str, Any]]


@functools.cache
def _fields_of(contract: VerifiedSchema) -> _Fields:
    return _record(contract.fields)


def _record(fields: dict[str, dict[str, Any]]) -> _Fields:
    """Return a converter from names and values to a record with these fields. The converter raises `Inadmissible` for wrong
    names or values.
    """
    fits = {name: _fit(part["type"]) for name, part in fields.items()}
    aliases = {alias: name for name, part in fields.items() for alias in part.get("aliases", ())}
    known = {written: (name, fits[name]) for written, name in ({name: name for name in fields} | aliases).items()}

    def read(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        given, called = {}, dict[str, str]()
        for written, value in pairs:
            found = known.get(written)
            if found is None:
                continue
            name, fit = found
            if aliases and called.setdefault(name, written) != written:
                raise Inadmissible(f"{name} has two names: {called[name]} and {written}")
            try:
                given[name] = fit(value)
            except _Misfit:
                raise Inadmissible(f"{name} is no {_name_of(fields[name]['type'])}") from None
        if len(given) < len(fields):
            for name, part in fields.items():
                if name not in given:
                    if "default" not in part:
                        raise Inadmissible(f"{name} is missing")
                    given[name] = _default(part["type"], part["default"])
        return given

    return read


def _default(schema: Any, value: Any) -> Any:
    """Return the value of a default. In a union, the first matching branch decides the type."""
    return _fit(schema)(defaults.default(schema, value))


def _is_decimal(schema: dict[str, Any]) -> bool:
    return schema.get("logicalType") == "decimal" and schema["type"] in ("bytes", "fixed")


def _fit(schema: Any) -> _Fit:
    if isinstance(schema, str):
        return _FITS.get(schema) or functools.partial(_no_rule, schema)
    if isinstance(schema, list):
        return functools.partial(_one_of, tuple(map(_fit, schema)))
    if _is_decimal(schema):
        return _decimal
    if dates.knows(schema):
        return functools.partial(_moment, schema)
    match schema["type"]:
        case "record":
            read = _record({part["name"]: part for part in schema["fields"]})
            return lambda value: read(_pairs(value))
        case "map":
            of = _fit(schema["values"])
            return lambda value: {name: of(part) for name, part in _pairs(value)}
        case "array":
            item = _fit(schema["items"])
            return lambda value: [item(part) for part in _items(value)]
        case "enum":
            return _only(lambda name: type(name) is str and name in schema["symbols"])
        case "fixed":
            sized = _only(lambda data: len(data) == schema["size"])
            return lambda value: sized(_bytes(value))
        case plain:
            return _fit(plain)


def _no_rule(schema: str, value: Any) -> NoReturn:
    raise NotImplementedError(f"the verifier has no rule for the type {schema}")


def _one_of(branches: tuple[_Fit, ...], value: Any) -> Any:
    for fit in branches:
        try:
            return fit(value)
        except _Misfit:
            continue
    raise _Misfit


def _items(value: Any) -> list[Any]:
    if isinstance(value, Pairs) or not isinstance(value, list):
        raise _Misfit
    return value


def _pairs(value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, Pairs | dict):
        raise _Misfit
    return list(value.items()) if isinstance(value, dict) else value


def _moment(schema: dict[str, Any], value: Any) -> Any:
    if type(value) is Real:
        raise _Misfit
    try:
        return dates.read(schema, value)
    except (ValueError, OverflowError):
        raise _Misfit from None


def _name_of(schema: Any) -> str:
    return str(schema.get("logicalType") or schema["type"]) if isinstance(schema, dict) else str(schema)


def _only(fits: Callable[[Any], bool]) -> Callable[[Any], Any]:
    def same(value: Any) -> Any:
        if not fits(value):
            raise _Misfit
        return value

    return same


def _decimal(value: Any) -> decimal.Decimal:
    if type(value) not in (int, str, Real, decimal.Decimal):
        raise _Misfit
    try:
        return decimal.Decimal(value)
    except (decimal.DecimalException, ValueError):
        raise _Misfit from None


def _double(value: Any) -> float:
    if type(value) not in (int, Real, float):
        raise _Misfit
    try:
        number = float(value)
    except OverflowError:
        raise _Misfit from None
    if not math.isfinite(number):
        raise _Misfit
    return number


def _float(value: Any) -> float:
    """Return the nearest number in 32 bits."""
    try:
        return float(struct.unpack(">f", struct.pack(">f", _double(value)))[0])
    except OverflowError:
        raise _Misfit from None


def _bytes(value: Any) -> bytes:
    """Decode base64 in JSON, in canonical form only."""
    if type(value) is not str:
        return bytes(_only(lambda data: type(data) is bytes)(value))
    try:
        data = binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        raise _Misfit from None
    if binascii.b2a_base64(data, newline=False) != value.encode():
        raise _Misfit
    return data


def _long(value: Any) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise _Misfit
    return value


def _string(value: Any) -> str:
    if type(value) is not str or "\0" in value:
        raise _Misfit
    return value


_FITS: dict[str, _Fit] = {
    "long": _long,
    "int": _only(lambda value: type(value) is int and -(1 << 31) <= value < 1 << 31),
    "string": _string,
    "boolean": _only(lambda value: type(value) is bool),
    "null": _only(lambda value: value is None),
    "double": _double,
    "float": _float,
    "bytes": _bytes,
}
