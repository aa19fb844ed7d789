"""Decode and encode values: one schema has three encodings for inputs, and one for outputs.

Inputs: JSON text, Avro single-object encoding, or the Confluent wire format, by the first byte. Each decodes to the
same msgspec Struct, checked against the same schema, so the rest of the processor does not know a value's encoding.
Outputs: Avro single-object encoding, which needs no server.

The admission checks are also here: size, depth, UTF-8, NUL, whole numbers within 64 bits, finite numbers, unknown
schemas, trailing bytes. A record that fails a check raises `Rejected` with one sentence, and never reaches a state.
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

# The largest value that the processor writes, such as a key's large state. Topics and producer allow more, for key and headers.
OUTPUT_BYTES_MAX = 8 * 1024 * 1024
# A magic byte and a big-endian schema id, from Confluent's wire format.
_CONFLUENT_HEADER_BYTES = 5

_NUL_ESCAPED = rb"\u0000"

# Byte values, since the search for one byte as a number is faster than the search for a text.
_BRACE, _BRACKET, _BACKSLASH = b"{[\\"
# A shorter text cannot hold more closed brackets than `DEPTH_MAX`: a list needs two bytes, an object with its name (`{"":}`)
# five. Unclosed brackets are no JSON, and the parser rejects them. The check saves the count of brackets for short texts.
_DEEP_BYTES_MIN, _DEEP_OBJECTS_BYTES_MIN = 2 * DEPTH_MAX, 5 * DEPTH_MAX

# A string, or the unclosed beginning of one. The end is optional, so the search never fails at a quote and never restarts at
# the next, which would take quadratic time. The repetition is possessive, so the search stores no backtracking positions.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKETS = re.compile(rb"[][{}]")

_AVRO_ERRORS = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    # Integers and decimals.
    ArithmeticError,
    AttributeError,
    MemoryError,
    RecursionError,
    struct.error,
    # The writer's schema does not resolve to the reader's schema.
    SchemaResolutionError,
)


class SchemaRegistry(Protocol):
    """The source of writer schemas, by Confluent schema id."""

    def schema(self, schema_id: int) -> WriterSchema:
        """Return the parsed writer schema. Raises `Rejected` for an unknown id, `Retriable` if the registry is unreachable."""


class AvroCodec:
    """The codec of one topology, by the schemas of its topics."""

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
        # By topic and schema id. A registry never changes the schema of an id.
        self._other_units: dict[tuple[str, int], str] = {}
        self._state_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
        self._state_decode: Callable[[bytes], Any] = msgspec.json.Decoder(topology.state).decode
        if topology.on_dead_letter == "park":
            self._state_encode = parking.encoding(self._state_encode)
            self._state_decode = parking.decoding(self._state_decode)

    def decode(self, record: Record) -> Any:
        """Return the value of an input record; None for a tombstone, if the topology accepts tombstones. Raises `Rejected` with
        the reason if the record does not match its schema.
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
            # The parser skips unknown fields without a check of their bytes.
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
        """Return an input record's value by its own encoding, without the schema's rules. A person can then see the reason
        of a rejection. Raises `Rejected` for an unreadable value.
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
            return json.loads(data)  # accepts more than msgspec, such as NaN
        except (ValueError, RecursionError) as error:
            raise Rejected(f"not JSON: {error}", Code.VALUE_UNREADABLE) from None

    def encode(self, topic: str, value: Fields) -> bytes:
        """Return the bytes of an output. Raises `Rejected` if the value does not match the topic's schema or is too large."""
        try:
            data = self._encode[topic](value)
        except _AVRO_ERRORS as error:
            raise Rejected(f"its output to {topic} breaks the schema: {error}", Code.OUTPUT_WRONG) from None
        if len(data) >= OUTPUT_BYTES_MAX:
            raise _too_large(data, topic)
        return data

    def encode_state(self, state: Any) -> bytes:
        """Return the bytes of a state: JSON, so that a person can read the changelog."""
        data = self._state_encode(state)
        if len(data) >= OUTPUT_BYTES_MAX + parking.head_bytes(data):
            raise _too_large(data, "the changelog")
        return data

    def decode_state(self, topology: Topology, data: bytes) -> Any:
        """Return the state. Raises `Corrupted` if the bytes are not a state of this topology.

        Raises `Refused` for the state of a parked key if the topology does not park keys.
        """
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
    """Decode a record of a processor to plain JSON data: decimals and times become text, bytes base64. Raises `Rejected`."""
    plain: dict[str, Any] = msgspec.to_builtins(_single_object(contract, data or b""))
    return plain


def decode_fields(contract: RecordSchema, data: bytes | None) -> dict[str, Any]:
    """Decode a record of a processor, by this schema or an earlier version, to Python values. Raises `Rejected`."""
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
    """Return a decoder without and one with a check for NUL. JSON text without an escaped NUL needs no check of each field."""
    unchecked, checked = (
        msgspec.json.Decoder(kind, dec_hook=convert) for kind in (contract.type_unchecked, contract.type)
    )
    return unchecked.decode, checked.decode


def _refuse_depth(data: bytes) -> None:
    """Raise `Rejected` if the text is nested too deeply. Only a text with many brackets is examined closely."""
    if data.count(_BRACE) + (data.count(_BRACKET) if _BRACKET in data else 0) <= DEPTH_MAX:
        return
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH_MAX:
            raise Rejected(f"the JSON text is nested deeper than {DEPTH_MAX}", Code.VALUE_TOO_LARGE)


def _read(data: bytes, start: int, writer: WriterSchema, reader: Any) -> Any:
    """Return the value of the Avro body that begins at `start`. If `reader` is a schema, resolve the value by Avro's rules.

    Raises:
        Rejected: the bytes are not exactly one value of the writer's schema, or do not resolve to the reader's schema.
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
