"""Of a decision the parts that there are many of, to Avro bytes and back, by hand: writes and states.

A decision may have ten thousand of each, and every event of a pipeline passes here twice. To fastavro, which can read the same
bytes, a write costs twice as much, and to write down a state ten times. The schemas are in avro/engine.
"""

from collections.abc import Callable, Sequence

from onefold.processor.core.abc import Write
from onefold.processor.io.avro_encoder import number

# A length below it is found in a table: keys, headers and most values.
_SHORT = 256
_LENGTHS = tuple(number(length << 1) for length in range(_SHORT))
# Of ["null", "bytes"]: which branch, and of the second one the length.
_NULL, _VALUE = b"\x00", b"\x02"
_VALUES = tuple(_VALUE + length for length in _LENGTHS)
_END = b"\x00"
# The partition of a write that goes to that of its key.
_ANY = number(1)


def encode_writes(writes: Sequence[Write]) -> bytes:
    """As avro/engine/writes.avsc has them."""
    texts = _Texts()
    parts: list[bytes] = []
    add = parts.append
    for topic, partition, key, value, headers in writes:
        add(texts[topic])
        add(_ANY if partition is None else number(partition << 1))
        _add_optional(add, key)
        _add_optional(add, value)
        if headers:
            add(number(len(headers) << 1))
            for name, content in headers:
                add(texts[name])
                _add_optional(add, content)
        add(_END)
    return _array(len(writes), parts)


def encode_states(states: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """As the field `states` of avro/engine/decision.avsc."""
    parts: list[bytes] = []
    add = parts.append
    for key, value in states:
        add(_LENGTHS[len(key)] if len(key) < _SHORT else number(len(key) << 1))
        add(key)
        _add_optional(add, value)
    return _array(len(states), parts)


def _add_optional(add: Callable[[bytes], None], data: bytes | None) -> None:
    if data is None:
        add(_NULL)
    else:
        add(_VALUES[len(data)] if len(data) < _SHORT else _VALUE + number(len(data) << 1))
        add(data)


def _array(count: int, parts: list[bytes]) -> bytes:
    """All items in one block; without any there is none."""
    return b"".join((number(count << 1), *parts, _END)) if count else _END


def encode_bytes(data: bytes) -> bytes:
    """A field of bytes."""
    return number(len(data) << 1) + data


def decode_writes(data: bytes) -> list[Write]:
    """What `encode_writes` made. Raises IndexError or UnicodeDecodeError where the bytes are no writes."""
    found: list[Write] = []
    add, texts, at = found.append, _Seen(), 0
    count, at = _count(data, at)
    while count:
        for _ in range(count):
            topic, at = _bytes(data, at)
            partition, at = _number(data, at)
            key, at = _optional(data, at)
            value, at = _optional(data, at)
            headers: list[tuple[str, bytes | None]] = []
            more, at = _count(data, at)
            while more:
                for _ in range(more):
                    name, at = _bytes(data, at)
                    content, at = _optional(data, at)
                    headers.append((texts[name], content))
                more, at = _count(data, at)
            add((texts[topic], None if partition < 0 else partition, key, value, headers or None))
        count, at = _count(data, at)
    return found


class _Texts(dict[str, bytes]):
    """Topics and names of headers: a few, each of which comes thousands of times."""

    def __missing__(self, text: str) -> bytes:
        data = self[text] = encode_bytes(text.encode())
        return data


class _Seen(dict[bytes, str]):
    """The same texts, read."""

    def __missing__(self, data: bytes) -> str:
        text = self[data] = data.decode()
        return text


# Each takes the bytes and where to read, and gives what is there and where the next begins. Most numbers are one byte.


def _number(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    zigzag, shift = byte & 127, 7
    while byte > 127:
        byte = data[at]
        at += 1
        zigzag |= (byte & 127) << shift
        shift += 7
    return zigzag >> 1 ^ -(zigzag & 1), at


def _count(data: bytes, at: int) -> tuple[int, int]:
    """Of the next block of an array; 0 ends it. A negative one is followed by its size, for who skips it."""
    if not data[at]:
        return 0, at + 1
    count, at = _number(data, at)
    if count < 0:
        _, at = _number(data, at)
    return abs(count), at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    byte = data[at]
    length, at = (byte >> 1, at + 1) if byte < 128 and not byte & 1 else _number(data, at)
    end = at + length
    if not at <= end <= len(data):
        raise IndexError(f"{length} bytes at {at} of {len(data)}")
    return data[at:end], end


def _optional(data: bytes, at: int) -> tuple[bytes | None, int]:
    return _bytes(data, at + 1) if data[at] else (None, at + 1)
