"""The topics of a pipeline, their schemas and their target tables, read only from avro/ and sql/.

With the file `sql/merge/<topic>.sql`, the sink writes the topic record by record. With files `sql/reduce/<topic>.<name>.sql`,
the sink reduces the topic: each file is a query in Spark SQL over the records of a batch, and `sql/merge/<topic>.<name>.sql`
merges the result. The topic's schema is the file `avro/*.avsc` with the topic in its attribute "topics". The engine's code
contains no pipeline.
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

#: The folder with the SQL for the engine's own tables.
ENGINE_SQL = places.data("sql")

# The maximum of Spark's decimals. With a larger decimal, a query does not start.
_DECIMAL_DIGITS_MAX = 38
_STAGE = re.compile(r"(?<!:):stage\b")  # psql's variable syntax; `::stage` would be a cast
_BATCH = re.compile(r"(?<!:):batch\b")


@dataclass(frozen=True)
class StagingColumn:
    """A column of a staging table. `millis`: the unit of a time of day is milliseconds, not microseconds."""

    name: str
    postgres_type: str
    millis: bool = False


# Every staged row has the place of its output record.
ORIGIN = (StagingColumn("topic", "text"), StagingColumn("partition", "integer"), StagingColumn("offset", "bigint"))


@dataclass(frozen=True)
class StagedRecord:
    """A record type. `header` is the first 10 bytes of each value in Avro's single-object encoding.

    `earlier`: the earlier versions of the schema, by the header of their values. The sink converts these values to the current
    schema.
    """

    name: str
    schema: str
    header: bytes
    columns: tuple[StagingColumn, ...]
    required: tuple[str, ...]
    earlier: Mapping[bytes, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """The columns of one kind of staged lines, and the merge statement, split at `:stage`.

    Lines of a `reduced` target represent a whole batch, not single records. `reads`: the topic of the reduced records, else "".
    """

    name: str
    columns: tuple[StagingColumn, ...]
    merge: tuple[str, ...]
    reduced: bool = False
    reads: str = ""


@dataclass(frozen=True)
class Reduction:
    """A query over the records of one topic in a batch, split at `:batch`. Only Spark's analysis gives the result columns."""

    name: str
    topic: str
    query: tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """The sink's configuration of a pipeline.

    `targets` has REJECTED, and a target for each topic written record by record. `reductions` has the queries of the other
    topics.
    """

    name: str
    contracts: dict[str, StagedRecord]
    targets: dict[str, Target]
    reductions: tuple[Reduction, ...] = ()

    @property
    def reduced(self) -> list[str]:
        """The topics with reductions, in order of name."""
        return sorted({reduction.topic for reduction in self.reductions})


# The target of rejected records. The sink stages and merges rejected records in the same transaction as all other rows.
REJECTED = "onefold.rejected"
_REJECTED_COLUMNS = (
    StagingColumn("sink", "text"),
    StagingColumn("reason", "text"),
    StagingColumn("value", "bytea"),
    *ORIGIN,
)


def load_domain(name: str, avro_root: Path, sql_root: Path) -> Domain:
    """Load the pipeline `name`. Raises Misconfigured, with the name of the file, if a file is missing or wrong."""
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
    """Raise Misconfigured if the name of a field is not usable as a column's name.

    The fields of a reduced topic are columns only in Spark, where names do not depend on case.
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
    """The record type of a schema file. Raises Misconfigured if the schema is not a flat record of supported types."""
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
    """Return the column of a field. `["null", T]` and `T` give the same column, because every staging column is nullable.

    Args:
        named: the named types so far; extended with the field's type.
    """
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
    """Read the merge file of a target. Raises Misconfigured if the merge does not read from `:stage`.

    Args:
        reads: the topic of a reduction, else "".
    """
    path = sql_root / "merge" / f"{name}.sql"
    pieces = tuple(_STAGE.split(_statement(path)))
    if len(pieces) < 2:
        raise Misconfigured(Code.SQL_WRONG, f"sql/merge/{path.name} does not read from :stage")
    return Target(name, columns, pieces, bool(reads), reads)
