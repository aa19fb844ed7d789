"""The topics of a domain, what their records look like, and where their rows go: read from avro/ and sql/ alone.

A topic is landed when `sql/merge/<topic>.sql` is there: record by record. Or when there are `sql/reduce/<topic>.<name>.sql`:
each of these is a query in Spark SQL over the records of a batch, and `sql/merge/<topic>.<name>.sql` merges what it
gives. Its contract is the `avro/*.avsc` whose attribute "topics" names it. The engine knows no domain.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onefold import avro_types, contract_files, names, places, schema_history
from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured

#: The folder with the SQL of what the sink itself keeps, whatever it lands.
ENGINE_SQL = places.data("sql")

# Spark's decimals have no more digits, and a query that meets a larger one does not start.
_DECIMAL_DIGITS_MAX = 38
_STAGE = re.compile(r"(?<!:):stage\b")  # psql's variable syntax; `::stage` would be a cast
_BATCH = re.compile(r"(?<!:):batch\b")


@dataclass(frozen=True)
class StagingColumn:
    """A column of a staging table. `millis`: of a time of day, that it is counted in milliseconds and not microseconds."""

    name: str
    postgres_type: str
    millis: bool = False


# Every staged row says which output record it came from.
ORIGIN = (StagingColumn("topic", "text"), StagingColumn("partition", "integer"), StagingColumn("offset", "bigint"))


@dataclass(frozen=True)
class StagedRecord:
    """A record type. `header` is the 10 bytes that open each of its single-object values.

    `earlier` are the schemas that it had before, each by the header of its values: they are read as the type of today.
    """

    name: str
    schema: str
    header: bytes
    columns: tuple[StagingColumn, ...]
    required: tuple[str, ...]
    earlier: Mapping[bytes, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Where staged lines of one kind go: their columns, and the statement that merges them, cut at `:stage`.

    Lines of a `reduced` target stand for a batch as a whole: none of them belongs to one record. `reads`: the topic of these
    records.
    """

    name: str
    columns: tuple[StagingColumn, ...]
    merge: tuple[str, ...]
    reduced: bool = False
    reads: str = ""


@dataclass(frozen=True)
class Reduction:
    """A query over the records of one topic in a batch, cut at `:batch`. Its columns are known when Spark has read it."""

    name: str
    topic: str
    query: tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """All that the sink knows of a domain.

    `targets` holds one per topic that is landed record by record, and REJECTED; `reductions` are of the other topics.
    """

    name: str
    contracts: dict[str, StagedRecord]
    targets: dict[str, Target]
    reductions: tuple[Reduction, ...] = ()

    @property
    def reduced(self) -> list[str]:
        """The topics whose records are reduced, in order of name."""
        return sorted({reduction.topic for reduction in self.reductions})


# Records that cannot be landed are rows too: they are staged and merged like all others, in the same transaction.
REJECTED = "onefold.rejected"
_REJECTED_COLUMNS = (
    StagingColumn("sink", "text"),
    StagingColumn("reason", "text"),
    StagingColumn("value", "bytea"),
    *ORIGIN,
)


def load_domain(name: str, avro_root: Path, sql_root: Path) -> Domain:
    """Everything about domain `name`. Raises Misconfigured, naming the file, when a piece is missing or wrong."""
    merges = {path.stem for path in (sql_root / "merge").glob(f"{name}.*.sql")}
    reductions = tuple(_reduction(path, merges) for path in sorted((sql_root / "reduce").glob(f"{name}.*.sql")))
    plain = merges - {reduction.name for reduction in reductions}
    topics = sorted(plain | {reduction.topic for reduction in reductions})
    if not topics:
        raise Misconfigured(
            Code.SQL_WRONG, f"pipeline {name!r} has no sql/merge/{name}.*.sql: the sink has nothing to write"
        )
    try:
        files = contract_files.by_topic(avro_root, topics)
    except contract_files.Unusable as error:
        raise Misconfigured(Code.SCHEMA_WRONG, str(error)) from error
    missing = [topic for topic in topics if topic not in files]
    if missing:
        raise Misconfigured(
            Code.SCHEMA_MISSING, f'no schema in {avro_root} names the topic {missing[0]!r} in its "topics"'
        )
    contracts = {topic: _contract(*files[topic]) for topic in topics}
    for topic, contract in contracts.items():
        _check_names(files[topic][0], contract.columns, reduced=topic not in plain)
    targets = {topic: read_target(topic, (*contracts[topic].columns, *ORIGIN), sql_root) for topic in sorted(plain)}
    targets[REJECTED] = read_target(REJECTED, _REJECTED_COLUMNS, ENGINE_SQL)
    return Domain(name, contracts, targets, reductions)


def _check_names(path: Path, columns: tuple[StagingColumn, ...], *, reduced: bool) -> None:
    """Raises Misconfigured when the fields of a contract cannot be columns by their names.

    The fields of a topic that is reduced are columns in Spark alone, where `Offset` is `offset`.
    """
    fields, origin = [column.name for column in columns], [column.name for column in ORIGIN]
    advice = "give the field another name"
    for name in fields:
        fault = names.added(name.lower(), origin) if reduced else names.fault_of_column(name, origin)
        if fault:
            raise Misconfigured(Code.SCHEMA_WRONG, f"{path}: field {name!r} {fault}: {advice}")
    if twice := names.alike(fields):
        raise Misconfigured(
            Code.SCHEMA_WRONG,
            f"{path}: fields {twice[0]!r} and {twice[1]!r} differ by case only, and Spark takes them for one: {advice}",
        )


def _contract(path: Path, schema: dict[str, Any]) -> StagedRecord:
    """The contract in a file. Raises Misconfigured when it is not a flat record that the sink can land."""
    try:
        before = schema_history.earlier(path.parent, schema)
    except contract_files.Unusable as error:
        raise Misconfigured(Code.SCHEMA_WRONG, str(error)) from error
    named: dict[str, Any] = {}
    columns = tuple(_column(path, part, named) for part in schema["fields"])
    required = tuple(part["name"] for part in schema["fields"] if not _may_be_null(part["type"]))
    if not required:
        raise Misconfigured(
            Code.SCHEMA_WRONG, f"{path}: at least one field must not be nullable, it tells a record from garbage"
        )
    return StagedRecord(
        name=contract_files.full_name(schema),
        schema=json.dumps(schema),
        header=schema_history.header(schema),
        columns=columns,
        required=required,
        earlier={header: json.dumps(was) for header, was in before.items()},
    )


def _may_be_null(kind: Any) -> bool:
    return "null" in kind if isinstance(kind, list) else kind == "null"


def _column(path: Path, field: dict[str, Any], named: dict[str, Any]) -> StagingColumn:
    """`["null", T]` and `T` are the same column: any staging column may be null. `named`: the types that have a name."""
    kind = field["type"]
    if isinstance(kind, list):
        members = [member for member in kind if member != "null"]
        if not members:
            raise _unlandable(path, field, "has no type but null", "leave it out")
        if len(members) > 1:
            raise _unlandable(path, field, "may be of several types", "give each of them a field of its own")
        kind = members[0]
    if isinstance(kind, dict) and "name" in kind:
        named[kind["name"]] = named[f"{kind.get('namespace', '')}.{kind['name']}"] = kind
    kind = named.get(kind, kind) if isinstance(kind, str) else kind
    plain, logical = avro_types.key(kind)
    if plain in ("array", "map", "record"):
        advice = "write its parts into fields of their own, or a record for each of them into another topic"
        raise _unlandable(path, field, f"is a{'n' * (plain == 'array')} {plain}", advice)
    if logical == "decimal" and kind.get("precision", 0) > _DECIMAL_DIGITS_MAX:
        advice = f"give it at most {_DECIMAL_DIGITS_MAX}, or make it a string"
        raise _unlandable(path, field, f"has {kind['precision']} digits", advice)
    if (plain, logical) not in avro_types.TYPES:
        raise _unlandable(path, field, f"has the type {plain!r}", "give it one that a column can have")
    return StagingColumn(field["name"], avro_types.TYPES[plain, logical].postgres, millis=logical == "time-millis")


def _unlandable(path: Path, field: dict[str, Any], what: str, advice: str) -> Misconfigured:
    return Misconfigured(
        Code.SCHEMA_WRONG, f"{path}: field {field['name']!r} {what}, which the sink cannot write: {advice}"
    )


def _statement(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Misconfigured(
            Code.NOT_UTF8, f"{path} is not text in UTF-8, from byte {error.start} on: save it in UTF-8"
        ) from error


def _reduction(path: Path, merges: set[str]) -> Reduction:
    name, topic = path.stem, path.stem.rpartition(".")[0]
    if name not in merges:
        raise Misconfigured(
            Code.SQL_WRONG, f"sql/reduce/{path.name} has no sql/merge/{path.name} that takes what it gives"
        )
    if topic in merges:
        raise Misconfigured(
            Code.SQL_WRONG, f"topic {topic!r} has both sql/merge/{topic}.sql and sql/reduce/{path.name}: choose one"
        )
    pieces = tuple(_BATCH.split(_statement(path)))
    if len(pieces) < 2:
        raise Misconfigured(Code.SQL_WRONG, f"sql/reduce/{path.name} does not read from :batch")
    return Reduction(name, topic, pieces)


def read_target(name: str, columns: tuple[StagingColumn, ...], sql_root: Path, reads: str = "") -> Target:
    """The target with the merge in its file. Raises Misconfigured when that does not read from `:stage`.

    Args:
        reads: the topic of a reduction.
    """
    path = sql_root / "merge" / f"{name}.sql"
    pieces = tuple(_STAGE.split(_statement(path)))
    if len(pieces) < 2:
        raise Misconfigured(Code.SQL_WRONG, f"sql/merge/{path.name} does not read from :stage")
    return Target(name, columns, pieces, bool(reads), reads)
