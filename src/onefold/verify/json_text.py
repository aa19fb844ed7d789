"""JSON as it is written: every field, also the repeated ones, and every digit.

By the standard library's parser, so that an error of the processor's is seen and not shared.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from onefold.verify.avro import DEPTH_MAX

# Python refuses to read integers of more than 4300 digits, with the same error as for malformed text.
_DIGITS_SAFE = 4300

_WHITE_SPACE = " \t\n\r"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Malformed(Exception):
    """The text cannot be taken; this one is the reason."""


class Pairs(list[tuple[str, Any]]):
    """A JSON object with every field that was written, also the repeated ones; its class distinguishes it from an array."""


def _no_constant(text: str) -> NoReturn:
    raise Malformed(f"{text} is no JSON")


def _long_integer(digits: str) -> int:
    # Far outside 64 bits and doubles either way; how far is of no interest.
    return int(digits[:400])


class Real(str):
    """A number with a point or an exponent, as it is written: which number it is depends on the contract's type."""

    __slots__ = ()


def _reader(**more: Any) -> Callable[[str], Any]:
    decoder = json.JSONDecoder(object_pairs_hook=Pairs, parse_constant=_no_constant, parse_float=Real, **more)

    def read(text: str) -> Any:
        # As `decoder.decode`, which looks for white space twice with a pattern.
        text = text.strip(_WHITE_SPACE)
        value, end = decoder.raw_decode(text)
        if end < len(text):
            raise ValueError(f"something follows at character {end}")
        return value

    return read


_READ = _reader()
_READ_LONG = _reader(parse_int=_long_integer)


def read(value: bytes) -> Any:
    """The value that a text says; raises `Malformed`."""
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
    """How deep the brackets outside of strings go. Exact for well-formed text, which is all that matters.

    Without its escapes, the text alternates at each quote: outside, a string, outside. Each step
    is one pass over the text, whatever it holds.
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
    """JSON escapes can spell half a character; neither UTF-8 nor Postgres can hold one."""
    if isinstance(value, str) and _SURROGATE.search(value):
        raise Malformed("a lone surrogate")
    if isinstance(value, list | tuple):
        for part in value:
            _no_surrogates(part)
