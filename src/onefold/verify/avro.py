"""Avro bodies, and the schemas that they were written with.

Which schemas are taken is one rule for judge and judged, since a record is inadmissible when its schema is refused:
  - the text, with those of the schemas that it refers to, has at most 1 MiB and is an Avro schema; marks of fastavro in it
    (`__...`) say nothing;
  - it is no more than 64 levels deep (records, arrays, maps and unions, by name or in place) and not recursive;
  - an enum has at most 4096 symbols, a union at most 256 branches, the size of a fixed is an integer;
  - outside of arrays and maps a value is made of at most 10,000 values, and in them of at most four for each byte.

A number that the writer counts in another unit than the contract is not taken: timestamp-millis for timestamp-micros, or
for a date. Of other logical types only decimals mean something: from 1 to 256 bytes, and no more digits than the precision
says. Any of the bytes may repeat the sign: Avro demands no shortest form.
"""

import io
import json
import struct
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import fastavro
import fastavro.read
import fastavro.schema

from onefold.verify import dates, encoding

TEXT_MAX = 1_048_576
DEPTH_MAX = 64
SYMBOLS_MAX = 4096
BRANCHES_MAX = 256
VALUES_MAX = 10_000
VALUES_PER_BYTE = 4
DECIMAL_BYTES_MAX = 256
SCALE_MAX = 617
_REASON_MAX = 200

# fastavro finds readers of logical types by name. The judge's have names of their own, and replace nobody else's.
_DECIMAL = "judged-decimal"
# The sizes of those that are not at least one byte long, and of all others one.
_PRIMITIVES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}

_NAMED = ("record", "error", "enum", "fixed")

_BROKEN = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    fastavro.read.SchemaResolutionError,
    struct.error,
)
#: What is raised for a text that is no schema.
NO_SCHEMA = (*_BROKEN, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType)


class InvalidSchema(Exception):
    """A schema or a body that is not taken; the text is the reason."""


class WrittenSchema(NamedTuple):
    """A schema of a writer.

    Attributes:
        wire: parsed, as it is on the wire.
        meant: parsed, with its decimals for the judge.
        counted: parsed, with the logical types by which its numbers count something.
        exact: reads the values of a body, as on the wire, if its bytes are as Avro's specification has them.
        plain: what `wire` says of a body is what `meant` says, too.
    """

    wire: Any
    meant: Any
    counted: Any
    exact: encoding.Read
    plain: bool


def written(raw: Any) -> WrittenSchema:
    """A schema, as JSON has it; raises what fastavro raises for one that is none."""
    # fastavro checks a decimal's precision and scale, and nothing of a logical type of ours.
    fastavro.parse_schema(_rid(raw, "decimal"))
    wire = fastavro.parse_schema(_rid(raw))
    meant = fastavro.parse_schema(_rid(raw, _DECIMAL))
    counted = fastavro.parse_schema(_rid(raw, units=True))
    return WrittenSchema(wire, meant, counted, encoding.reader(wire), wire == meant)


def name_of(name: str, namespace: str) -> str:
    """A name with its namespace."""
    return f"{namespace}.{name}" if namespace and "." not in name else name


def with_named(kind: Any, known: Mapping[str, Any], namespace: str = "") -> Any:
    """A type with the definitions of those known types that it uses, each where it is used first."""
    return _Filled(known).of(kind, namespace)


class _Filled:
    """Puts definitions into one type. `known`: by their full names, each with all definitions that it needs itself."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._there: set[str] = set()

    def of(self, kind: Any, namespace: str, *, is_copy: bool = False) -> Any:
        """`is_copy`: of a definition that is put in. Whatever else is defined twice is no schema, and stays so."""
        if isinstance(kind, list):
            return [self.of(branch, namespace, is_copy=is_copy) for branch in kind]
        if isinstance(kind, str):
            return self._named(kind, namespace)
        if kind["type"] in _NAMED:
            full = name_of(kind["name"], kind.get("namespace", namespace))
            if is_copy and full in self._there:
                return full
            self._there.add(full)
            space, _, name = full.rpartition(".")
            fields = [
                {**part, "type": self.of(part["type"], space, is_copy=is_copy)} for part in kind.get("fields", ())
            ]
            return {**kind, "name": name, "namespace": space, **({"fields": fields} if "fields" in kind else {})}
        parts = {part: self.of(kind[part], namespace, is_copy=is_copy) for part in ("items", "values") if part in kind}
        if parts or kind["type"] in _PRIMITIVES:
            return {**kind, **parts}
        return self.of(kind["type"], namespace, is_copy=is_copy)

    def _named(self, name: str, namespace: str) -> Any:
        full = name_of(name, namespace)
        if name in _PRIMITIVES or full in self._there or full not in self._known:
            return name if name in _PRIMITIVES else full
        return self.of(self._known[full], "", is_copy=True)


_SAME: dict[tuple[int, int], tuple[WrittenSchema, WrittenSchema, bool]] = {}


def same_units(writer: WrittenSchema, contract: WrittenSchema) -> bool:
    """Do numbers of both that count something count the same, where a field of one is that of the other, also by an alias?"""
    pair = id(writer.counted), id(contract.counted)
    if pair not in _SAME:
        tables = dict[str, Any](), dict[str, Any]()
        for one, table in zip((writer, contract), tables, strict=True):
            _define(one.counted, "", table)
        _SAME[pair] = writer, contract, _agree(writer.counted, contract.counted, *tables, set())
    return _SAME[pair][2]


def _agree(one: Any, two: Any, ones: dict[str, Any], twos: dict[str, Any], seen: set[tuple[int, int]]) -> bool:
    one = ones.get(one, one) if isinstance(one, str) else one
    two = twos.get(two, two) if isinstance(two, str) else two
    if isinstance(one, list):
        return all(_agree(branch, two, ones, twos, seen) for branch in one)
    if isinstance(two, list):
        return all(_agree(one, branch, ones, twos, seen) for branch in two)
    if isinstance(one, str) or isinstance(two, str):
        return True
    if dates.knows(one) and dates.knows(two) and "string" not in (one["type"], two["type"]):
        return bool(one["logicalType"] == two["logicalType"])
    if one["type"] != two["type"]:
        return True
    if one["type"] in ("array", "map"):
        part = "items" if one["type"] == "array" else "values"
        return _agree(one[part], two[part], ones, twos, seen)
    if "fields" not in one or (id(one), id(two)) in seen:
        return True
    seen.add((id(one), id(two)))
    by_name = {field["name"]: field["type"] for field in one["fields"]}
    return all(
        _agree(by_name[name], field["type"], ones, twos, seen)
        for field in two["fields"]
        for name in (field["name"], *field.get("aliases", ()))
        if name in by_name
    )


def schema(text: str, referenced: Mapping[str, str] = MappingProxyType({})) -> WrittenSchema:
    """A writer's schema from its text, and from those of the schemas whose types it uses; raises `InvalidSchema`."""
    if (size := len(text) + sum(map(len, referenced.values()))) > TEXT_MAX:
        raise InvalidSchema(f"{size} characters")
    try:
        known: dict[str, Any] = {}
        for other in referenced.values():
            _define(json.loads(other), "", known)
        raw = json.loads(text)
        parsed = written(with_named(raw, known) if known else raw)
        cost = _Costs().of(parsed.wire)
    except NO_SCHEMA as error:
        raise InvalidSchema(f"no schema: {type(error).__name__}: {str(error)[:_REASON_MAX]}") from None
    if cost.most > VALUES_MAX:
        raise InvalidSchema("too many values in one record")
    return parsed


def _define(kind: Any, namespace: str, known: dict[str, Any]) -> None:
    """Collect the types that have names, by their full names."""
    if isinstance(kind, list):
        for branch in kind:
            _define(branch, namespace, known)
    if not isinstance(kind, dict):
        return
    within = [(kind[part], namespace) for part in ("type", "items", "values") if part in kind]
    if kind["type"] in _NAMED:
        full = name_of(kind["name"], kind.get("namespace", namespace))
        space = full.rpartition(".")[0]
        known.setdefault(full, {**kind, "name": full.rpartition(".")[2], "namespace": space})
        within += [(field["type"], space) for field in kind.get("fields", ())]
    for part, space in within:
        _define(part, space, known)


def read(body: bytes, writer: WrittenSchema, reader: Any = None) -> Any:
    """The value of a body that is exactly one value; raises `InvalidSchema`."""
    try:
        # fastavro reads numbers of any length and stops where the record ends.
        found, end = writer.exact(body, 0)
        if end < len(body):
            raise InvalidSchema("the Avro body goes on behind its value")
        if writer.plain and reader is None:
            return found
        if reader is not None and writer.wire != writer.meant:
            # A decimal must be one also in a field that the contract lacks, and that is passed over.
            fastavro.schemaless_reader(io.BytesIO(body), writer.meant, None)
        return fastavro.schemaless_reader(io.BytesIO(body), writer.meant, reader)
    except _BROKEN as error:
        raise InvalidSchema(f"broken Avro: {type(error).__name__}") from None


def _rid(raw: Any, decimals: str | None = None, *, units: bool = False) -> Any:
    """The schema without logical types, decimals excepted where a name for them is given, and `units` if they are asked for, and
    without fastavro's marks."""
    if isinstance(raw, list):
        return [_rid(branch, decimals, units=units) for branch in raw]
    if not isinstance(raw, dict):
        return raw
    left = {key: part for key, part in raw.items() if key != "logicalType" and not key.startswith("__")}
    if decimals is not None and raw.get("logicalType") == "decimal":
        left["logicalType"] = decimals
    if units and all(isinstance(raw.get(key), str) for key in ("type", "logicalType")) and dates.knows(raw):
        left["logicalType"] = raw["logicalType"]
    for key in {"type", "fields", "items", "values"} & left.keys():
        left[key] = _rid(left[key], decimals, units=units)
    return left


def _decimal(data: bytes, writer: Any, reader: Any = None) -> Decimal:
    """What the bytes mean, exactly; raises ValueError for a decimal that is not taken."""
    scale, precision = writer.get("scale", 0), writer.get("precision")
    if not 0 < len(data) <= DECIMAL_BYTES_MAX:
        raise ValueError("too long a decimal, or none")
    if {type(scale), type(precision)} != {int} or scale > SCALE_MAX:
        raise ValueError("no scale and precision")
    unscaled = _integer(data)
    digits = tuple(map(int, str(abs(unscaled))))
    if len(digits) > precision:
        raise ValueError("more digits than the precision")
    return Decimal((int(unscaled < 0), digits, -scale))


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


fastavro.read.LOGICAL_READERS[f"bytes-{_DECIMAL}"] = _decimal
fastavro.read.LOGICAL_READERS[f"fixed-{_DECIMAL}"] = _decimal


class _Cost(NamedTuple):
    """Of one value outside of arrays and maps: how many values at most, how many fewer than its bytes allow, how deep."""

    most: int
    spare: int
    deep: int = 0


def _of_bytes(number: int) -> _Cost:
    return _Cost(1, VALUES_PER_BYTE * number - 1)


class _Costs:
    """What values cost by their types; a name of `None` is being defined."""

    def __init__(self) -> None:
        self._named: dict[str, _Cost | None] = {}

    def of(self, kind: Any) -> _Cost:
        """The cost of a parsed type; raises `InvalidSchema` for a type that costs too much."""
        if isinstance(kind, str):
            return self._by_name(kind)
        if isinstance(kind, list):
            return self._deeper(self._union([self.of(branch) for branch in kind]))
        match kind["type"]:
            case "record" | "error":
                self._named[kind["name"]] = None
                fields = [self.of(field["type"]) for field in kind["fields"]]
                cost = self._deeper(
                    _Cost(1 + sum(f.most for f in fields), sum(f.spare for f in fields) - 1, _deep(fields))
                )
            case "array" | "map" as whole:
                return self._deeper(self._items(whole, self.of(kind["items" if whole == "array" else "values"])))
            case "enum":
                if len(kind["symbols"]) > SYMBOLS_MAX:
                    raise InvalidSchema("too many symbols in an enum")
                cost = _of_bytes(1)
            case "fixed":
                if not isinstance(kind["size"], int):
                    raise InvalidSchema("the size of a fixed is no integer")
                cost = _of_bytes(kind["size"])
            case primitive:
                return _of_bytes(_PRIMITIVES[primitive])
        self._named[kind["name"]] = cost
        return cost

    def _by_name(self, name: str) -> _Cost:
        if name in _PRIMITIVES:
            return _of_bytes(_PRIMITIVES[name])
        cost = self._named[name]
        if cost is None:
            raise InvalidSchema("recursive")
        return cost

    def _union(self, branches: list[_Cost]) -> _Cost:
        if len(branches) > BRANCHES_MAX:
            raise InvalidSchema("too many branches in a union")
        most = max((branch.most for branch in branches), default=0)
        # One byte is the number of the branch.
        spare = VALUES_PER_BYTE + min((branch.spare for branch in branches), default=0)
        return _Cost(most, spare, _deep(branches))

    def _items(self, whole: str, item: _Cost) -> _Cost:
        # The key of a map is a value with a byte of its own.
        if item.spare + (VALUES_PER_BYTE - 1 if whole == "map" else 0) < 0:
            raise InvalidSchema(f"a {whole} of values that take (nearly) no bytes")
        return _of_bytes(1)._replace(deep=item.deep)

    def _deeper(self, cost: _Cost) -> _Cost:
        if cost.deep >= DEPTH_MAX:
            raise InvalidSchema("nested too deep")
        return cost._replace(deep=cost.deep + 1)


def _deep(parts: list[_Cost]) -> int:
    return max((part.deep for part in parts), default=0)
