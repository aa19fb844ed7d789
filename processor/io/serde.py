"""Bytes to values and back: three spellings of one contract come in, one goes out.

In: JSON text, Avro single-object encoding, or the Confluent wire format; the first byte tells which. All three end as the
same msgspec Struct, checked against the same contract, so nothing behind this door knows how a value was spelled.
Out: Avro single-object encoding, which needs no server.

Admission control is here (what is refused here never touches a state): size, depth, UTF-8, NUL, whole numbers within
64 bits, finite numbers, unknown schemas, trailing bytes. Each refusal is a `Rejected` with one sentence.
"""

import io
import json
import re
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

import fastavro
import msgspec
from fastavro.read import SchemaResolutionError

from onefold.error_codes import Code
from onefold.processor.core import parking
from onefold.processor.core.errors import Corrupted, Refused, Rejected
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Fields, Record
from onefold.processor.io import time_units
from onefold.processor.io.avro_encoder import encoder
from onefold.processor.io.avro_reader import WriterSchema
from onefold.processor.io.contracts import RecordSchema, of_ticks
from onefold.processor.io.logical_types import convert
from onefold.processor.io.schemas import DEPTH_MAX, INPUT_BYTES_MAX
from onefold.schema_history import SINGLE_OBJECT

# The largest value the processor writes: the state of a big key. Topics and producer allow a little more, for the rest.
OUTPUT_BYTES_MAX = 8 * 1024 * 1024
# A magic byte and a big-endian schema id, from Confluent's wire format.
_CONFLUENT_HEADER_BYTES = 5

_NUL_ESCAPED = rb"\u0000"

# Whether one byte, as a number, is in a text is found four times as fast as whether a text is in it.
_BRACE, _BRACKET, _BACKSLASH = b"{[\\"
# In so many bytes there is no room for more brackets that are closed again: of lists in the first number, of objects, each
# with the name that it needs (`{"":}`), in the second. What is not closed is no JSON, and the parser says so. To count
# brackets takes 0.2 us.
_DEEP_BYTES_MIN, _DEEP_OBJECTS_BYTES_MIN = 2 * DEPTH_MAX, 5 * DEPTH_MAX

# A string, or what may be the beginning of one: the end is optional so that the search never fails behind a quote and never
# begins again at the next, which would take the square of the text's length. Possessive: it remembers no way back either.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKETS = re.compile(rb"[][{}]")

_AVRO_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    # Of integers and of decimals.
    ArithmeticError,
    AttributeError,
    MemoryError,
    RecursionError,
    struct.error,
    # A writer's schema that the contract cannot be read from.
    SchemaResolutionError,
)


class SchemaRegistry(Protocol):
    """Where Confluent schema ids are looked up."""

    def schema(self, schema_id: int) -> WriterSchema:
        """The parsed writer schema; `Rejected` when there is none, `Retriable` when the registry does not answer."""


class AvroCodec:
    """The codec of one topology, by the contracts of its topics."""

    def __init__(
        self, topology: Topology, contracts: Mapping[str, RecordSchema], registry: SchemaRegistry | None = None
    ) -> None:
        if topology.ticks is not None:
            contracts = {**contracts, topology.ticks: of_ticks()}
        self._decode_json = {topic: _json_decoders(contracts[topic]) for topic in topology.reads}
        self._inputs = {topic: contracts[topic] for topic in topology.reads}
        self._may_be_null = frozenset(topology.inputs if topology.tombstones != "reject" else ())
        self._encode = {topic: encoder(contracts[topic].schema, contracts[topic].prefix) for topic in topology.outputs}
        self._registry = registry
        # By topic and schema: a registry keeps each schema for good.
        self._other_units: dict[tuple[str, int], str] = {}
        self._state_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
        self._state_decode: Callable[[bytes], Any] = msgspec.json.Decoder(topology.state).decode
        if topology.on_dead_letter == "park":
            self._state_encode = parking.encoding(self._state_encode)
            self._state_decode = parking.decoding(self._state_decode)

    def decode(self, record: Record) -> Any:
        """The value of an input record; None for a tombstone, where the topology takes them. Raises `Rejected` with the reason
        when it breaks its contract.
        """
        data = record.value
        if not data:
            if data is None and record.topic in self._may_be_null:
                return None
            raise Rejected("the value is empty" if data is not None else "the value is null", Code.VALUE_UNREADABLE)
        if len(data) > INPUT_BYTES_MAX:
            raise Rejected(
                f"the value has {len(data)} bytes; at most {INPUT_BYTES_MAX} are taken", Code.VALUE_TOO_LARGE
            )
        first = data[0]
        if first == 0xC3:
            return _single_object(self._inputs[record.topic], data)
        if first == 0:
            return self._decode_confluent(record.topic, data)
        try:
            # The parser skips over fields that the contract lacks without looking at their bytes.
            data.isascii() or data.decode()
            if len(data) > _DEEP_BYTES_MIN and (len(data) > _DEEP_OBJECTS_BYTES_MIN or _BRACKET in data):
                _refuse_depth(data)
            unchecked, checked = self._decode_json[record.topic]
            return (checked if _BACKSLASH in data and _NUL_ESCAPED in data else unchecked)(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Rejected(f"not JSON of {self._inputs[record.topic].name}: {error}", Code.VALUE_UNREADABLE) from None

    def _decode_confluent(self, topic: str, data: bytes) -> Any:
        if len(data) < _CONFLUENT_HEADER_BYTES:
            raise Rejected("the value is cut off within the Confluent header", Code.VALUE_UNREADABLE)
        if self._registry is None:
            raise Rejected(
                "Confluent wire format, but no schema registry is set (schema.registry.url)", Code.WRITER_SCHEMA_UNKNOWN
            )
        contract = self._inputs[topic]
        schema_id = int.from_bytes(data[1:_CONFLUENT_HEADER_BYTES], "big")
        writer = self._registry.schema(schema_id)
        if (other := self._other_units.get((topic, schema_id))) is None:
            other = self._other_units[topic, schema_id] = time_units.other(writer.counted, contract.writer.counted)
        if other:
            raise Rejected(f"its writer's {other.format(contract.name)}", Code.WRITER_SCHEMA_UNUSABLE)
        return _convert(contract, _read(data, _CONFLUENT_HEADER_BYTES, writer, contract.reader))

    def read_plainly(self, record: Record) -> Any:
        """What an input record says by its own spelling, before any rule of its contract: for a person who asks why it breaks
        one. Raises `Rejected` when nobody can read it.
        """
        data = record.value or b""
        if data.startswith(SINGLE_OBJECT):
            contract = self._inputs[record.topic]
            prefix = data[: len(contract.prefix)]
            writer = contract.writer if prefix == contract.prefix else contract.earlier.get(prefix)
            if writer is None:
                raise Rejected(f"unknown schema fingerprint {prefix[2:].hex()}", Code.WRITER_SCHEMA_UNKNOWN)
            return _read(data, len(prefix), writer, None)
        if data.startswith(b"\0") and len(data) >= _CONFLUENT_HEADER_BYTES and self._registry is not None:
            writer = self._registry.schema(int.from_bytes(data[1:_CONFLUENT_HEADER_BYTES], "big"))
            return _read(data, _CONFLUENT_HEADER_BYTES, writer, None)
        try:
            return json.loads(data)  # takes more than msgspec does, as NaN
        except (ValueError, RecursionError) as error:
            raise Rejected(f"not JSON: {error}", Code.VALUE_UNREADABLE) from None

    def encode(self, topic: str, value: Fields) -> bytes:
        """The bytes of an output; raises `Rejected` when the value breaks the topic's contract or is too large."""
        try:
            data = self._encode[topic](value)
        except _AVRO_ERRORS as error:
            raise Rejected(f"its output to {topic} breaks the schema: {error}", Code.OUTPUT_WRONG) from None
        if len(data) >= OUTPUT_BYTES_MAX:
            raise _too_large(data, topic)
        return data

    def encode_state(self, state: Any) -> bytes:
        """The bytes of a state: JSON, so that a person can read the changelog."""
        data = self._state_encode(state)
        if len(data) >= OUTPUT_BYTES_MAX + parking.head_bytes(data):
            raise _too_large(data, "the changelog")
        return data

    def decode_state(self, topology: Topology, data: bytes) -> Any:
        """The state; raises `Corrupted` when the bytes are not a state of this topology."""
        try:
            return self._state_decode(data)
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
            if topology.on_dead_letter != "park" and parking.is_parked(data):
                raise Refused(
                    Code.STATE_UNREADABLE,
                    f"{topology.changelog} holds parked keys, and {topology.name} has on_dead_letter='pass': say 'park' again, "
                    f"start the pipeline, and run `onefold dead-letters replay {topology.name} --all`",
                ) from None
            raise Corrupted(
                Code.STATE_UNREADABLE,
                f"{topology.changelog} holds a state that is none of {topology.state.__name__}: {error}",
            ) from None


def decode_plain(contract: RecordSchema, data: bytes | None) -> dict[str, Any]:
    """A record that a processor wrote, as plain JSON data: decimals and moments are texts, bytes base64. Raises `Rejected`."""
    plain: dict[str, Any] = msgspec.to_builtins(_single_object(contract, data or b""))
    return plain


def decode_fields(contract: RecordSchema, data: bytes | None) -> dict[str, Any]:
    """A record that a processor wrote, by this contract or an earlier one, as Python values. Raises `Rejected`."""
    kept = (bytes, datetime, date, time, UUID, Decimal)
    fields: dict[str, Any] = msgspec.to_builtins(_single_object(contract, data or b""), builtin_types=kept)
    return fields


def _single_object(contract: RecordSchema, data: bytes) -> Any:
    if data.startswith(contract.prefix):
        return _convert(contract, _read(data, len(contract.prefix), contract.writer, None))
    if (was := contract.earlier.get(data[: len(contract.prefix)])) is not None:
        return _convert(contract, _read(data, len(contract.prefix), was, contract.reader))
    if not data.startswith(SINGLE_OBJECT):
        raise Rejected("the value is neither JSON text nor Avro", Code.VALUE_UNREADABLE)
    raise Rejected(
        f"unknown schema fingerprint {data[2:10].hex()}; {contract.name} has {contract.prefix[2:].hex()}",
        Code.WRITER_SCHEMA_UNKNOWN,
    )


def _json_decoders(contract: RecordSchema) -> tuple[Callable[[bytes], Any], Callable[[bytes], Any]]:
    """JSON holds NUL as an escape only: text without that escape need not be searched for it again, field by field."""
    unchecked, checked = (
        msgspec.json.Decoder(kind, dec_hook=convert) for kind in (contract.type_unchecked, contract.type)
    )
    return unchecked.decode, checked.decode


def _refuse_depth(data: bytes) -> None:
    """Only text with many brackets is looked at closely: how deep are those outside of strings nested?"""
    if data.count(_BRACE) + (data.count(_BRACKET) if _BRACKET in data else 0) <= DEPTH_MAX:
        return
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH_MAX:
            raise Rejected(f"the JSON text is nested deeper than {DEPTH_MAX}", Code.VALUE_TOO_LARGE)


def _read(data: bytes, start: int, writer: WriterSchema, reader: Any) -> Any:
    """The value of the Avro body that begins at `start`; with a contract as `reader`, resolved to it by Avro's rules.

    Raises:
        Rejected: the bytes are not exactly one value of the writer's schema, or the contract cannot be read from it.
    """
    try:
        value, end = writer.read(data, start)
        if end == len(data):
            return value if reader is None else _resolved(data, start, writer, reader)
    except IndexError:
        raise Rejected("the Avro body is cut off", Code.VALUE_UNREADABLE) from None
    except _AVRO_ERRORS as error:
        raise Rejected(
            f"the Avro body cannot be read: {error or type(error).__name__}", Code.VALUE_UNREADABLE
        ) from None
    raise Rejected(f"the Avro body has {len(data) - end} bytes more than its value", Code.VALUE_UNREADABLE)


def _resolved(data: bytes, start: int, writer: WriterSchema, reader: Any) -> Any:
    body = io.BytesIO(data)
    body.seek(start)
    return fastavro.schemaless_reader(body, writer.schema, reader)


def _convert(contract: RecordSchema, value: Any) -> Any:
    try:
        return msgspec.convert(value, contract.type, dec_hook=convert)
    except msgspec.ValidationError as error:
        raise Rejected(f"not {contract.name}: {error}", Code.VALUE_UNREADABLE) from None


def _too_large(data: bytes, topic: str) -> Rejected:
    return Rejected(
        f"its record for {topic} has {len(data)} bytes; less than {OUTPUT_BYTES_MAX} can be written", Code.OUTPUT_WRONG
    )
