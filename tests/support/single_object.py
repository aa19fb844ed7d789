"""Single-object encoding with fastavro alone, independent of the product."""

import io
from typing import Any

import fastavro
import fastavro.schema


def single_object(raw: dict[str, Any], value: dict[str, Any]) -> bytes:
    """Marker, fingerprint and body of a value, for a schema in JSON form."""
    schema = fastavro.parse_schema(raw)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    fingerprint = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(schema), "CRC-64-AVRO")
    return b"\xc3\x01" + bytes.fromhex(fingerprint) + out.getvalue()
