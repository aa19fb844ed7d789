"""The types of Avro values, as the processor, Spark and PostgreSQL have them.

A logical type counts on its own carrier only; anywhere else Avro ignores a logical type. The verifier has a separate table.
"""

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

#: The types without a definition.
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


class Type(NamedTuple):
    """A type of a single value.

    Attributes:
        python: the class of the values of a handler.
        postgres: the type of a column.
        spark: the type in Spark SQL; "" if Spark has no such type, and reads the carrier.
    """

    python: type
    postgres: str
    spark: str


#: By the carrier and the logical type; "" for a carrier alone.
TYPES = {
    ("boolean", ""): Type(bool, "boolean", "boolean"),
    ("int", ""): Type(int, "integer", "int"),
    ("long", ""): Type(int, "bigint", "bigint"),
    ("float", ""): Type(float, "real", "float"),
    ("double", ""): Type(float, "double precision", "double"),
    ("string", ""): Type(str, "text", "string"),
    ("enum", ""): Type(str, "text", "string"),
    ("bytes", ""): Type(bytes, "bytea", "binary"),
    ("fixed", ""): Type(bytes, "bytea", "binary"),
    ("bytes", "decimal"): Type(Decimal, "numeric", "decimal"),
    ("fixed", "decimal"): Type(Decimal, "numeric", "decimal"),
    ("int", "date"): Type(date, "date", "date"),
    ("int", "time-millis"): Type(time, "time without time zone", ""),
    ("long", "time-micros"): Type(time, "time without time zone", ""),
    ("long", "timestamp-millis"): Type(datetime, "timestamp with time zone", "timestamp"),
    ("long", "timestamp-micros"): Type(datetime, "timestamp with time zone", "timestamp"),
    ("long", "local-timestamp-millis"): Type(datetime, "timestamp without time zone", "timestamp_ntz"),
    ("long", "local-timestamp-micros"): Type(datetime, "timestamp without time zone", "timestamp_ntz"),
    ("string", "uuid"): Type(UUID, "uuid", ""),
}


def key(schema: Any) -> tuple[str, str]:
    """The carrier of a schema that is no union, and the logical type that counts; the key in `TYPES` if there is one."""
    if not isinstance(schema, dict):
        return schema, ""
    found = schema["type"], str(schema.get("logicalType", ""))
    return found if found in TYPES else (schema["type"], "")
