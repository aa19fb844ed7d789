"""The schemas of `avro/`: the record of each topic, and the types of the record's values."""

import functools
import sys
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import GenericAlias, MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import fastavro
import fastavro.schema
import msgspec

from onefold import contract_files, places, schema_history
from onefold.error_codes import Code
from onefold.processor.core.errors import Refused, Rejected
from onefold.processor.io import defaults, logical_types, schemas
from onefold.processor.io.avro_reader import WriterSchema, writer

#: The folder of the schemas.
FOLDER = places.data("avro")

#: The attribute of a decoded value for a field's earlier names.
UNSET = msgspec.UNSET

# JSON text may hold NUL as an escape; Postgres text cannot.
_TEXT_WITHOUT_NUL = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*\Z")]
_LONG = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_INT = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
# JSON has no NaN and no infinity. A state with NaN would be written as null, and could not be read again.
_FINITE = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_PRIMITIVES: dict[str, Any] = {
    "null": None,
    "boolean": bool,
    "int": _INT,
    "long": _LONG,
    "double": _FINITE,
    "string": _TEXT_WITHOUT_NUL,
}
# The pattern is slower than the rest of the parsing. A JSON parser returns finite numbers only.
_UNCHECKED = {**_PRIMITIVES, "string": str, "double": float}


# The schema of every pipeline's ticks, without a file: the schema belongs to the engine.
_TICK = {
    "type": "record",
    "name": "Tick",
    "namespace": "onefold",
    "fields": [{"name": "at_ms", "type": "long"}],
}


@dataclass(frozen=True)
class RecordSchema:
    """A record schema.

    Attributes:
        name: the full name, such as `runner.Update`.
        schema: parsed by fastavro.
        writer: the same schema as a writer's.
        reader: the same schema as a reader's: with defaults as values.
        prefix: the ten bytes before every single-object encoded value: marker and fingerprint (CRC-64-AVRO).
        earlier: the earlier versions of `avro/earlier/`, by prefix.
        type_unchecked: as `type`, without the search for NUL in texts: for bytes without NUL.
        type: a msgspec Struct with the schema's fields, for JSON and Avro values. msgspec needs `logical_types.convert` for
            the Struct.
    """

    name: str
    schema: Any
    writer: WriterSchema
    reader: Any
    prefix: bytes
    type_unchecked: type[msgspec.Struct]
    type: type[msgspec.Struct]
    earlier: Mapping[bytes, WriterSchema] = field(default_factory=dict)


def load(folder: Path = FOLDER, topics: Collection[str] | None = None) -> dict[str, RecordSchema]:
    """The existing schemas of these topics; of all topics if None.

    Raises:
        Refused: a schema cannot be used, two schemas claim a topic, or a schema cannot read records of an earlier version.
    """
    made: dict[int, RecordSchema] = {}
    try:
        found = contract_files.by_topic(folder, topics)
        for path, raw in found.values():
            if id(raw) not in made:
                made[id(raw)] = _read(path, raw)
    except contract_files.Unusable as error:
        raise Refused(Code.SCHEMA_WRONG, str(error)) from error
    return {topic: made[id(raw)] for topic, (_, raw) in found.items()}


def _read(path: Path, raw: dict[str, Any]) -> RecordSchema:
    try:
        return _contract(raw, schema_history.earlier(path.parent, raw))
    except contract_files.Unusable:
        raise
    except Rejected as error:
        raise contract_files.Unusable(f"{path}: {error}") from error
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise contract_files.Unusable(f"{path} is no usable schema: {error}") from error


def of_ticks() -> RecordSchema:
    """The schema of the topics of ticks."""
    return _contract(_TICK)


def _contract(raw: dict[str, Any], before: Mapping[bytes, dict[str, Any]] = MappingProxyType({})) -> RecordSchema:
    schema, name = fastavro.parse_schema(raw), contract_files.full_name(raw)
    written, earlier = writer(raw), {prefix: writer(was) for prefix, was in before.items()}
    for each in (written, *earlier.values()):
        schemas.check(name, each.schema)
    # A named type may be used by name; here each use is replaced by the type.
    whole: Any = fastavro.schema.expand_schema(raw)
    types = _struct(whole, _UNCHECKED), _struct(whole, _PRIMITIVES)
    reader = defaults.meant(fastavro.parse_schema(raw), whole)
    return RecordSchema(name, schema, written, reader, schema_history.header(raw), *types, earlier)


def _struct(record: dict[str, Any], primitives: dict[str, Any]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    renamed: list[_Renamed] = []
    for part in record["fields"]:
        name, kind = part["name"], _type(part["type"], primitives)
        default = _default(part, kind) if "default" in part else msgspec.NODEFAULT
        if aliases := tuple(part.get("aliases", ())):
            renamed.append(_Renamed(name, aliases, default))
            fields += [(either, kind | msgspec.UnsetType, UNSET) for either in (name, *aliases)]
        else:
            fields.append((name, kind) if default is msgspec.NODEFAULT else (name, kind, _each_its_own(default)))
    _refuse_equal_names(fields)
    # Values hold no cyclic references. Their exclusion from garbage collection speeds up decoding.
    options: dict[str, Any] = {"kw_only": True, "frozen": True, "gc": False}
    if renamed:
        options["namespace"] = {"__post_init__": lambda value: _by_new_names(value, renamed)}
    if reserved := next((found[0] for found in fields if found[0].startswith("__") and found[0].endswith("__")), None):
        raise ValueError(f"a field is called {reserved}, as only Python's own attributes are: give it another name")
    # Within a class Python puts the class's name before a name with two underscores, but not before underscores only.
    struct = msgspec.defstruct("_", fields, **options)
    struct.__name__ = struct.__qualname__ = record["name"].rpartition(".")[2]
    return struct


def _default(part: dict[str, Any], kind: Any) -> Any:
    return msgspec.convert(defaults.value(part["type"], part["default"]), kind, dec_hook=logical_types.convert)


def _each_its_own(default: Any) -> Any:
    if isinstance(default, list | dict | msgspec.Struct):
        return msgspec.field(default_factory=functools.partial(deepcopy, default))
    return default


class _Renamed(NamedTuple):
    """A field with earlier names, which JSON may still use. Avro's readers resolve earlier names without help."""

    name: str
    aliases: tuple[str, ...]
    default: Any


def _refuse_equal_names(fields: list[Any]) -> None:
    names = [found[0] for found in fields]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two fields are called {twice}, one of them by an alias")


def _by_new_names(value: msgspec.Struct, renamed: list[_Renamed]) -> None:
    """Take the field's value from an earlier name. An error here is a validation error for the decoder."""
    for name, aliases, default in renamed:
        given = [either for either in (name, *aliases) if getattr(value, either) is not UNSET]
        if len(given) > 1:
            raise ValueError(f"`{given[0]}` and `{given[1]}` are one field, by its name and by an earlier one")
        if not given and default is msgspec.NODEFAULT:
            raise ValueError(f"Object missing required field `{name}`")
        found = getattr(value, given[0]) if given else deepcopy(default)  # a separate list for each value
        for either in aliases:
            msgspec.structs.force_setattr(value, either, UNSET)
        msgspec.structs.force_setattr(value, name, found)


def _type(schema: Any, primitives: dict[str, Any]) -> Any:
    """The Python type of an Avro schema, for msgspec's strict checks."""
    if isinstance(schema, list):
        kinds = [_type(branch, primitives) for branch in schema]
        if len(kinds) - kinds.count(None) > 1 and any(map(logical_types.is_annotation, kinds)):
            raise TypeError(f"of {_branches(schema)}, JSON does not tell which one a value is")
        union = kinds[0]
        for kind in kinds[1:]:
            union = union | kind if union is not None else kind | None
        _check_union(schema, union)
        return union
    if logical_types.is_decimal(schema):
        return Decimal
    if found := logical_types.logical(schema):
        return logical_types.annotation(schema, found)
    if isinstance(schema, str):
        return primitives[schema]
    match schema["type"]:
        case "record":
            return _struct(schema, primitives)
        case "enum":
            return Literal[tuple(schema["symbols"])]
        case "array":
            return GenericAlias(list, (_type(schema["items"], primitives),))
        case "map":
            return GenericAlias(dict, (str, _type(schema["values"], primitives)))
        case primitive:
            return primitives[primitive]


def _check_union(schema: list[Any], union: Any) -> None:
    """Raise TypeError for a union whose values msgspec cannot distinguish, or that would crash msgspec."""
    names = {branch if isinstance(branch, str) else branch["type"] for branch in schema}
    if "string" in names and names & {"array", "map"}:
        # msgspec 0.22 corrupts memory when freeing a text's pattern beside a list or a dict.
        raise TypeError(
            f"of {_branches(schema)}, a text and a list or a map cannot be one field: give each a field of its own"
        )
    try:
        msgspec.json.Decoder(union, dec_hook=logical_types.convert)
    except TypeError:
        raise TypeError(f"of {_branches(schema)}, JSON does not tell which one a value is") from None


def _branches(schema: list[Any]) -> str:
    named = (branch if isinstance(branch, str) else branch.get("name") or branch["type"] for branch in schema)
    return " or ".join(str(name) for name in named if name != "null")
