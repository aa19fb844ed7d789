"""Column types: the PostgreSQL types of a column, the spelling of its values in output records, and the comparison of values.

The type of a column is the type of its field in the schema, unless the workload names a different one.
"""

import functools
import math
import operator
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from onefold.error_codes import Code
from onefold.verify import dates
from onefold.verify.verdict import CannotTell

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _same(value: Any) -> Any:
    return value


class ColumnType(NamedTuple):
    """A type of columns.

    Attributes:
        types: the permitted PostgreSQL types.
        from_output: converts a value of an output record to a value of a row; never called with None.
        comparable: converts a value to a form in which equal values are equal; None: values are compared unconverted.
    """

    types: tuple[str, ...]
    from_output: Callable[[Any], Any] = _same
    comparable: Callable[[Any], Any] | None = None


def _read(carrier: str, logical: str) -> Callable[[Any], Any]:
    """Return a converter from the Avro number or text in an output record to a date, time or id."""
    return functools.partial(dates.read, {"type": carrier, "logicalType": logical})


def _number(value: Any) -> Any:
    """Make NaN equal to NaN."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _number_32(value: Any) -> Any:
    """Round to 32 bits. PostgreSQL prints a `real` with only as many digits as identify the number."""
    try:
        return None if value is None else struct.pack("<f", value)
    except OverflowError:
        return value


_TEXT = ("text", "character varying", "character")
_REAL = ("double precision", "real")
_MOMENT = ("timestamp with time zone",)
_LOCAL = ("timestamp without time zone",)
_TIME = ("time without time zone",)

KINDS = {
    # Avro's types and logical types.
    "boolean": ColumnType(("boolean",)),
    "int": ColumnType(("integer", "bigint")),
    "long": ColumnType(("bigint",)),
    "float": ColumnType(tuple(reversed(_REAL)), comparable=_number_32),
    "double": ColumnType(_REAL[:1], comparable=_number),
    "string": ColumnType(_TEXT),
    "enum": ColumnType(_TEXT),
    "bytes": ColumnType(("bytea",)),
    "fixed": ColumnType(("bytea",)),
    "decimal": ColumnType(("numeric",)),
    "date": ColumnType(("date",), _read("int", "date")),
    "time-millis": ColumnType(_TIME, _read("int", "time-millis")),
    "time-micros": ColumnType(_TIME, _read("long", "time-micros")),
    "timestamp-millis": ColumnType(_MOMENT, _read("long", "timestamp-millis")),
    "timestamp-micros": ColumnType(_MOMENT, _read("long", "timestamp-micros")),
    "local-timestamp-millis": ColumnType(_LOCAL, _read("long", "local-timestamp-millis")),
    "local-timestamp-micros": ColumnType(_LOCAL, _read("long", "local-timestamp-micros")),
    "uuid": ColumnType(("uuid",), _read("string", "uuid")),
    # Further types for a workload.
    "text": ColumnType(_TEXT),
    "timestamp": ColumnType(_LOCAL, datetime.fromisoformat),
    # Output records have both as integers: millionths, and microseconds since 1970.
    "millionths": ColumnType(("numeric",), lambda number: Decimal(number).scaleb(-6)),
    "instant": ColumnType(_MOMENT, lambda number: _EPOCH + timedelta(microseconds=number)),
}


def picked(
    names: Sequence[str], convert: Sequence[Callable[[Any], Any]]
) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Return a function from the fields of an output record to values of a row. The record must have all fields.

    Args:
        convert: for each field, the `from_output` of its type.
    """
    changed = [(at, to) for at, to in enumerate(convert) if to is not _same]
    taken = taking(names)
    if not changed:
        return taken

    def read(fields: dict[str, Any]) -> tuple[Any, ...]:
        values = list(taken(fields))
        for at, to in changed:
            if values[at] is not None:
                values[at] = to(values[at])
        return tuple(values)

    return read


def taking(places: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that takes the values at these places of a row, or of these fields, as a tuple."""
    # An itemgetter with one place returns no tuple.
    if len(places) > 1:
        return operator.itemgetter(*places)
    if not places:
        return lambda values: ()
    place = places[0]
    return lambda values: (values[place],)


def kind_of(schema: Any) -> str:
    """Return the column type for a field of this Avro type. Raises `CannotTell` for an Avro type without a column type."""
    others = [branch for branch in schema if branch != "null"] if isinstance(schema, list) else [schema]
    found = others[0] if len(others) == 1 else ""
    carrier, logical = (found["type"], found.get("logicalType")) if isinstance(found, dict) else (found, None)
    kind = logical if logical in KINDS else carrier
    if kind not in KINDS:
        raise CannotTell(
            Code.MODEL_WRONG,
            f"a column cannot be of the type {schema}: name the table's columns in its model, without this one",
        )
    return str(kind)
