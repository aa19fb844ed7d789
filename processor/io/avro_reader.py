"""The values of an Avro body, by an exact reading of all bytes.

`fastavro` reads more than Avro's specification allows: fastavro wraps numbers beyond 64 bits, takes any byte for a boolean and
ignores the size of a block. This reader takes exactly the spellings of the specification:

    numbers   a long has at most 10 bytes and fits 64 bits, an int, the index of a symbol or of a branch at most 5 and 32 bits.
              The specification asks for no shortest form, so a number may end in bytes of zero bits.
    blocks    arrays and maps have any number of blocks, with sizes or without, and end with an empty block. A size is the
              number of the items' bytes.
    others    a boolean is 0 or 1; text is UTF-8; a map has a key once.

The caller bounds the cost of a schema (`onefold.processor.io.schemas`): no type is recursive, and no item of an array or a
map takes zero bytes.
"""

from collections.abc import Callable
from decimal import Decimal
from struct import Struct
from typing import Any, NamedTuple

import fastavro
from fastavro.read import LOGICAL_READERS

from onefold.avro_types import TYPES
from onefold.processor.io.logical_types import is_decimal

#: `(body, begin of a value) -> the value, and the end`. Raises IndexError for a truncated body, ValueError or ArithmeticError
#: for further bytes without a value.
Read = Callable[[bytes, int], tuple[Any, int]]

_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_INT_BITS, _LONG_BITS = 32, 64
# The parts of a schema that contain schemas; a default may have any content.
_PARTS = ("type", "fields", "items", "values")
_COUNTING = tuple(logical for carrier, logical in TYPES if carrier in ("int", "long") and logical)
# Bytes of a decimal: 617 digits. No schema of the sink has more than 38 digits, and the conversion takes quadratic time.
_DECIMAL_BYTES_MAX = 256
# A scale of billions would exceed the exponent of a Decimal.
_SCALE_MAX = 617


class WriterSchema(NamedTuple):
    """The schema of a writer.

    Attributes:
        schema: parsed with decimals only. All further logical types are numbers or texts, which `logical_types` converts by
            the reader's schema.
        read: reads the values of a body, with decimals as `Decimal`.
        counted: parsed with all logical types that are units of a number.
    """

    schema: Any
    read: Read
    counted: Any


def writer(raw: Any) -> WriterSchema:
    """The writer of a schema in JSON; raises fastavro's errors for an invalid schema."""
    schema, counted = (fastavro.parse_schema(_cleaned(raw, kept)) for kept in (("decimal",), _COUNTING))
    return WriterSchema(schema, _Compiler().read(schema), counted)


def _cleaned(raw: Any, logical_types: tuple[str, ...]) -> Any:
    """The schema with these logical types only, and without fastavro's marks, which would prevent a second parsing."""
    if isinstance(raw, list):
        return [_cleaned(part, logical_types) for part in raw]
    if not isinstance(raw, dict):
        return raw
    return {
        key: _cleaned(value, logical_types) if key in _PARTS else value
        for key, value in raw.items()
        if not key.startswith("__") and (key != "logicalType" or value in logical_types)
    }


def _decimal(data: bytes, writer_schema: Any, reader_schema: Any = None) -> Decimal:
    """The decimal; a ValueError for too many bytes, before the conversion, or for more digits than the schema's precision.

    fastavro's reader rounds such a number.
    """
    if not 0 < len(data) <= _DECIMAL_BYTES_MAX:
        raise ValueError(f"a decimal has {len(data)} bytes; it has 1 to {_DECIMAL_BYTES_MAX}")
    scale, precision = writer_schema.get("scale", 0), writer_schema.get("precision")
    if type(scale) is not int or scale > _SCALE_MAX or type(precision) is not int:
        raise ValueError(f"a decimal has scale {scale!r} and precision {precision!r}")
    number = _integer(data)
    if len(str(abs(number))) > precision:
        raise ValueError(f"a decimal has more than {precision} digits")
    return Decimal(f"{number}E-{scale}")


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


# fastavro registers readers of logical types for the whole process.
LOGICAL_READERS["bytes-decimal"] = LOGICAL_READERS["fixed-decimal"] = _decimal


class _Compiler:
    """Make the functions that read the types of a schema, each named type once."""

    def __init__(self) -> None:
        self._named: dict[str, Read] = {}

    def read(self, schema: Any) -> Read:
        if isinstance(schema, list):
            return _union([self.read(branch) for branch in schema])
        if isinstance(schema, str):
            return _PRIMITIVES.get(schema) or (lambda body, at: self._named[schema](body, at))
        match schema["type"]:
            case "record" | "error":
                found = _record([(field["name"], self.read(field["type"])) for field in schema["fields"]])
            case "array":
                return _array(self.read(schema["items"]))
            case "map":
                return _map(self.read(schema["values"]))
            case "enum":
                found = _enum(schema["symbols"])
            case "fixed":
                found = _as_meant(schema, _fixed(schema["size"]))
            case str(primitive):
                return _as_meant(schema, _PRIMITIVES[primitive])
            case other:
                return self.read(other)
        self._named[schema["name"]] = found
        return found


def _as_meant(schema: Any, read: Read) -> Read:
    """The number of a decimal, else the value on the wire."""
    if not is_decimal(schema):
        return read

    def read_decimal(body: bytes, at: int) -> tuple[Decimal, int]:
        data, end = read(body, at)
        return _decimal(data, schema), end

    return read_decimal


def _null(body: bytes, at: int) -> tuple[None, int]:
    return None, at


def _boolean(body: bytes, at: int) -> tuple[bool, int]:
    if body[at] > 1:
        raise ValueError(f"a boolean is the byte {body[at]}, neither 0 nor 1")
    return body[at] == 1, at + 1


def _long(body: bytes, at: int) -> tuple[int, int]:
    byte = body[at]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at + 1
    return _number(body, at, _LONG_BITS)


def _int(body: bytes, at: int) -> tuple[int, int]:
    byte = body[at]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at + 1
    return _number(body, at, _INT_BITS)


def _number(body: bytes, at: int, bits: int) -> tuple[int, int]:
    zigzag = shift = 0
    for byte in body[at : at + bits // 7 + 1]:
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        if shift < bits:
            raise IndexError
        raise ValueError(f"a number of {bits} bits has more than {shift // 7} bytes")
    if zigzag >> bits:
        raise ValueError(f"a number does not fit into {bits} bits")
    return zigzag >> 1 ^ -(zigzag & 1), at + shift // 7


def _float(body: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack(body[at : at + 4])[0] if len(body) - at >= 4 else _cut_off(), at + 4


def _double(body: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE.unpack_from(body, at)[0] if len(body) - at >= 8 else _cut_off(), at + 8


def _cut_off() -> float:
    raise IndexError


def _bytes(body: bytes, at: int) -> tuple[bytes, int]:
    size, start = _long(body, at)
    if size < 0:
        raise ValueError(f"a length is {size}")
    end = start + size
    if end > len(body):
        raise IndexError
    return body[start:end], end


def _string(body: bytes, at: int) -> tuple[str, int]:
    # Inlined `_bytes`: most values are short texts, and a call takes as long as the rest.
    size = body[at]
    if size < 0x80 and not size & 1 and (end := at + 1 + (size >> 1)) <= len(body):
        return body[at + 1 : end].decode(), end
    data, end = _bytes(body, at)
    return data.decode(), end


def _fixed(size: int) -> Read:
    def read(body: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if not at <= end <= len(body):
            raise IndexError
        return body[at:end], end

    return read


def _enum(symbols: list[str]) -> Read:
    def read(body: bytes, at: int) -> tuple[str, int]:
        index, at = _int(body, at)
        if not 0 <= index < len(symbols):
            raise ValueError(f"an enum of {len(symbols)} symbols has no symbol {index}")
        return symbols[index], at

    return read


def _union(branches: list[Read]) -> Read:
    def read(body: bytes, at: int) -> tuple[Any, int]:
        index, at = _int(body, at)
        if not 0 <= index < len(branches):
            raise ValueError(f"a union of {len(branches)} types has no type {index}")
        return branches[index](body, at)

    return read


def _record(fields: list[tuple[str, Read]]) -> Read:
    def read(body: bytes, at: int) -> tuple[dict[str, Any], int]:
        value = {}
        for name, field in fields:
            value[name], at = field(body, at)
        return value, at

    return read


def _array(item: Read) -> Read:
    def read(body: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        append = values.append
        while True:
            count, at, end = _block(body, at)
            if not count:
                return values, at
            for _ in range(count):
                value, at = item(body, at)
                append(value)
            _check_size(at, end)

    return read


def _map(of: Read) -> Read:
    def read(body: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        while True:
            count, at, end = _block(body, at)
            if not count:
                return values, at
            for _ in range(count):
                key, at = _string(body, at)
                if key in values:
                    raise ValueError(f"a map has the key {key[:100]!r} twice")
                values[key], at = of(body, at)
            _check_size(at, end)

    return read


def _block(body: bytes, at: int) -> tuple[int, int, int | None]:
    """The number of a block's items, their begin, and their end by the block's size; None for a block without a size."""
    count, at = _long(body, at)
    if count >= 0:
        return count, at, None
    size, at = _long(body, at)
    if not 0 <= size <= len(body) - at:
        raise ValueError(f"a block has a size of {size} bytes, and {len(body) - at} follow")
    return -count, at, at + size


def _check_size(at: int, end: int | None) -> None:
    if end is not None and at != end:
        raise ValueError(
            f"the items of a block take {abs(at - end)} bytes {'more' if at > end else 'less'} than its size"
        )


_PRIMITIVES: dict[str, Read] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}
