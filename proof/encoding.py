"""Whether an Avro body is spelled as a writer spells it, byte by byte and by its schema alone.

fastavro reads more than any writer writes, and it cannot say which branch of a union it has read: written again, a small
number of the branch `long` goes into the branch `int`. So what differs when it is written again is decided here.

A writer spells numbers in as few bytes as they need, a boolean as 0 or 1, an array or a map in one block without its size, and
the keys of a map once. What an int may be is no question of its spelling.
"""

import struct
from collections.abc import Callable
from typing import Any

#: `(body, where a value begins) -> where it ends`. Raises ValueError, LookupError or struct.error for what no writer writes.
Walk = Callable[[bytes, int], int]

_BITS = 64
_MORE, _SEVEN = 0x80, 0x7F


def walk(schema: Any) -> Walk:
    """What follows the values of a parsed schema, whose names are full names."""
    return _Walks().of(schema)


def is_exact(body: bytes, follow: Walk) -> bool:
    """Is the body exactly one value, as a writer spells it?"""
    try:
        return follow(body, 0) == len(body)
    except (ValueError, LookupError, RecursionError, struct.error):
        return False


class _Walks:
    """Those of a schema, each definition once."""

    def __init__(self) -> None:
        self._named: dict[str, Walk] = {}

    def of(self, kind: Any) -> Walk:
        if isinstance(kind, list):
            return _union([self.of(branch) for branch in kind])
        if isinstance(kind, str):
            return _PRIMITIVES.get(kind) or (lambda body, at: self._named[kind](body, at))
        match kind["type"]:
            case "record" | "error":
                self._named[kind["name"]] = found = _record([self.of(field["type"]) for field in kind["fields"]])
            case "array":
                return _blocks(self.of(kind["items"]))
            case "map":
                return _blocks(self.of(kind["values"]), keyed=True)
            case "enum":
                self._named[kind["name"]] = found = _enum(len(kind["symbols"]))
            case "fixed":
                self._named[kind["name"]] = found = _sized(kind["size"])
            case primitive:
                return _PRIMITIVES[primitive]
        return found


def _number(body: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends."""
    zigzag = shift = 0
    while body[at] & _MORE:
        zigzag |= (body[at] & _SEVEN) << shift
        at, shift = at + 1, shift + 7
        if shift >= _BITS:
            raise ValueError("too long a number")
    if shift and not body[at]:
        raise ValueError("a padded number")
    zigzag |= body[at] << shift
    if zigzag >> _BITS:
        raise ValueError("a number beyond 64 bits")
    return zigzag >> 1 ^ -(zigzag & 1), at + 1


def _long(body: bytes, at: int) -> int:
    return _number(body, at)[1]


def _boolean(body: bytes, at: int) -> int:
    if body[at] > 1:
        raise ValueError("no boolean")
    return at + 1


def _float(body: bytes, at: int) -> int:
    """Signalling NaNs are none that come back from arithmetic as they were."""
    data = body[at : at + 4]
    if struct.pack("<f", *struct.unpack("<f", data)) != data:
        raise ValueError("a signalling NaN")
    return at + 4


def _sized(size: int) -> Walk:
    def follow(body: bytes, at: int) -> int:
        if not 0 <= size <= len(body) - at:
            raise ValueError("cut off")
        return at + size

    return follow


def _bytes(body: bytes, at: int) -> int:
    size, at = _number(body, at)
    return _sized(size)(body, at)


def _text(body: bytes, at: int) -> int:
    size, start = _number(body, at)
    end = _sized(size)(body, start)
    body[start:end].decode()
    return end


def _enum(symbols: int) -> Walk:
    def follow(body: bytes, at: int) -> int:
        number, at = _number(body, at)
        if not 0 <= number < symbols:
            raise ValueError("no such symbol")
        return at

    return follow


def _record(fields: list[Walk]) -> Walk:
    def follow(body: bytes, at: int) -> int:
        for field in fields:
            at = field(body, at)
        return at

    return follow


def _union(branches: list[Walk]) -> Walk:
    def follow(body: bytes, at: int) -> int:
        branch, at = _number(body, at)
        if branch < 0:
            raise ValueError("no such branch")
        return branches[branch](body, at)

    return follow


def _blocks(item: Walk, *, keyed: bool = False) -> Walk:
    def follow(body: bytes, at: int) -> int:
        count, at = _number(body, at)
        if not count:
            return at
        keys = set()
        if count < 0:
            raise ValueError("a block with its size")
        for _ in range(count):
            if keyed:
                end = _text(body, at)
                keys.add(body[at:end])
                at = end
            at = item(body, at)
        if keyed and len(keys) < count:
            raise ValueError("a key that is there twice")
        if _number(body, at)[0]:
            raise ValueError("a second block")
        return at + 1

    return follow


_PRIMITIVES: dict[str, Walk] = {
    "null": lambda body, at: at,
    "boolean": _boolean,
    "int": _long,
    "long": _long,
    "float": _float,
    "double": _sized(8),
    "bytes": _bytes,
    "string": _text,
}
