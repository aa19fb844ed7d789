"""Avro bodies, and their writer schemas.

The processor has the same rules for schemas, because a record with a refused schema is a dead letter:
  - The text, including the texts of referenced schemas, has at most 1,048,576 characters and is an Avro schema. Attributes of
    fastavro (`__...`) are ignored.
  - The schema is at most 64 levels deep (records, arrays, maps and unions, by name or in place) and not recursive.
  - An enum has at most 4096 symbols, a union at most 256 branches, and the size of a fixed is an integer.
  - A value has at most 10,000 values outside of arrays and maps. Inside arrays and maps, it has at most four values for each
    byte.

In the Confluent wire format, a number in a unit other than the schema's is refused: timestamp-millis for timestamp-micros, or
for a date. Among the remaining logical types, only decimals count: 1 to 256 bytes, and no more digits than the precision.
Leading bytes may repeat the sign, because Avro requires no shortest form.
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

# fastavro finds readers of logical types by name. Names of the verifier's own replace no existing reader.
_DECIMAL = "judged-decimal"
# The minimum size of each primitive type, in bytes.
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
#: The errors for a text that is no schema.
NO_SCHEMA = (*_BROKEN, fastavro.schema.SchemaParseException, fastavro.schema.UnknownType)


class InvalidSchema(Exception):
    """A refused schema or body; the text is the reason."""


class WrittenSchema(NamedTuple):
    """A writer schema.

    Attributes:
        wire: parsed, without logical types.
        meant: parsed, with the verifier's decimals.
        counted: parsed, with the logical types in `dates`, for their units.
        exact: reads the values of a body as in `wire`, and refuses bytes that violate Avro's specification.
        plain: whether `meant` equals `wire`.
    """

    wire: Any
    meant: Any
    counted: Any
    exact: encoding.Read
    plain: bool


def written(raw: Any) -> WrittenSchema:
    """Parse a schema in the form of JSON; raises fastavro's errors for an invalid one."""
    # fastavro validates precision and scale only under its own name for decimals.
    fastavro.parse_schema(_rid(raw, "decimal"))
    wire = fastavro.parse_schema(_rid(raw))
    meant = fastavro.parse_schema(_rid(raw, _DECIMAL))
    counted = fastavro.parse_schema(_rid(raw, units=True))
    return WrittenSchema(wire, meant, counted, encoding.reader(wire), wire == meant)


def name_of(name: str, namespace: str) -> str:
    """Return a name with its namespace."""
    return f"{namespace}.{name}" if namespace and "." not in name else name


def with_named(kind: Any, known: Mapping[str, Any], namespace: str = "") -> Any:
    """Return a type with the definitions of the known types in use, each at its first use."""
    return _Filled(known).of(kind, namespace)


class _Filled:
    """Inserts definitions into one type. `known`: by full name, each with all the definitions it needs."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._there: set[str] = set()

    def of(self, kind: Any, namespace: str, *, is_copy: bool = False) -> Any:
        """`is_copy`: the type is an inserted definition. Any further double definition remains an invalid schema."""
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
    """Return whether dates and times have the same units in both schemas, in fields with the same name or alias."""
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
    """Parse a writer schema from its text and the texts of referenced schemas; raises `InvalidSchema`."""
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
    """Collect the named types, by full name."""
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
    """Return the value of a body with exactly one value; raises `InvalidSchema`."""
    try:
        # fastavro accepts numbers of any length and ignores trailing bytes.
        found, end = writer.exact(body, 0)
        if end < len(body):
            raise InvalidSchema("the Avro body goes on behind its value")
        if writer.plain and reader is None:
            return found
        if reader is not None and writer.wire != writer.meant:
            # A decimal must be valid also in a field that the schema lacks, which the resolving reader skips.
            fastavro.schemaless_reader(io.BytesIO(body), writer.meant, None)
        return fastavro.schemaless_reader(io.BytesIO(body), writer.meant, reader)
    except _BROKEN as error:
        raise InvalidSchema(f"broken Avro: {type(error).__name__}") from None


def _rid(raw: Any, decimals: str | None = None, *, units: bool = False) -> Any:
    """Return the schema without fastavro's attributes and logical types. Decimals stay under the name `decimals`, if given;
    dates and times stay with `units`.
    """
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
    """Return the exact value of the bytes; raises ValueError for a refused decimal."""
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
    """The cost of a value outside of arrays and maps: its maximum number of values, how many more values its bytes allow, and
    its depth.
    """

    most: int
    spare: int
    deep: int = 0


def _of_bytes(number: int) -> _Cost:
    return _Cost(1, VALUES_PER_BYTE * number - 1)


class _Costs:
    """Computes the cost of types. A name with the cost `None` is being defined."""

    def __init__(self) -> None:
        self._named: dict[str, _Cost | None] = {}

    def of(self, kind: Any) -> _Cost:
        """Return the cost of a parsed type; raises `InvalidSchema` for a too expensive type."""
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
