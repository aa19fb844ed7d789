"""The schema files: JSON text with Avro schemas, read as self-contained records.

A file holds a record, a list of types (like a union), or a protocol with a list `types`. A type may use earlier types of the
same file by name. A record with a topic in `topics` is the topic's schema. The verifier has a separate reader, and does not
use this module.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import fastavro.schema

from onefold.avro_types import PRIMITIVES, key

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME = re.compile(rf"(?:{_NAME.pattern}\.)*{_NAME.pattern}")
_NAMED = {"record", "enum", "fixed"}
_BITS = {"int": 32, "long": 64}
# The greatest depth of a record's JSON text.
_DEPTH_MAX = 64


class Unusable(ValueError):
    """A file without a usable schema: a sentence with the file."""


def records(path: Path) -> list[dict[str, Any]]:
    """The records in a file, each with the definitions of all used types, and names with namespaces.

    Raises:
        Unusable: the file cannot be read, or Onefold cannot use a type in the file.
    """
    try:
        raw = json.loads(path.read_bytes().decode("utf-8-sig"))
        types, namespace = _types(raw)
        file = _File()
        found = [kind for kind in (file.defined(kind, namespace) for kind in types) if kind["type"] == "record"]
        for kind in found:
            fastavro.parse_schema(kind)
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Unusable(
            f"{path} is not UTF-8: the byte at {error.start} is {error.object[error.start]:#x}. Save it as UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        if not error.doc.strip():
            raise Unusable(f"{path} is empty: write a record schema of Avro into it, or delete the file") from error
        raise Unusable(
            f"{path} is no JSON: {error.msg} at line {error.lineno}, column {error.colno}. Correct it"
        ) from error
    except RecursionError as error:
        raise Unusable(f"{path} is nested too deep to be read") from error
    except _Wrong as error:
        raise Unusable(f"{path}: {error}") from error
    except (ValueError, TypeError, LookupError, fastavro.schema.SchemaParseException) as error:
        raise Unusable(f"{path} is no usable schema: {error}") from error
    return found


def by_topic(folder: Path, wanted: Collection[str] | None = None) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The file and the record of each wanted topic that a record in the folder names.

    Args:
        wanted: None: all topics. An unusable file counts only if a wanted topic has no schema without the file.

    Raises:
        Unusable: a file cannot be used, or two records name one topic.
    """
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    faults: dict[Path, Unusable] = {}
    for path in sorted(folder.glob("*.avsc")):
        try:
            here = records(path)
        except Unusable as fault:
            faults[path] = fault
            continue
        for topic, raw in ((named, each) for each in here for named in each.get("topics", ())):
            if wanted is not None and topic not in wanted:
                continue
            if topic in found:
                raise Unusable(f"{path} claims topic {topic}, which {full_name(found[topic][1])} has already")
            found[topic] = path, raw
    missing = [topic for topic in wanted or () if topic not in found]
    if faults and (wanted is None or missing):
        # A file with the name of a missing topic is the likely cause.
        raise next((fault for path, fault in faults.items() if _mentions(path, missing)), next(iter(faults.values())))
    return found


def _mentions(path: Path, topics: Iterable[str]) -> bool:
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return any(topic.encode() in text for topic in topics)


def full_name(raw: dict[str, Any]) -> str:
    """The name of a record, enum or fixed with its namespace."""
    name = str(raw["name"])
    return f"{raw['namespace']}.{name}" if "." not in name and raw.get("namespace") else name


def fits(kind: Any, value: Any) -> bool:
    """Whether `value` is a JSON default of the type. In the type, each use of a name is replaced by the type."""
    if isinstance(kind, list):
        return any(fits(branch, value) for branch in kind)
    match kind["type"] if isinstance(kind, dict) else kind:
        case "null":
            return value is None
        case "boolean":
            return type(value) is bool
        case "int" | "long" as number:
            return type(value) is int and -1 << _BITS[number] - 1 <= value < 1 << _BITS[number] - 1
        case "float" | "double":
            return type(value) in (int, float) and abs(value) <= sys.float_info.max  # without NaN, which JSON lacks
        case "string":
            return isinstance(value, str)
        case "bytes":
            return isinstance(value, str) and max(value, default="") <= "\xff"
        case "fixed":
            return isinstance(value, str) and max(value, default="") <= "\xff" and len(value) == kind["size"]
        case "enum":
            return value in kind["symbols"]
        case "array":
            return isinstance(value, list) and all(fits(kind["items"], item) for item in value)
        case "map":
            return isinstance(value, dict) and all(fits(kind["values"], item) for item in value.values())
        case "record":
            return isinstance(value, dict) and all(
                fits(part["type"], value[part["name"]]) if part["name"] in value else "default" in part
                for part in kind["fields"]
            )
    return False


class _Wrong(Exception):
    """The mistake and the remedy, without the file."""


def _types(raw: Any) -> tuple[list[Any], str]:
    """The types of a file in order, and the namespace of the types without a namespace."""
    if isinstance(raw, dict) and "protocol" in raw:
        raw, namespace = raw.get("types", []), str(raw.get("namespace") or "")
    else:
        raw, namespace = raw if isinstance(raw, list) else [raw], ""
    types = [kind for kind in raw if not _is_primitive(kind)] if isinstance(raw, list) else []
    if not any(isinstance(kind, dict) and kind.get("type") == "record" for kind in types):
        raise _Wrong(
            'the file holds no record: a schema is {"type": "record", "name": ..., "fields": [...]}, or a list with one'
        )
    return types, namespace


def _is_primitive(kind: Any) -> bool:
    return isinstance(kind, str) and kind in PRIMITIVES


class _File:
    """The types of a file, with the definitions by full name."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def defined(self, kind: Any, namespace: str) -> Any:
        """Take a type at the top of the file."""
        if not isinstance(kind, dict) or kind.get("type") not in _NAMED:
            raise _Wrong(f"{_told(kind)} stands beside its records: only records, enums and fixed types can")
        topics = kind.get("topics", [])
        if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
            raise _Wrong(f'"topics" is {_told(topics)}: it is a list of topics, as in "topics": ["orders.orders"]')
        return _Definition(self._known).resolved(kind, namespace, "it", 0)


class _Definition:
    """A type at the top of a file, with each used type defined once, at the first use."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known
        self._before = set(known)
        self._here: set[str] = set()
        self._open: list[str] = []
        self._is_copying = False

    def resolved(self, kind: Any, namespace: str, at: str, depth: int) -> Any:
        """The type with full names; raises `_Wrong` with the place `at`."""
        if depth > _DEPTH_MAX:
            raise _Wrong(f"{at} is nested deeper than {_DEPTH_MAX}")
        if isinstance(kind, str):
            return kind if kind in PRIMITIVES else self._by_name(kind, namespace, at, depth)
        if isinstance(kind, list):
            return self._union(kind, namespace, at, depth)
        if not isinstance(kind, dict) or not isinstance(kind.get("type"), str):
            raise _Wrong(f'{at} has the type {_told(kind)}: write a type\'s name, or {{"type": "...", ...}}')
        match kind["type"]:
            case "array" | "map" as whole:
                part = "items" if whole == "array" else "values"
                if part not in kind:
                    raise _Wrong(f'{at} is {whole} without "{part}": write the type of its {part} there')
                return {**kind, part: self.resolved(kind[part], namespace, at, depth + 1)}
            case "record" | "enum" | "fixed":
                return self._named(kind, namespace, at, depth)
            case primitive if primitive in PRIMITIVES:
                return _logical(kind, at)
            case name:
                return self._by_name(name, namespace, at, depth)

    def _by_name(self, name: str, namespace: str, at: str, depth: int) -> Any:
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        if full in self._open:
            raise _Wrong(
                f"{at} has the type {full}, which contains itself: a record of it has no greatest depth. Keep what is inside in "
                f"a text of JSON, or in records of its own that name each other by id"
            )
        if full in self._here:
            return full
        if full in self._before:
            copying, self._is_copying = self._is_copying, True
            found = self.resolved(self._known[full], "", at, depth)
            self._is_copying = copying
            return found
        raise _Wrong(
            f"{at} has the type {full}, which the file does not define before it: define it where it is used first"
        )

    def _union(self, branches: list[Any], namespace: str, at: str, depth: int) -> list[Any]:
        if not branches or any(isinstance(branch, list) for branch in branches):
            raise _Wrong(
                f"{at} is a union {'within a union' if branches else 'of no types'}: list the types of the union"
            )
        found = [self.resolved(branch, namespace, at, depth + 1) for branch in branches]
        names = [branch if isinstance(branch, str) else _branch(branch) for branch in found]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise _Wrong(f"{at} is a union that has {twice} twice: leave one of them out")
        return found

    def _named(self, kind: dict[str, Any], namespace: str, at: str, depth: int) -> Any:
        name = kind.get("name")
        if not isinstance(name, str) or not _FULL_NAME.fullmatch(name):
            raise _Wrong(f"{at} has the name {_told(name)} as {kind['type']}: a name has letters, digits and _")
        full = (
            full_name(kind) if "." in name or "namespace" in kind else full_name({"name": name, "namespace": namespace})
        )
        if not _FULL_NAME.fullmatch(full):
            raise _Wrong(f"{full} has a namespace that is none: it has names with dots between them")
        if self._is_copying and full in self._here:
            return full
        if full in self._here or (full in self._before and not self._is_copying):
            raise _Wrong(f"{full} is defined twice: use its name where it comes again")
        self._here.add(full)
        self._open.append(full)
        space, _, own = full.rpartition(".")
        found = {**kind, "name": own, "namespace": space}
        if kind["type"] == "record":
            found["fields"] = list(self._fields(full, kind.get("fields"), space, depth))
        elif kind["type"] == "enum":
            _check_symbols(full, kind.get("symbols"))
        elif type(kind.get("size")) is not int or kind["size"] < 0:
            raise _Wrong(f"{full} has the size {_told(kind.get('size'))}: write the number of its bytes")
        self._open.pop()
        self._known.setdefault(full, found)
        return _logical(found, at)

    def _fields(self, record: str, fields: Any, namespace: str, depth: int) -> Iterator[dict[str, Any]]:
        if not isinstance(fields, list):
            raise _Wrong(f'{record} has no list of fields: write "fields": [{{"name": ..., "type": ...}}]')
        seen: set[str] = set()
        for field in fields:
            name = field.get("name") if isinstance(field, dict) else field
            if not isinstance(name, str) or not isinstance(field, dict) or "type" not in field:
                raise _Wrong(f'{record} has the field {_told(field)}: write {{"name": ..., "type": ...}}')
            if not _NAME.fullmatch(name):
                raise _Wrong(f"{record} has a field called {name!r}: a name has letters, digits and _")
            if name in seen:
                raise _Wrong(f"{record} has two fields called {name}: rename or delete one of them")
            seen.add(name)
            at = f"field {name!r} of {record}"
            found = {**field, "type": self.resolved(field["type"], namespace, at, depth + 1)}
            if "default" in field and not fits(self._expanded(found["type"]), field["default"]):
                raise _Wrong(f"{at} has the default {_told(field['default'])}, which is none of its type: correct it")
            yield found

    def _expanded(self, kind: Any) -> Any:
        """The type with each use of a name replaced by the named type."""
        if isinstance(kind, str):
            return kind if kind in PRIMITIVES else self._expanded(self._known[kind])
        if isinstance(kind, list):
            return [self._expanded(branch) for branch in kind]
        parts = {part: self._expanded(kind[part]) for part in ("items", "values") if part in kind}
        if kind["type"] == "record":
            parts["fields"] = [{**field, "type": self._expanded(field["type"])} for field in kind["fields"]]
        return {**kind, **parts}


def _branch(kind: Any) -> str:
    return full_name(kind) if kind["type"] in _NAMED else str(kind["type"])


def _check_symbols(name: str, symbols: Any) -> None:
    if not isinstance(symbols, list) or not symbols:
        raise _Wrong(f'{name} has no symbols: write "symbols": ["..."]')
    for symbol in symbols:
        if not isinstance(symbol, str) or not _NAME.fullmatch(symbol):
            raise _Wrong(f"{name} has the symbol {_told(symbol)}: a symbol has letters, digits and _")
        if symbols.count(symbol) > 1:
            raise _Wrong(f"{name} has the symbol {symbol} twice: leave one of them out")


def _logical(kind: dict[str, Any], at: str) -> dict[str, Any]:
    """The type, with a precision and a scale for a decimal."""
    if key(kind)[1] == "decimal":
        precision, scale = kind.get("precision"), kind.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or not precision:
            raise _Wrong(
                f"{at} is a decimal of precision {_told(precision)} and scale {_told(scale)}: write how many digits it has, and "
                f"how many of them are behind the point"
            )
    return kind


def _told(value: Any) -> str:
    """A piece of a file, for a sentence."""
    return json.dumps(value, ensure_ascii=False)[:80]
