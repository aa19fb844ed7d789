"""Values with different representations in JSON and Avro: bytes, 32-bit floats, dates, times, timestamps and UUIDs.

Decoding: a JSON text or number, or fastavro's value of Avro's bytes, becomes one Python value, the same for each
representation. Encoding: the Python value becomes the number, text or bytes that Avro stores, or is rejected. Floats
are rounded to 32 bits. No other value is rounded or truncated, and the machine's time zone has no effect.

- date                        date       "2021-12-01", or days since 1970
- time-millis, -micros        time       "12:00:00.5", or milliseconds or microseconds since midnight
- timestamp-millis, -micros   datetime   in UTC; "2021-12-01T12:00:00+01:00" or Z, or a number of them since 1970
- local-timestamp-…           datetime   without a zone; "2021-12-01T12:00:00", or a number
- uuid                        UUID       its text
- bytes, fixed                bytes      base64
- float                       float      a number, rounded to 32 bits
"""

import base64
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from onefold.avro_types import TYPES, key

_DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_LOCAL = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_US = timedelta(microseconds=1)

_ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?"
_TIME = re.compile(_CLOCK)
_MOMENT = re.compile(rf"({_DATE.pattern})[T ]({_CLOCK})(Z|([+-])([0-9]{{2}}):([0-9]{{2}}))?")


@dataclass(frozen=True)
class Logical:
    """A type with its own representation.

    Attributes:
        take: converts a JSON or fastavro value; raises ValueError, TypeError or OverflowError for an invalid value.
        give: converts to the value that Avro stores; raises the same errors.
    """

    take: Callable[[Any], Any]
    give: Callable[[Any], Any]


class _Kind(type):
    """The metaclass of the types for which msgspec calls `convert`. The check of the result accepts the Python type."""

    python: type
    logical: Logical

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.python)


def annotation(schema: Any, found: Logical) -> Any:
    """Return a type that represents a schema in msgspec annotations. The decoder must use `convert`."""
    python = TYPES[key(schema)].python
    return _Kind(python.__name__, (), {"python": python, "logical": found})


def is_annotation(kind: Any) -> bool:
    """Return whether `annotation` created the type."""
    return isinstance(kind, _Kind)


def convert(kind: Any, value: Any) -> Any:
    """Convert a value to a type unknown to msgspec, as msgspec's `dec_hook`."""
    try:
        return kind.logical.take(value)
    except OverflowError as error:
        raise ValueError("out of range") from error


def logical(schema: Any) -> Logical | None:
    """Return the representation of an Avro type's values. None: the type needs no conversion, or is a decimal, whose
    digits only a JSON parser sees."""
    found = key(schema)
    return _fixed(schema["size"]) if found == ("fixed", "") else LOGICAL.get(found)


def is_decimal(schema: Any) -> bool:
    """Return whether the schema is a decimal, in bytes or of fixed size."""
    return key(schema)[1] == "decimal"


def spelled(value: Any) -> Any:
    """Return a value's JSON representation, for `json.dumps(default=...)`."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | time | UUID | Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no spelling in JSON")


# --- Avro's carrier types


def lowering(schema: Any) -> Callable[[Any], Any] | None:
    """Return a converter from values of a parsed schema to the values that Avro stores; None if no conversion is needed."""
    if isinstance(schema, list):
        return _lower_union([branch for branch in schema if branch != "null"])
    if is_decimal(schema):
        return _decimal_giver(schema)
    if found := logical(schema):
        return found.give
    match schema["type"] if isinstance(schema, dict) else schema:
        case "int":
            return _whole(32)
        case "array":
            return _lower_items(lowering(schema["items"]))
        case "map":
            return _lower_values(lowering(schema["values"]))
        case "record":
            return _lower_record(schema)
    return None


def _lower_items(item: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    return item and (lambda values: [item(value) for value in values])


def _lower_values(item: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    return item and (lambda values: {name: item(value) for name, value in values.items()})


def _lower_union(branches: list[Any]) -> Callable[[Any], Any] | None:
    if len(branches) == 1:
        lower = lowering(branches[0])
        return lower and (lambda value: None if value is None else lower(value))
    # fastavro chooses the branch by the Python type. Among the types in schemas, only decimals need a conversion first.
    give = next((_decimal_giver(branch) for branch in branches if is_decimal(branch)), None)
    return give and (lambda value: give(value) if isinstance(value, Decimal) else value)


def _lower_record(schema: dict[str, Any]) -> Callable[[Any], Any] | None:
    lowers = {field["name"]: lower for field in schema["fields"] if (lower := lowering(field["type"]))}
    if not lowers:
        return None

    def lowered(record: Any) -> dict[str, Any]:
        return {name: lowers[name](value) if name in lowers else value for name, value in record.items()}

    return lowered


def carried(schema: Any) -> Any:
    """Return the schema without logical types: the schema of the numbers, texts and bytes that are stored."""
    if isinstance(schema, list):
        return [carried(part) for part in schema]
    if isinstance(schema, dict):
        left_out = ("logicalType", "__fastavro_parsed__", "__named_schemas")
        return {name: carried(part) for name, part in schema.items() if name not in left_out}
    return schema


# --- dates and times


def _whole(bits: int) -> Callable[[Any], int]:
    def whole(value: Any) -> int:
        if type(value) is not int:
            raise TypeError(f"{value!r} is no whole number")
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError(f"{value} does not fit into {bits} bits")
        return value

    return whole


def _counted(value: Any, unit_us: int) -> timedelta:
    return timedelta(microseconds=_whole(64)(value) * unit_us)


def _exact(us: int, unit_us: int) -> int:
    if us % unit_us:
        raise ValueError("a moment with microseconds is not a whole number of milliseconds")
    return us // unit_us


def _take_date(value: Any) -> date:
    if isinstance(value, str):
        if not _DATE.fullmatch(value):
            raise ValueError("no date of the form 2021-12-01")
        return date.fromisoformat(value)
    return value if type(value) is date else date.fromordinal(_EPOCH_DAY + _whole(32)(value))


def _give_date(value: Any) -> int:
    return value.toordinal() - _EPOCH_DAY if type(value) is date else _whole(32)(value)


def _clock(groups: tuple[str | None, ...], unit_us: int) -> time:
    hour, minute, second, fraction = groups
    nanos = int((fraction or "").ljust(9, "0"))
    if nanos % (1000 * unit_us):
        raise ValueError(f"a fraction of a second is finer than {'milli' if unit_us > 1 else 'micro'}seconds")
    return time(int(hour or 0), int(minute or 0), int(second or 0), nanos // 1000)


def _time(unit_us: int) -> Logical:
    def take(value: Any) -> time:
        if isinstance(value, str):
            found = _TIME.fullmatch(value)
            if not found:
                raise ValueError("no time of the form 12:00:00")
            return _clock(found.groups(), unit_us)
        if type(value) is time:
            return value
        return (_EPOCH_LOCAL + timedelta(microseconds=_within_a_day(value))).time()

    def _within_a_day(value: Any) -> int:
        us = _whole(64)(value) * unit_us
        if not 0 <= us < _DAY_US:
            raise ValueError(f"{value} is no time of a day")
        return us

    def give(value: Any) -> int:
        if type(value) is not time:
            return _within_a_day(value) // unit_us
        if value.tzinfo is not None:
            raise ValueError("a time of day has no zone")
        return _exact((datetime.combine(_EPOCH_LOCAL, value) - _EPOCH_LOCAL) // _US, unit_us)

    return Logical(take, give)


def _moment(unit_us: int, epoch: datetime) -> Logical:
    """Return the representation of a timestamp: in UTC if the epoch has a zone, else local without a zone."""
    zoned = epoch.tzinfo is not None
    form = "2021-12-01T12:00:00Z" if zoned else "2021-12-01T12:00:00"

    def checked(value: datetime) -> datetime:
        if (value.utcoffset() is not None) != zoned:
            raise ValueError("a moment without a zone" if zoned else "a local moment with a zone")
        return value.astimezone(UTC) if zoned else value

    def take(value: Any) -> datetime:
        if isinstance(value, str):
            found = _MOMENT.fullmatch(value)
            if not found or (found[7] is not None) != zoned:
                raise ValueError(f"no moment of the form {form}")
            day, _, *clock, _, sign, hours, minutes = found.groups()
            wall = datetime.combine(date.fromisoformat(day), _clock(tuple(clock), unit_us), epoch.tzinfo)
            if sign is None:
                return wall
            if int(hours) > 23 or int(minutes) > 59:
                raise ValueError("no clock shows that offset")
            ahead = timedelta(hours=int(hours), minutes=int(minutes))
            return wall - ahead if sign == "+" else wall + ahead
        return checked(value) if isinstance(value, datetime) else epoch + _counted(value, unit_us)

    def give(value: Any) -> int:
        if isinstance(value, datetime):
            return _exact((checked(value) - epoch) // _US, unit_us)
        return _whole(64)(value)

    return Logical(take, give)


def _take_uuid(value: Any) -> UUID:
    if isinstance(value, UUID):
        return value
    # Python's UUID also accepts braces, a URN, and text without hyphens.
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ValueError("no id of the form 01234567-89ab-cdef-0123-456789abcdef")
    return UUID(value)


def _give_uuid(value: Any) -> str:
    return str(_take_uuid(value))


def _take_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is neither bytes nor base64")
    data = base64.b64decode(value, validate=True)
    if base64.b64encode(data).decode() != value:
        raise ValueError("no base64 as a writer makes it")
    return data


def _give_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{value!r} is no bytes")
    return bytes(value)


def _fixed(size: int) -> Logical:
    def sized(data: bytes) -> bytes:
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes, not {size}")
        return data

    return Logical(lambda value: sized(_take_bytes(value)), lambda value: sized(_give_bytes(value)))


def _take_float(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    number = struct.unpack("<f", struct.pack("<f", value))[0]
    if not math.isfinite(number):
        raise ValueError("no finite number")
    return float(number)


def _give_float(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    struct.pack("<f", value)  # raises OverflowError, where fastavro would write an infinity
    return float(value)


def _decimal_giver(schema: dict[str, Any]) -> Callable[[Any], bytes]:
    """Return a decimal encoder. fastavro counts 1E+30 as one digit, and writes -128 with a superfluous byte."""
    scale, precision, size = schema.get("scale", 0), schema["precision"], schema.get("size")

    def give(value: Any) -> bytes:
        if type(value) not in (Decimal, int):
            raise TypeError(f"{value!r} is no decimal")
        sign, digits, exponent = Decimal(value).as_tuple()
        if not isinstance(exponent, int):
            raise ValueError(f"{value} is no number")
        number, shift = int("".join(map(str, digits))), exponent + scale
        # A shift beyond all digits is not computed: 1E+999999999 would use all memory.
        shifted = number * 10**shift if 0 <= shift <= precision else number and _shifted_down(number, shift)
        if shifted is None or shifted >= 10**precision:
            raise ValueError(f"{value} is no number of {precision} digits, {scale} of them after the point")
        whole = -shifted if sign else shifted
        length = ((whole if whole >= 0 else ~whole).bit_length() + 8) // 8
        return whole.to_bytes(size or length, "big", signed=True)

    return give


def _shifted_down(number: int, shift: int) -> int | None:
    """Shift decimal digits to the right. Return None if a digit would be lost, or the result has too many digits."""
    if shift > 0 or -shift > len(str(number)):
        return None
    quotient, lost = divmod(number, 10**-shift)
    return None if lost else quotient


_MILLIS, _MICROS = 1000, 1
#: By Avro type and logical type.
LOGICAL: dict[tuple[str, str], Logical] = {
    ("int", "date"): Logical(_take_date, _give_date),
    ("int", "time-millis"): _time(_MILLIS),
    ("long", "time-micros"): _time(_MICROS),
    ("long", "timestamp-millis"): _moment(_MILLIS, _EPOCH),
    ("long", "timestamp-micros"): _moment(_MICROS, _EPOCH),
    ("long", "local-timestamp-millis"): _moment(_MILLIS, _EPOCH_LOCAL),
    ("long", "local-timestamp-micros"): _moment(_MICROS, _EPOCH_LOCAL),
    ("string", "uuid"): Logical(_take_uuid, _give_uuid),
    ("bytes", ""): Logical(_take_bytes, _give_bytes),
    ("float", ""): Logical(_take_float, _give_float),
}
