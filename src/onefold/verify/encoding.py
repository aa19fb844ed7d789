"""Read Avro bodies in strict conformity with Avro's binary encoding.

fastavro accepts more than the specification, so the verifier has a reader of its own. Writers may use spellings that fastavro
never writes, such as arrays and maps in several blocks, or blocks with a size in bytes. The reader accepts:

  - a long in at most 10 bytes and 64 bits; an int, and the number of a symbol or a branch, in at most 5 bytes and 32 bits. The
    specification requires no shortest form, so the last bytes may be zero;
  - blocks with any number of items, up to an empty block. If a block has a size, its items have exactly this size;
  - a boolean of 0 or 1, texts in UTF-8, any float and any double.

A map with a repeated key is refused.
"""

import struct
from collections.abc import Callable
from typing import Any

#: `(body, start of a value) -> the value and its end`. Raises ValueError, LookupError, RecursionError or struct.error for
#: invalid bytes.
Read = Callable[[bytes, int], tuple[Any, int]]

_LONG, _INT = 64, 32
_MORE, _SEVEN = 0x80, 0x7F


def reader(schema: Any) -> Read:
    """Return a reader for the values of a parsed schema with full names. Logical types are ignored, and the value of a union
    does not include its branch.
    """
    return _Readers().of(schema)


class _Readers:
    """The readers for the types of a schema, one for each definition."""

    def __init__(self) -> None:
        self._named: dict[str, Read] = {}

    def of(self, kind: Any) -> Read:
        if isinstance(kind, list):
            return _union([self.of(branch) for branch in kind])
        if isinstance(kind, str):
            return _PRIMITIVES.get(kind) or (lambda body, at: self._named[kind](body, at))
        match kind["type"]:
            case "record" | "error":
                fields = [(field["name"], self.of(field["type"])) for field in kind["fields"]]
                self._named[kind["name"]] = found = _record(fields)
            case "array":
                return _array(self.of(kind["items"]))
            case "map":
                return _map(self.of(kind["values"]))
            case "enum":
                self._named[kind["name"]] = found = _enum(kind["symbols"])
            case "fixed":
                self._named[kind["name"]] = found = _sized(kind["size"])
            case primitive:
                return _PRIMITIVES[primitive]
        return found


def _null(body: bytes, at: int) -> tuple[None, int]:
    return None, at


def _number(body: bytes, at: int, bits: int = _LONG) -> tuple[int, int]:
    byte = body[at]
    if byte < _MORE:
        return byte >> 1 ^ -(byte & 1), at + 1
    zigzag, shift = byte & _SEVEN, 7
    while (byte := body[at := at + 1]) >= _MORE:
        zigzag |= (byte & _SEVEN) << shift
        shift += 7
        if shift >= bits:
            raise ValueError("too long a number")
    zigzag |= byte << shift
    if zigzag >> bits:
        raise ValueError(f"a number beyond {bits} bits")
    return zigzag >> 1 ^ -(zigzag & 1), at + 1


def _small(body: bytes, at: int) -> tuple[int, int]:
    return _number(body, at, _INT)


def _boolean(body: bytes, at: int) -> tuple[bool, int]:
    if body[at] > 1:
        raise ValueError("no boolean")
    return body[at] == 1, at + 1


def _float(body: bytes, at: int) -> tuple[float, int]:
    (value,) = struct.unpack_from("<f", body, at)
    return value, at + 4


def _double(body: bytes, at: int) -> tuple[float, int]:
    (value,) = struct.unpack_from("<d", body, at)
    return value, at + 8


def _end(body: bytes, at: int, size: int) -> int:
    if not 0 <= size <= len(body) - at:
        raise ValueError("cut off")
    return at + size


def _sized(size: int) -> Read:
    def read(body: bytes, at: int) -> tuple[bytes, int]:
        end = _end(body, at, size)
        return body[at:end], end

    return read


def _bytes(body: bytes, at: int) -> tuple[bytes, int]:
    size, start = _number(body, at)
    end = _end(body, start, size)
    return body[start:end], end


def _text(body: bytes, at: int) -> tuple[str, int]:
    # The short case of `_bytes`, inlined: most values are short texts, and a call is expensive.
    size = body[at]
    if size < _MORE and not size & 1 and (end := at + 1 + (size >> 1)) <= len(body):
        return body[at + 1 : end].decode(), end
    data, end = _bytes(body, at)
    return data.decode(), end


def _enum(symbols: list[str]) -> Read:
    def read(body: bytes, at: int) -> tuple[str, int]:
        number, end = _small(body, at)
        if number < 0:
            raise ValueError("no such symbol")
        return symbols[number], end

    return read


def _record(fields: list[tuple[str, Read]]) -> Read:
    def read(body: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, field in fields:
            found[name], at = field(body, at)
        return found, at

    return read


def _union(branches: list[Read]) -> Read:
    is_nothing = branches[:1] == [_null]

    def read(body: bytes, at: int) -> tuple[Any, int]:
        if is_nothing and not body[at]:
            return None, at + 1
        branch, at = _small(body, at)
        if branch < 0:
            raise ValueError("no such branch")
        return branches[branch](body, at)

    return read


def _array(item: Read) -> Read:
    def read(body: bytes, at: int) -> tuple[list[Any], int]:
        found = []
        count, at, end = _block(body, at)
        while count:
            for _ in range(count):
                value, at = item(body, at)
                found.append(value)
            count, at, end = _next(body, at, end)
        return found, at

    return read


def _map(item: Read) -> Read:
    def read(body: bytes, at: int) -> tuple[dict[str, Any], int]:
        found, entries = {}, 0
        count, at, end = _block(body, at)
        while count:
            for _ in range(count):
                key, at = _text(body, at)
                found[key], at = item(body, at)
            entries += count
            count, at, end = _next(body, at, end)
        if len(found) < entries:
            raise ValueError("a key that is there twice")
        return found, at

    return read


def _block(body: bytes, at: int) -> tuple[int, int, int]:
    """Return the number of items in a block, their start, and their required end; -1: the block has no size."""
    count, at = _number(body, at)
    if count >= 0:
        return count, at, -1
    size, at = _number(body, at)
    return -count, at, _end(body, at, size)


def _next(body: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Read the head of the next block. The previous block ends at `at`, and must end at `end`."""
    if end not in (-1, at):
        raise ValueError("the items of a block are not of its size")
    return _block(body, at)


_PRIMITIVES: dict[str, Read] = {
    "null": _null,
    "boolean": _boolean,
    "int": _small,
    "long": _number,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _text,
}
