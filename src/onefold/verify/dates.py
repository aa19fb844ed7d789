"""Dates, times, timestamps and ids, in the spellings of inputs.

- date: `2021-12-01`, or days since 1970
- time: `12:00`, `12:00:00`, `12:00:00.5`, with up to nine digits, and zeros beyond the precision of the type; or an integer of
  milliseconds or microseconds since midnight
- timestamp: a date, `T` or a space, a time, and `Z` or an offset such as `+01:00`; or an integer of milliseconds or
  microseconds since 1970-01-01 UTC. The value is in UTC.
- local timestamp: the same without Z or offset. The value has no zone.
- id: 32 hexadecimal digits with hyphens in the usual places

All values are in the years 1 to 9999. Values of Python's classes, as returned by fastavro, stay unchanged.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

_CARRIERS = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "uuid": "string",
}
_CLASSES = {"date": date, "time": time, "uuid": UUID}
_SPELLING = re.compile(
    "(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})?"
    "(?P<between>[T ])?"
    r"(?P<hour>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?P<fraction>\.[0-9]{1,9})?)?)?"
    "(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?"
)
_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
# The parts of each kind in a text: a day, the separator of day and time, a time, a zone.
_PARTS = {
    "date": (True, False, False, False),
    "time": (False, False, True, False),
    "timestamp": (True, True, True, True),
    "local-timestamp": (True, True, True, False),
}


def knows(schema: dict[str, Any]) -> bool:
    """Return whether the logical type is known here and stands on its own Avro type; Avro ignores a misplaced logical type."""
    return bool(_CARRIERS.get(schema.get("logicalType", ""), "-") == schema["type"])


def read(schema: dict[str, Any], value: Any) -> Any:
    """Return the value of a text, an integer or a fastavro value; raises ValueError or OverflowError for an invalid one."""
    logical = schema["logicalType"]
    kind, _, unit = logical.rpartition("-") if logical[-6:] in ("millis", "micros") else (logical, "", "micros")
    if type(value) is _CLASSES.get(kind, datetime):
        return value
    if type(value) is str:
        return _id(value) if kind == "uuid" else _text(kind, 6 if unit == "micros" else 3, value)
    if kind == "uuid" or type(value) is not int:
        raise ValueError(value)
    # An integer too large for the type lies beyond the years 1 to 9999, or beyond midnight.
    return _number(kind, timedelta(microseconds=value) if unit == "micros" else timedelta(milliseconds=value), value)


def _id(text: str) -> UUID:
    if not _ID.fullmatch(text):
        raise ValueError(text)
    return UUID(text)


def _number(kind: str, since: timedelta, number: int) -> Any:
    if kind == "date":
        return date(1970, 1, 1) + timedelta(days=number)
    if kind == "time":
        if since.days != 0:
            raise ValueError(number)
        return (datetime.min + since).time()
    return datetime(1970, 1, 1, tzinfo=UTC if kind == "timestamp" else None) + since


def _text(kind: str, digits: int, text: str) -> Any:
    found = _SPELLING.fullmatch(text)
    if not found or tuple(found[part] is not None for part in ("day", "between", "hour", "zone")) != _PARTS[kind]:
        raise ValueError(text)
    fraction = (found["fraction"] or ".")[1:].ljust(9, "0")
    if int(fraction[digits:]):
        raise ValueError(text)
    day = date.fromisoformat(found["day"]) if found["day"] else date(1970, 1, 1)
    if kind == "date":
        return day
    hour, minute, second = (*map(int, found["hour"].partition(".")[0].split(":")), 0)[:3]
    clock = time(hour, minute, second, int(fraction[:6]))
    if kind == "time":
        return clock
    moment = datetime.combine(day, clock, UTC if found["zone"] else None)
    if (found["zone"] or "Z") == "Z":
        return moment
    ahead = time.fromisoformat(found["zone"][1:])
    offset = timedelta(hours=ahead.hour, minutes=ahead.minute)
    return moment - offset if found["zone"][0] == "+" else moment + offset
