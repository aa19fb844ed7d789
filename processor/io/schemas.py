"""Limits for the writer schemas of a registry.

Without limits, a registered schema and a record of a few bytes could end the process or block the process for hours. A
record may hold any number of values without bytes. fastavro overflows the stack on deep data, and searches an
enum symbol by symbol. A refused schema refuses every record that names the schema.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import fastavro.schema

from onefold.avro_types import PRIMITIVES
from onefold.error_codes import Code
from onefold.processor.core.errors import Rejected
from onefold.processor.io.avro_reader import WriterSchema, writer

# Kafka's default for the largest record. A user who allows larger records must allow them here too.
INPUT_BYTES_MAX = 1024 * 1024
# A parser's own limit depends on the depth of its caller's stack. No real schema has so many levels.
DEPTH_MAX = 64
# The limit of a schema's text, as of a record: no real schema is larger.
TEXT_BYTES_MAX = INPUT_BYTES_MAX
# Values of a record outside of arrays and maps, with or without bytes. The limit bounds the time per record.
VALUES_MAX = 10_000
# Values per byte in arrays and maps, enclosing records included. The largest record then takes far less time than the watchdog
# allows. No real item has more than two.
VALUES_PER_BYTE_MAX = 4
# fastavro searches symbols and branches linearly at every value, so their number bounds the time of a record.
SYMBOLS_MAX = 4096
BRANCHES_MAX = 256
# The parser's reason may quote the whole schema.
_REASON_MAX = 200

_BYTES = {"null": 0, "float": 4, "double": 8}
_NAMED = ("record", "error", "enum", "fixed")


class _Weight(NamedTuple):
    """The cost of a schema's value outside of arrays and maps.

    Attributes:
        values: the greatest number of values in the value.
        slack: the number of further values that the bytes allow; for a union, the least slack of a branch.
        depth: levels of records, arrays, maps and unions, arrays and maps included.
    """

    values: int
    slack: int
    depth: int


def parse(schema_id: int, text: str, referenced: Sequence[str] = ()) -> WriterSchema:
    """Parse a schema. Raises `Rejected` with the reason if the text is no schema, or exceeds a limit.

    Args:
        referenced: the texts of the referenced schemas, each behind the schema's own references.
    """
    what = f"schema {schema_id} of the registry"
    size = len(text) + sum(map(len, referenced))
    if size > TEXT_BYTES_MAX:
        raise Rejected(f"{what} has {size} characters; at most {TEXT_BYTES_MAX} are taken", Code.WRITER_SCHEMA_UNUSABLE)
    try:
        raw = json.loads(text)
        parsed = writer(_Whole(map(json.loads, referenced)).of(raw, "") if referenced else raw)
    except RecursionError:
        raise Rejected(f"{what} is nested too deep to be parsed", Code.WRITER_SCHEMA_UNUSABLE) from None
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        # A default that no double can hold, a fixed that no memory can.
        ArithmeticError,
        fastavro.schema.SchemaParseException,
        fastavro.schema.UnknownType,
    ) as error:
        raise Rejected(f"{what} cannot be parsed: {str(error)[:_REASON_MAX]}", Code.WRITER_SCHEMA_UNUSABLE) from None
    check(what, parsed.schema)
    return parsed


class _Whole:
    """Make a schema self-contained: define a referenced type at the type's first use."""

    def __init__(self, others: Iterable[Any]) -> None:
        self._known: dict[str, tuple[Any, str]] = {}
        self._there: set[str] = set()
        for other in others:
            self._note(other, "")

    def _note(self, kind: Any, namespace: str) -> None:
        """Note the named types in a schema, with the namespaces of the types."""
        if isinstance(kind, list):
            for branch in kind:
                self._note(branch, namespace)
        elif isinstance(kind, dict):
            if kind["type"] in _NAMED:
                name, inner = _names(kind, namespace)
                self._known.setdefault(name, (kind, namespace))
                for field in kind.get("fields", ()):
                    self._note(field["type"], inner)
            for part in ("type", "items", "values"):
                self._note(kind.get(part), namespace)

    def of(self, kind: Any, namespace: str, *, copied: bool = False) -> Any:
        """Return the schema, or a part. `copied`: the part is from a referenced schema, where a defined type stays a name."""
        if isinstance(kind, list):
            return [self.of(branch, namespace, copied=copied) for branch in kind]
        if isinstance(kind, str):
            name = kind if "." in kind or not namespace else f"{namespace}.{kind}"
            if kind in PRIMITIVES or name in self._there or name not in self._known:
                return kind
            return self.of(*self._known[name], copied=True)
        if not isinstance(kind, dict):
            return kind
        if kind["type"] in _NAMED:
            name, inner = _names(kind, namespace)
            if copied and name in self._there:
                return name
            self._there.add(name)
            fields = [{**part, "type": self.of(part["type"], inner, copied=copied)} for part in kind.get("fields", ())]
            own = {"name": name.rpartition(".")[2], "namespace": inner}
            return {**kind, **own, **({"fields": fields} if "fields" in kind else {})}
        parts = {part: self.of(kind[part], namespace, copied=copied) for part in ("items", "values") if part in kind}
        return (
            {**kind, **parts}
            if parts or kind["type"] in PRIMITIVES
            else self.of(kind["type"], namespace, copied=copied)
        )


def _names(kind: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a definition, and the namespace within the definition."""
    name = kind["name"]
    space = name.rpartition(".")[0] if "." in name else kind.get("namespace", namespace)
    return (name if "." in name or not space else f"{space}.{name}"), space


def check(what: str, parsed: Any) -> None:
    """Raise `Rejected` if a parsed schema exceeds a limit; `what` names the schema."""
    weight = _weigh(what, parsed, {}, 0)
    if weight.values > VALUES_MAX:
        raise Rejected(
            f"{what} makes {weight.values} values of one record; at most {VALUES_MAX} are taken",
            Code.WRITER_SCHEMA_UNUSABLE,
        )


def _weigh(what: str, schema: Any, named: dict[str, _Weight | None], level: int) -> _Weight:
    """Return the weight of a parsed schema: with full names, and as a text, a list or a dict with a plain type.

    Weighs each definition once, so that the time does not depend on the number of uses. A name without a weight is still
    being defined.
    """
    if level > DEPTH_MAX:
        raise _too_deep(what)
    # A record may be called `null`; for fastavro the name is the primitive type.
    if isinstance(schema, str) and schema in named and schema not in PRIMITIVES:
        known = named[schema]
        if known is None:
            raise Rejected(f"{what} is recursive", Code.WRITER_SCHEMA_UNUSABLE)
        return known
    kind = "union" if isinstance(schema, list) else schema if isinstance(schema, str) else schema["type"]
    if kind == "union":
        weight = _weigh_union(what, schema, named, level)
    elif kind in ("array", "map"):
        weight = _weigh_items(what, schema, named, level)
    elif kind in ("record", "error"):
        named[schema["name"]] = None
        weight = named[schema["name"]] = _weigh_record(what, schema, named, level)
    elif kind == "enum":
        if len(schema["symbols"]) > SYMBOLS_MAX:
            raise Rejected(
                f"{what} has an enum of {len(schema['symbols'])} symbols; at most {SYMBOLS_MAX} are taken",
                Code.WRITER_SCHEMA_UNUSABLE,
            )
        weight = named[schema["name"]] = _leaf(1)
    elif kind == "fixed":
        if not isinstance(schema["size"], int):
            raise Rejected(f"{what} has a fixed whose size is no number", Code.WRITER_SCHEMA_UNUSABLE)
        weight = named[schema["name"]] = _leaf(schema["size"])
    else:
        weight = _leaf(_BYTES.get(kind, 1))
    if weight.depth > DEPTH_MAX:
        raise _too_deep(what)
    return weight


def _leaf(size: int) -> _Weight:
    return _Weight(1, VALUES_PER_BYTE_MAX * size - 1, 0)


def _weigh_record(what: str, schema: Any, named: dict[str, _Weight | None], level: int) -> _Weight:
    fields = [_weigh(what, field["type"], named, level + 1) for field in schema["fields"]]
    return _Weight(
        1 + sum(field.values for field in fields),
        sum(field.slack for field in fields) - 1,
        1 + max((field.depth for field in fields), default=0),
    )


def _weigh_union(what: str, schema: Any, named: dict[str, _Weight | None], level: int) -> _Weight:
    if len(schema) > BRANCHES_MAX:
        raise Rejected(
            f"{what} has a union of {len(schema)} branches; at most {BRANCHES_MAX} are taken",
            Code.WRITER_SCHEMA_UNUSABLE,
        )
    branches = [_weigh(what, branch, named, level + 1) for branch in schema]
    return _Weight(
        max((branch.values for branch in branches), default=0),
        # The number of the branch is a further byte.
        VALUES_PER_BYTE_MAX + min((branch.slack for branch in branches), default=0),
        1 + max((branch.depth for branch in branches), default=0),
    )


def _weigh_items(what: str, schema: Any, named: dict[str, _Weight | None], level: int) -> _Weight:
    is_array = schema["type"] == "array"
    item = _weigh(what, schema["items" if is_array else "values"], named, level + 1)
    if item.slack + (0 if is_array else _leaf(1).slack) < 0:
        raise Rejected(
            f"{what} has an array or a map of values that take no bytes, or nearly none", Code.WRITER_SCHEMA_UNUSABLE
        )
    return _leaf(1)._replace(depth=1 + item.depth)


def _too_deep(what: str) -> Rejected:
    return Rejected(f"{what} is nested deeper than {DEPTH_MAX}", Code.WRITER_SCHEMA_UNUSABLE)
