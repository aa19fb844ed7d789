"""The contracts of `avro/`, and what they were, as the judge reads them: which topic carries what, and with which first bytes."""

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
    """One record schema of `avro/`: its fields, the schema to write and to read with, the ten bytes before its values; and with
    which schemas values were written before, by their ten bytes."""

    name: str
    fields: dict[str, dict[str, Any]]
    schema: Any
    reader: Any
    written: avro.WrittenSchema
    prefix: bytes
    before: dict[bytes, avro.WrittenSchema] = field(default_factory=dict)


class Contracts(dict[str, VerifiedSchema]):
    """Contracts by topic. A topic without one is no verdict on any record: `CannotTell` says which file cannot be read."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def __missing__(self, topic: str) -> VerifiedSchema:
        if self.faults:
            raise CannotTell(Code.SCHEMA_WRONG, "; ".join(self.faults))
        raise CannotTell(Code.SCHEMA_MISSING, f"no schema names the topic {topic}")

    @contextmanager
    def noting(self, path: Path) -> Iterator[None]:
        """What goes wrong with a file is a fault."""
        try:
            yield
        except (OSError, *avro.NO_SCHEMA) as error:
            what = f"{type(error).__name__}: {str(error)[:_REASON_MAX]}"
            self.faults.append(f"{path} is no schema ({what}); `onefold check` lists the mistakes")


@functools.cache
def contracts(domain: str | None = None) -> Contracts:
    """The contracts of a pipeline by the topics that carry them; those of all pipelines if None."""
    known = pipelines.find().pipelines
    found = Contracts()
    for pipeline in [known[domain]] if domain is not None and domain in known else known.values():
        of_folder = load(pipeline.contracts)
        found.update(of_folder)
        found.faults += [fault for fault in of_folder.faults if fault not in found.faults]
    return found


@functools.cache
def load(folder: Path) -> Contracts:
    """Read the contracts of a folder: by the topics that carry them, with what they were."""
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
    """The records of a file, which is one, a list of types, or a protocol. Of a list each has the types before it inside."""
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
    """The contract that a file of `avro/` holds, and those that it was `before`."""
    schema = fastavro.parse_schema(raw)
    # A type that has a name may be used by that name; here each use is the type itself.
    expanded: Any = fastavro.schema.expand_schema(raw)
    fields = {part["name"]: part for part in expanded["fields"]}
    older = {_prefix_of(fastavro.parse_schema(was)): avro.written(was) for was in before}
    reader = defaults.to_read_with(fastavro.parse_schema(raw), expanded)
    return VerifiedSchema(_full_name(raw, ""), fields, schema, reader, avro.written(raw), _prefix_of(schema), older)


def _prefix_of(schema: Any) -> bytes:
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    return _MARKER + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
