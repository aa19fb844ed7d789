"""JSON objects that are spelled as most producers spell them, read by one pattern of their contract.

The fields stand in the contract's order, each once, under their own names, and those with a default may be missing; texts have no
escapes, and numbers no exponent and so few digits that they fit. All else, right or wrong, is not matched, and is read by
`json_text` and judged field by field. What is matched comes to the same there: the pattern makes reading faster, and decides
nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

#: Takes a text; None: it is spelled in another way.
Quick = Callable[[bytes], dict[str, Any] | None]

_Make = Callable[[Any], Any]
#: The value of a field that is missing, by its type and its default.
Default = Callable[[Any, Any], Any]
# How a type is written, with one group; and what makes a value of that, if not the text itself.
_Leaf = tuple[str, _Make | None]
# Makes a record of the values of all groups.
_Record = Callable[[list[Any]], dict[str, Any]]

# "*+" never gives back what it has taken: nothing here could use it, and a text that does not match is seen at once.
_SPACE = r"[ \t\r\n]*+"
# What was UTF-8 has no surrogate, and where there are no control characters there is no NUL.
_TEXT = r'"([^"\\\x00-\x1f]*+)"'
# `-0` is left out: as a whole number it has no sign, and Decimal and float would give it one.
_WHOLE = "(-?[1-9][0-9]{0,%d}|0)"
# With so few digits before the point none is infinite.
_NUMBER = r"((?:-?[1-9][0-9]{0,17}|0)(?:\.[0-9]++)?)"
_LEAVES: dict[str, _Leaf] = {
    "string": (_TEXT, None),
    "long": (_WHOLE % 17, int),  # 18 digits are within 64 bits
    "int": (_WHOLE % 8, int),  # and 9 within 32
    "double": (_NUMBER, float),
    "boolean": ("(true|false)", "true".__eq__),
}


class _Unknown(Exception):
    """There is no pattern for this type."""


def reader(fields: Mapping[str, Mapping[str, Any]], default: Default) -> Quick:
    """What reads an object with these fields of a contract; where one has a type without a pattern, it reads none."""
    makes: list[_Make | None] = []
    try:
        pattern, record = _object(fields.values(), default, makes)
    except _Unknown:
        return lambda value: None
    match = re.compile(f"{_SPACE}{pattern}{_SPACE}").fullmatch
    changed = [(at, make) for at, make in enumerate(makes) if make is not None]

    def read(value: bytes) -> dict[str, Any] | None:
        try:
            found = match(value.decode())
        except UnicodeDecodeError:
            return None
        if found is None:
            return None
        values = list(found.groups())
        for at, make in changed:
            values[at] = make(values[at])
        return record(values)

    return read


def _object(fields: Iterable[Mapping[str, Any]], default: Default, makes: list[_Make | None]) -> tuple[str, _Record]:
    """Adds to `makes` what makes a value of each group."""
    pattern, places, within = "", [], []
    for field in fields:
        name, kind, may_miss = field["name"], field["type"], False
        if isinstance(kind, dict) and kind["type"] == "record":
            written, record = _object(kind["fields"], default, makes)
            within.append((name, record))
        else:
            written, make = _leaf(kind)
            # The first one is looked for all the same: without it no comma comes before the second.
            may_miss = "default" in field and bool(pattern)
            if may_miss and not isinstance(kind, list):
                make = _or(default(kind, field["default"]), make)
            places.append((name, len(makes)))
            makes.append(make)
        part = f'{"," if pattern else ""}{_SPACE}"{re.escape(name)}"{_SPACE}:{_SPACE}{written}{_SPACE}'
        pattern += f"(?:{part})?" if may_miss else part

    def record_of(values: list[Any]) -> dict[str, Any]:
        found = {name: values[at] for name, at in places}
        for name, record in within:
            found[name] = record(values)
        return found

    return rf"\{{{pattern}\}}", record_of


def _or(default: Any, make: _Make | None) -> _Make:
    """Of what is missing the group has nothing."""
    return lambda text: default if text is None else make(text) if make else text


def _leaf(kind: Any) -> _Leaf:
    if isinstance(kind, str) and kind in _LEAVES:
        return _LEAVES[kind]
    if isinstance(kind, list) and len(kind) == 2 and kind[0] == "null":
        pattern, make = _leaf(kind[1])
        # Where null is written the group has nothing; and null is the only default that there can be.
        return f"(?:null|{pattern})", make and (lambda text: text if text is None else make(text))
    if isinstance(kind, dict) and kind.get("logicalType") == "decimal":
        return _NUMBER, Decimal
    if isinstance(kind, dict) and kind["type"] == "enum":
        return f'"({"|".join(map(re.escape, kind["symbols"]))})"', None
    raise _Unknown
