"""Hostile inputs, made from a good record: broken inputs for the dead-letter topic, and unusual but valid inputs.

Every case is a function of a random source and a good JSON value of the topic. The results of `BROKEN` must be rejected, and
the results of `ODD` accepted. Tests check `decode` for every case.
"""

import functools
import io
import json
import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import fastavro

from onefold.verify.contracts import VerifiedSchema, contracts
from onefold.verify.decode import VALUE_BYTES_MAX


class Good:
    """A good record in every form needed by the cases."""

    def __init__(self, topic: str, text: bytes) -> None:
        self.text = text
        self.fields: dict[str, Any] = json.loads(text)
        self.contract: VerifiedSchema = contracts()[topic]
        types = {name: field["type"] for name, field in self.contract.fields.items()}
        # Without a whole number in the schema, the cases replace the first text. Every literal that is wrong for a whole number
        # is also wrong for a text, except a text.
        self.counts = "long" in types.values()
        self.field = next(name for name, kind in types.items() if kind == ("long" if self.counts else "string"))

    def with_value(self, literal: bytes) -> bytes:
        """The text with this literal for the first whole number of the schema, or else for the first text."""
        plain = json.dumps({**self.fields, self.field: "@"}).encode()
        return plain.replace(b'"@"', literal, 1)

    def with_extra(self, literal: bytes) -> bytes:
        """The text with an additional field that is not in the schema."""
        return self.text.rstrip()[:-1] + b', "extra": ' + literal + b"}"

    @functools.cached_property
    def avro(self) -> bytes:
        """The Avro body."""
        body = io.BytesIO()
        exact = json.loads(self.text, parse_float=Decimal)  # keeps all digits of a decimal
        defaults = {name: field["default"] for name, field in self.contract.fields.items() if "default" in field}
        fastavro.schemaless_writer(body, self.contract.schema, {**defaults, **exact})
        return body.getvalue()


Case = Callable[[random.Random, Good], bytes | None]


def _number(literal: bytes) -> Case:
    return lambda rng, good: good.with_value(literal)


def _extra(literal: bytes) -> Case:
    return lambda rng, good: good.with_extra(literal)


def _first_of_two(good: Good, literal: bytes) -> bytes:
    return good.with_value(literal)[:-1] + b"," + good.text.lstrip()[1:]


def _body(change: Callable[[bytes], bytes]) -> Case:
    return lambda rng, good: good.contract.prefix + change(good.avro)


BROKEN: Mapping[str, Case] = {
    "null": lambda rng, good: None,
    "empty": lambda rng, good: b"",
    "blank": lambda rng, good: b" \n",
    "truncated": lambda rng, good: good.text[: rng.randrange(1, len(good.text) - 1)],
    # Random bytes are never a JSON object.
    "random bytes": lambda rng, good: rng.randbytes(rng.randrange(1, 200)),
    "plain words": lambda rng, good: b"hello, world",
    "array": lambda rng, good: b"[" + good.text + b"]",
    "bare number": lambda rng, good: b"42",
    "json null": lambda rng, good: b"null",
    "two objects": lambda rng, good: good.text + b"\n" + good.text,
    "trailing comma": lambda rng, good: good.text.rstrip()[:-1] + b",}",
    "byte order mark": lambda rng, good: b"\xef\xbb\xbf" + good.text,
    "utf-16": lambda rng, good: good.text.decode().encode("utf-16"),
    "missing field": lambda rng, good: json.dumps({k: v for k, v in good.fields.items() if k != good.field}).encode(),
    "other case": lambda rng, good: json.dumps({k.upper(): v for k, v in good.fields.items()}).encode(),
    "other type": lambda rng, good: good.with_value(b'"12"' if good.counts else b"12"),
    "float": _number(b"1.0"),
    "exponent": _number(b"1e2"),
    "boolean": _number(b"true"),
    "null for number": _number(b"null"),
    "object for number": _number(b"{}"),
    "NaN": _number(b"NaN"),
    "Infinity": _number(b"Infinity"),
    "-Infinity": _number(b"-Infinity"),
    "1e400": _number(b"1e400"),
    "10^400": _number(b"1" + b"0" * 400),
    "5000 digits": _number(b"9" * 5000),
    "2^63": _number(b"9223372036854775808"),
    "below -2^63": _number(b"-9223372036854775809"),
    "leading zero": _number(b"01"),
    "leading plus": _number(b"+1"),
    "bad first of two": lambda rng, good: _first_of_two(good, b'"x"' if good.counts else b"-7"),
    "NaN unseen": _extra(b"NaN"),
    "lone surrogate": _extra(b'"\\ud800"'),
    "lone low surrogate": _extra(b'"\\udc00x"'),
    "raw surrogate": _extra(b'"\xed\xa0\x80"'),
    "bad utf-8 unseen": _extra(b'"\xff\xfe"'),
    "raw NUL": _extra(b'"\0"'),
    "bad escape": _extra(b'"\\x41"'),
    "deep": _extra(b"[" * 80 + b"]" * 80),
    "bottomless": _extra(b"[" * 100_000),
    "deep objects": _extra(b'{"a":' * 3000 + b"1" + b"}" * 3000),
    "unknown fingerprint": lambda rng, good: b"\xc3\x01" + rng.randbytes(8) + good.avro,
    "marker alone": lambda rng, good: b"\xc3\x01",
    "half a marker": lambda rng, good: b"\xc3",
    "avro truncated": _body(lambda body: body[:-1]),
    "avro trailing": _body(lambda body: body + b"\0"),
    "avro long number": _body(lambda body: bytes([body[0] | 0x80, *([0x80] * 20), 0]) + body[1:]),
    "avro endless number": _body(lambda body: b"\xff" * 5000),
    # The number is also read as the length of a text, two exabytes.
    "avro bomb": _body(lambda body: b"\xfe\xff\xff\xff\xff\xff\xff\xff\x3f" * 8),
    "confluent": lambda rng, good: b"\0" + (7).to_bytes(4, "big") + good.avro,
    "oversize": lambda rng, good: good.with_extra(b'"' + b"x" * VALUE_BYTES_MAX + b'"'),
}

ODD: Mapping[str, Case] = {
    "avro": _body(lambda body: body),
    "white space": lambda rng, good: b" \t\r\n" + good.text + b"\r\n",
    "pretty": lambda rng, good: json.dumps(good.fields, indent=2).encode(),
    "escaped names": lambda rng, good: good.text.replace(
        b'"' + good.field.encode() + b'"', b'"\\u%04x%b"' % (ord(good.field[0]), good.field[1:].encode()), 1
    ),
    "given twice": lambda rng, good: _first_of_two(good, b"-7" if good.counts else b'"x"'),
    "extra fields": _extra(b'{"a": [1, 2.5, -0.0, 1e400, null, true], "b": "\\u0000", "\xc3\xa9": "\\ud83d\\ude00"}'),
    "long extra number": _extra(b"7" * 5000),
    "wide": _extra(b"[" + b",".join([b"[]"] * 100) + b"]"),
    "brackets in text": _extra(b'"' + b"[{" * 100 + b'\\""'),
}

# Rare, because each oversize input has a megabyte.
_OVERSIZE_ONE_IN = 500
_ODD_ONE_IN = 4
_SMALL = tuple(case for name, case in BROKEN.items() if name not in ("oversize", "bottomless"))
_LARGE = (BROKEN["oversize"], BROKEN["bottomless"])


def hostile(rng: random.Random, topic: str, text: bytes) -> bytes | None:
    """A broken or unusual value, made from a good JSON value of the topic."""
    if rng.randrange(_OVERSIZE_ONE_IN) == 0:
        cases: tuple[Case, ...] = _LARGE
    else:
        cases = tuple(ODD.values()) if rng.randrange(_ODD_ONE_IN) == 0 else _SMALL
    return rng.choice(cases)(rng, Good(topic, text))
