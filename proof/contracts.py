"""The contracts of `avro/`, and what they were, as the judge reads them: which topic carries what, and with which first bytes."""

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import fastavro.schema

from onefold import pipelines
from onefold.proof import avro

_MARKER = b"\xc3\x01"
PREFIX_BYTES = 10


@dataclass(frozen=True, eq=False)
class Contract:
    """One record schema of `avro/`: its fields, the schema to write and to read with, the ten bytes before its values; and with
    which schemas values were written before, by their ten bytes."""

    name: str
    fields: dict[str, dict[str, Any]]
    schema: Any
    written: avro.Written
    prefix: bytes
    before: dict[bytes, avro.Written] = field(default_factory=dict)


@functools.cache
def contracts(domain: str | None = None) -> dict[str, Contract]:
    """The contracts of a pipeline by the topics that carry them; those of all pipelines if None."""
    found = pipelines.find().pipelines
    chosen = [found[domain]] if domain is not None and domain in found else list(found.values())
    return {topic: contract for pipeline in chosen for topic, contract in _contracts(pipeline.contracts).items()}


@functools.cache
def _contracts(folder: Path) -> dict[str, Contract]:
    found: dict[str, Contract] = {}
    before: dict[Any, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("earlier/*.avsc")):
        was = json.loads(path.read_text(encoding="utf-8"))
        before.setdefault((was.get("namespace"), was["name"]), []).append(was)
    for path in sorted(folder.glob("*.avsc")):
        raw = json.loads(path.read_text(encoding="utf-8"))
        contract = contract_of(raw, before.get((raw.get("namespace"), raw["name"]), ()))
        found.update(dict.fromkeys(raw.get("topics", ()), contract))
    return found


def contract_of(raw: dict[str, Any], before: Iterable[dict[str, Any]] = ()) -> Contract:
    """The contract that a file of `avro/` holds, and those that it was `before`."""
    schema = fastavro.parse_schema(raw)
    # A type that has a name may be used by that name; here each use is the type itself.
    expanded: Any = fastavro.schema.expand_schema(raw)
    fields = {part["name"]: part for part in expanded["fields"]}
    older = {_prefix_of(fastavro.parse_schema(was)): avro.written(was) for was in before}
    return Contract(f"{raw['namespace']}.{raw['name']}", fields, schema, avro.written(raw), _prefix_of(schema), older)


def _prefix_of(schema: Any) -> bytes:
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    return _MARKER + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
