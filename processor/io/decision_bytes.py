"""Of a decision the parts that there are many of, to Avro bytes and back, by hand: writes and states.

A decision may have ten thousand of each, and every event of a pipeline passes here several times. fastavro, which can read and
write the same bytes, takes two to ten times as long. The schemas are in avro/engine. What nearly all items look like is done in
place, the rest by functions.
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
_IS_VALUE = _VALUE[0]
# A byte with more of the number after it is not below that.
_MORE = 1 << 7
# By its first byte: a length that has no other, and what the first of several says of a length. None: it is none of that.
_LENGTH = tuple(byte >> 1 if byte < _MORE and not byte & 1 else None for byte in range(256))
_LOW = tuple((byte & 127) >> 1 if byte >= _MORE and not byte & 1 else None for byte in range(256))
# What goes to the partition of its key, with one header: where to, key, value, and the header, each after its length.
_LIKE_MOST = b"%b" * 8 + b"\x00"
# The count of an array with one item, and the end of an array.
_ONE, _END = b"\x02", b"\x00"
# All bits of a number, and the least of all.
_BITS, _LEAST = (1 << 64) - 1, -1 << 63
# The partition of a write that goes to that of its key.
_ANY = number(1)


def encode_writes(writes: Sequence[Write]) -> bytes:
    """As avro/engine/writes.avsc has them."""
    texts = _Texts()
    items: list[bytes] = []
    add = items.append
    before, named = "", ""  # the topic and the header's name of the one before, and their bytes
    anywhere, alone = texts[before] + _ANY, _ONE + texts[named]
    for topic, partition, key, value, headers in writes:
        if partition is None and key is not None and value is not None and headers is not None and len(headers) == 1:
            ((name, content),) = headers
            if content is not None and len(key) < _SHORT and len(value) < _SHORT and len(content) < _SHORT:
                if topic != before:
                    before, anywhere = topic, texts[topic] + _ANY
                if name != named:
                    named, alone = name, _ONE + texts[name]
                of_key, of_value, of_content = _VALUES[len(key)], _VALUES[len(value)], _VALUES[len(content)]
                # Part by part it would take twice as long.
                add(_LIKE_MOST % (anywhere, of_key, key, of_value, value, alone, of_content, content))
                continue
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
    return _array(len(writes), items)


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


def _array(count: int, items: list[bytes]) -> bytes:
    """All items in one block; without any there is none."""
    return b"%b%b%b" % (number(count << 1), b"".join(items), _END) if count else _END


def encode_bytes(data: bytes) -> bytes:
    """A field of bytes."""
    return number(len(data) << 1) + data


def decode_writes(data: bytes) -> list[Write]:
    """What `encode_writes` made. Raises IndexError or UnicodeDecodeError where the bytes are no writes."""
    found: list[Write] = []
    add, texts = found.append, _Seen()
    # Most go where the one before goes, and have one header of the same name: these bytes are compared, and not read again.
    head, topic, to = b"", "", 0
    alone, name = b"", ""
    key: bytes | None
    value: bytes | None
    count, at = _count(data, 0)
    while count:
        for _ in range(count):
            if head and data.startswith(head, at):
                at += len(head)
            else:
                start = at
                text, at = decode_bytes(data, at)
                to, at = _number(data, at)
                topic, head = texts[text], data[start:at]
            if data[at] == _IS_VALUE and (length := _LENGTH[data[at + 1]]) is not None:
                key = data[at + 2 : (at := at + 2 + length)]
            else:
                key, at = _optional(data, at)
            if data[at] == _IS_VALUE and (length := _LENGTH[data[at + 1]]) is not None:
                value = data[at + 2 : (at := at + 2 + length)]
            else:
                value, at = _optional(data, at)
            headers: list[tuple[str, bytes | None]] = []
            if alone and data.startswith(alone, at):
                content, end = _optional(data, at + len(alone))
                if data[end] == 0:
                    headers.append((name, content))
                    at = end + 1
            if not headers:
                more, at = _count(data, at)
                while more:
                    for _ in range(more):
                        text, at = decode_bytes(data, at)
                        content, at = _optional(data, at)
                        headers.append((texts[text], content))
                    more, at = _count(data, at)
                if len(headers) == 1:
                    name = headers[0][0]
                    alone = _ONE + encode_bytes(name.encode())
            add((topic, None if to < 0 else to, key, value, headers or None))
        count, at = _count(data, at)
    return found


def decode_states(data: bytes, at: int) -> tuple[list[tuple[bytes, bytes | None]], int]:
    """What `encode_states` made, which begins there, and where it ends. Raises IndexError where the bytes are no states."""
    found: list[tuple[bytes, bytes | None]] = []
    add = found.append
    value: bytes | None
    count, at = _count(data, at)
    while count:
        for _ in range(count):
            if (length := _LENGTH[data[at]]) is not None:
                key = data[at + 1 : (at := at + 1 + length)]
            else:
                key, at = decode_bytes(data, at)
            # Mostly it has a length of two bytes.
            if data[at] == _IS_VALUE and (low := _LOW[data[at + 1]]) is not None and (high := data[at + 2]) < _MORE:
                value = data[at + 3 : (at := at + 3 + (high << 6) + low)]
            else:
                value, at = _optional(data, at)
            add((key, value))
        count, at = _count(data, at)
    return found, at


def decode_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """A field of bytes that begins there, and where it ends. Raises IndexError where there is none."""
    byte = data[at]
    length, at = (byte >> 1, at + 1) if byte < 128 and not byte & 1 else _number(data, at)
    end = at + length
    if not at <= end <= len(data):
        raise IndexError(f"{length} bytes at {at} of {len(data)}")
    return data[at:end], end


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
        # As in 64 bits, for what has more bytes than any number: as to fastavro, and no number of a million digits.
        zigzag |= (byte & 127) << (shift & 63) & _BITS
        shift += 7
    return zigzag >> 1 ^ -(zigzag & 1), at


def _count(data: bytes, at: int) -> tuple[int, int]:
    """Of the next block of an array; 0 ends it. A negative one is followed by its size, for who skips it."""
    if not data[at]:
        return 0, at + 1
    count, at = _number(data, at)
    while count < 0:
        _, at = _number(data, at)
        if count != _LEAST:
            return -count, at
        # Its opposite is no number of 64 bits: to fastavro that is a block of nothing.
        count, at = _number(data, at)
    return count, at


def _optional(data: bytes, at: int) -> tuple[bytes | None, int]:
    branch = data[at]
    if branch == _IS_VALUE:
        return decode_bytes(data, at + 1)
    return (None, at + 1) if branch == 0 else _unusual(data, at)


def _unusual(data: bytes, at: int) -> tuple[bytes | None, int]:
    """A branch in more bytes than it needs, as Avro allows. A negative one counts from the end, as to fastavro, by which an
    earlier Onefold beside this one reads states: what is a proposal to one must be the same proposal to the other.
    """
    branch, at = _number(data, at)
    if not -2 <= branch < 2:
        raise IndexError(f"branch {branch} of two")
    return decode_bytes(data, at) if branch % 2 else (None, at)
