"""The schemas in `avro/` and their earlier versions: by topic, with their fields, and the first bytes of a record."""

import functools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import fastavro.schema

from onefold import pipelines
from onefold.error_codes import Code
from onefold.verify import avro, defaults
from onefold.verify.verdict import CannotTell

_MARKER = b"\xc3\x01"
PREFIX_BYTES = 10
_REASON_MAX = 200


@dataclass(frozen=True, eq=False)
class VerifiedSchema:
    """A record schema in `avro/`: the fields, the parsed schemas for writing and reading, and the ten bytes before each value.
    `before` has the earlier versions, by their ten bytes.
    """

    name: str
    fields: dict[str, dict[str, Any]]
    schema: Any
    reader: Any
    written: avro.WrittenSchema
    prefix: bytes
    before: dict[bytes, avro.WrittenSchema] = field(default_factory=dict)


class Contracts(dict[str, VerifiedSchema]):
    """Schemas by topic. For a missing topic, `CannotTell` names the unreadable files, since no record can be verified without
    its schema.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []

    def __missing__(self, topic: str) -> VerifiedSchema:
        if self.faults:
            raise CannotTell(Code.SCHEMA_WRONG, "; ".join(self.faults))
        raise CannotTell(Code.SCHEMA_MISSING, f"no schema names the topic {topic}")

    @contextmanager
    def noting(self, path: Path) -> Iterator[None]:
        """Collect an error in a file as a fault."""
        try:
            yield
        except (OSError, *avro.NO_SCHEMA) as error:
            what = f"{type(error).__name__}: {str(error)[:_REASON_MAX]}"
            self.faults.append(f"{path} is no schema ({what}); `onefold check` lists the mistakes")


@functools.cache
def contracts(domain: str | None = None) -> Contracts:
    """Return the schemas of a pipeline by topic; None: of all pipelines."""
    known = pipelines.find().pipelines
    found = Contracts()
    for pipeline in [known[domain]] if domain is not None and domain in known else known.values():
        of_folder = load(pipeline.contracts)
        found.update(of_folder)
        found.faults += [fault for fault in of_folder.faults if fault not in found.faults]
    return found


@functools.cache
def load(folder: Path) -> Contracts:
    """Read the schemas in a folder, by topic, with their earlier versions."""
    found = Contracts()
    before: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("earlier/*.avsc")):
        with found.noting(path):
            for was in _records(path):
                before.setdefault(_full_name(was, ""), []).append(was)
    for path in sorted(folder.glob("*.avsc")):
        with found.noting(path):
            for raw in _records(path):
                contract = contract_of(raw, before.get(_full_name(raw, ""), ()))
                found.update(dict.fromkeys(raw.get("topics", ()), contract))
    return found


def _records(path: Path) -> list[dict[str, Any]]:
    """Return the records in a file: of one type, a list of types, or a protocol. In a list, a type includes the definitions of
    the earlier types it uses.
    """
    raw = json.loads(path.read_bytes().decode("utf-8-sig"))
    namespace = raw.get("namespace", "") if isinstance(raw, dict) and "protocol" in raw else ""
    if isinstance(raw, dict) and "protocol" in raw:
        raw = raw["types"]
    known: dict[str, Any] = {}
    found = []
    for kind in raw if isinstance(raw, list) else [raw]:
        if isinstance(kind, dict):
            whole = avro.with_named(kind, known, namespace)
            known[_full_name(kind, namespace)] = whole
            found.append(whole)
    if not any(kind["type"] == "record" for kind in found):
        raise ValueError("no record")
    return [kind for kind in found if kind["type"] == "record"]


def _full_name(raw: dict[str, Any], namespace: str) -> str:
    return avro.name_of(raw["name"], raw.get("namespace", namespace))


def contract_of(raw: dict[str, Any], before: Iterable[dict[str, Any]] = ()) -> VerifiedSchema:
    """Return the schema in a file of `avro/`, with its earlier versions `before`."""
    schema = fastavro.parse_schema(raw)
    # Replace each use of a named type by its definition.
    expanded: Any = fastavro.schema.expand_schema(raw)
    fields = {part["name"]: part for part in expanded["fields"]}
    older = {_prefix_of(fastavro.parse_schema(was)): avro.written(was) for was in before}
    reader = defaults.to_read_with(fastavro.parse_schema(raw), expanded)
    return VerifiedSchema(_full_name(raw, ""), fields, schema, reader, avro.written(raw), _prefix_of(schema), older)


def _prefix_of(schema: Any) -> bytes:
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    return _MARKER + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
