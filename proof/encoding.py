"""Avro bodies as a writer spells them: their values, and nothing that no writer writes.

It is the judge's own reader. fastavro reads more than any writer writes, and it cannot say which branch of a union it has read:
written again, a small number of the branch `long` goes into the branch `int`. Here a body is read and its spelling looked at in
one go, which takes a third of the time that reading and writing again takes.

A writer spells numbers in as few bytes as they need, a boolean as 0 or 1, an array or a map in one block without its size, and
the keys of a map once. What an int may be is no question of its spelling.
"""

import struct
from collections.abc import Callable
from typing import Any

#: `(body, where a value begins) -> the value, and where it ends`. Raises ValueError, LookupError, RecursionError or struct.error
#: for what no writer writes.
Read = Callable[[bytes, int], tuple[Any, int]]

_BITS = 64
_MORE, _SEVEN = 0x80, 0x7F


def reader(schema: Any) -> Read:
    """What reads the values of a parsed schema, whose names are full names. Logical types are none here, and the value of a
    union does not say of which branch it is.
    """
    return _Readers().of(schema)


class _Readers:
    """Those of a schema, each definition once."""

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


def _number(body: bytes, at: int) -> tuple[int, int]:
    byte = body[at]
    if byte < _MORE:
        return byte >> 1 ^ -(byte & 1), at + 1
    zigzag, shift = byte & _SEVEN, 7
    while (byte := body[at := at + 1]) >= _MORE:
        zigzag |= (byte & _SEVEN) << shift
        shift += 7
        if shift >= _BITS:
            raise ValueError("too long a number")
    if not byte:
        raise ValueError("a padded number")
    zigzag |= byte << shift
    if zigzag >> _BITS:
        raise ValueError("a number beyond 64 bits")
    return zigzag >> 1 ^ -(zigzag & 1), at + 1


def _boolean(body: bytes, at: int) -> tuple[bool, int]:
    if body[at] > 1:
        raise ValueError("no boolean")
    return body[at] == 1, at + 1


def _float(body: bytes, at: int) -> tuple[float, int]:
    """Signalling NaNs are none that come back from arithmetic as they were."""
    data = body[at : at + 4]
    (value,) = struct.unpack("<f", data)
    if struct.pack("<f", value) != data:
        raise ValueError("a signalling NaN")
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
    # As `_bytes`. Most values are short texts, and a call takes as long as all the rest of one.
    size = body[at]
    if size < _MORE and not size & 1 and (end := at + 1 + (size >> 1)) <= len(body):
        return body[at + 1 : end].decode(), end
    data, end = _bytes(body, at)
    return data.decode(), end


def _enum(symbols: list[str]) -> Read:
    def read(body: bytes, at: int) -> tuple[str, int]:
        number, end = _number(body, at)
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
        branch, at = _number(body, at)
        if branch < 0:
            raise ValueError("no such branch")
        return branches[branch](body, at)

    return read


def _array(item: Read) -> Read:
    def read(body: bytes, at: int) -> tuple[list[Any], int]:
        count, at = _count(body, at)
        found = []
        for _ in range(count):
            value, at = item(body, at)
            found.append(value)
        return found, _last(body, at) if count else at

    return read


def _map(item: Read) -> Read:
    def read(body: bytes, at: int) -> tuple[dict[str, Any], int]:
        count, at = _count(body, at)
        found = {}
        for _ in range(count):
            key, at = _text(body, at)
            found[key], at = item(body, at)
        if len(found) < count:
            raise ValueError("a key that is there twice")
        return found, _last(body, at) if count else at

    return read


def _count(body: bytes, at: int) -> tuple[int, int]:
    count, at = _number(body, at)
    if count < 0:
        raise ValueError("a block with its size")
    return count, at


def _last(body: bytes, at: int) -> int:
    """Where the empty block ends that has to follow."""
    if _number(body, at)[0]:
        raise ValueError("a second block")
    return at + 1


_PRIMITIVES: dict[str, Read] = {
    "null": _null,
    "boolean": _boolean,
    "int": _number,
    "long": _number,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _text,
}
