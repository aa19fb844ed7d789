"""The format of a dead letter: the original key and value, with the origin and the reason in headers."""

import hashlib

from onefold.processor.core.owner import PIPELINE_HEADER
from onefold.processor.core.values import PARKED_HEADER, SOURCE_HEADER, DeadLetter, trace_of

REASON_HEADER = "onefold-reason"
DIGEST_HEADER = "onefold-sha256"
LENGTH_HEADER = "onefold-bytes"

# A dead letter, with headers, must fit into every topic that held the record. The digest distinguishes values with the same
# cut.
VALUE_BYTES_MAX = 64 * 1024
# A reason may quote a parser that quotes its input.
REASON_CHARACTERS_MAX = 500


def key_of(letter: DeadLetter) -> bytes | None:
    """The original key, or its first 64 KiB."""
    key = letter.record.key
    return key if key is None else key[:VALUE_BYTES_MAX]


def value_of(letter: DeadLetter) -> bytes | None:
    """The original value, or its first 64 KiB."""
    value = letter.record.value
    return value if value is None else value[:VALUE_BYTES_MAX]


def origin_headers(source: bytes, value: bytes | None, reason: str) -> list[tuple[str, bytes | None]]:
    """The headers of every dead letter: origin, reason, and digest and length of the whole value."""
    whole = value or b""
    return [
        (SOURCE_HEADER, source),
        (REASON_HEADER, reason[:REASON_CHARACTERS_MAX].encode("utf-8", "replace")),
        (DIGEST_HEADER, hashlib.sha256(whole).hexdigest().encode()),
        (LENGTH_HEADER, str(len(whole)).encode()),
    ]


def headers_of(letter: DeadLetter, signature: bytes) -> list[tuple[str, bytes | None]]:
    """The headers of a processor's dead letter: the origin headers, the pipeline, and the trace of the record.

    If the key is parked, a header holds the parking ticket.
    """
    parked = [] if letter.parked is None else [(PARKED_HEADER, letter.parked)]
    return [
        *origin_headers(letter.record.source, letter.record.value, letter.reason),
        (PIPELINE_HEADER, signature),
        *parked,
        *trace_of(letter.record),
    ]
