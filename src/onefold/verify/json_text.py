"""Parse JSON with repeated fields and with all digits.

The parser is the standard library's, so an error in the parser of the processor shows as a mismatch, and is not shared.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from onefold.verify.avro import DEPTH_MAX

# For integers of more than 4300 digits, Python raises the same error as for malformed text.
_DIGITS_SAFE = 4300

_WHITE_SPACE = " \t\n\r"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Malformed(Exception):
    """The text is invalid; the message is the reason."""


class Pairs(list[tuple[str, Any]]):
    """A JSON object with all its fields, including repeated ones; the class distinguishes an object from an array."""


def _no_constant(text: str) -> NoReturn:
    raise Malformed(f"{text} is no JSON")


def _long_integer(digits: str) -> int:
    # 400 digits are beyond 64 bits and doubles already.
    return int(digits[:400])


class Real(str):
    """A number with a point or an exponent, as text: the type in the schema determines the number."""

    __slots__ = ()


def _reader(**more: Any) -> Callable[[str], Any]:
    decoder = json.JSONDecoder(object_pairs_hook=Pairs, parse_constant=_no_constant, parse_float=Real, **more)

    def read(text: str) -> Any:
        # Faster than `decoder.decode`, which searches white space by a pattern, twice.
        text = text.strip(_WHITE_SPACE)
        value, end = decoder.raw_decode(text)
        if end < len(text):
            raise ValueError(f"something follows at character {end}")
        return value

    return read


_READ = _reader()
_READ_LONG = _reader(parse_int=_long_integer)


def read(value: bytes) -> Any:
    """Return the value of a text; raises `Malformed`."""
    try:
        text = value.decode("utf-8")
        if value.count(b"{") + value.count(b"[") > DEPTH_MAX and depth(text) > DEPTH_MAX:
            raise Malformed(f"nested deeper than {DEPTH_MAX}")
        parsed = (_READ if len(value) <= _DIGITS_SAFE else _READ_LONG)(text)
    except ValueError as error:
        raise Malformed(f"no JSON: {error}") from None
    if b"\\u" in value:
        _no_surrogates(parsed)
    return parsed


def depth(text: str) -> int:
    """Return the nesting depth of the brackets outside of strings, exact for well-formed text only.

    Without its escapes, the text alternates at each quote between outside and inside of a string. Each step is one pass over
    the text, whatever the content.
    """
    deepest = level = 0
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    for character in "".join(unescaped.split('"')[::2]):
        if character in "[{":
            level += 1
            deepest = max(deepest, level)
        elif character in "]}":
            level -= 1
    return deepest


def _no_surrogates(value: Any) -> None:
    """Refuse a lone surrogate, which JSON can escape; UTF-8 and PostgreSQL cannot hold a lone surrogate."""
    if isinstance(value, str) and _SURROGATE.search(value):
        raise Malformed("a lone surrogate")
    if isinstance(value, list | tuple):
        for part in value:
            _no_surrogates(part)
