"""Schema versions: the schemas in avro/, the schemas in PostgreSQL, and the restoration of overwritten schemas."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from onefold import postgres, schema_history
from onefold.config.errors import UserError, of_postgres
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import pipelines
from onefold.pipelines import Pipeline
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.contracts import Domain, StagedRecord, load_domain
from onefold.spark_sink.landing import known_schemas

TODAY, EARLIER, UNKNOWN = "today's", "earlier", "not in avro/"


@dataclass(frozen=True)
class SchemaVersion:
    """A schema of past or future records in an output topic of the sink.

    Attributes:
        fingerprint: CRC-64-AVRO of the schema, 16 hex digits as in a record after C3 01.
        standing: TODAY, EARLIER, or UNKNOWN: only PostgreSQL has the schema.
        lost: UNKNOWN only: why today's contract could not read the records.
    """

    topic: str
    contract: str
    fingerprint: str
    standing: str
    schema: dict[str, Any]
    lost: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """The version as JSON data, without the schema."""
        return {
            "topic": self.topic,
            "contract": self.contract,
            "fingerprint": self.fingerprint,
            "standing": self.standing,
            "lost": list(self.lost),
        }


def versions(name: str, settings: Settings) -> list[SchemaVersion]:
    """The versions of every contract that a pipeline's sink writes, today's first. Raises UserError."""
    domain, stored = _domain(pipelines.found()[name]), _stored(name, settings)
    found = []
    for topic, contract in sorted(domain.contracts.items()):
        found += [_version(topic, contract, contract.header, contract.schema, TODAY)]
        found += [_version(topic, contract, header, schema, EARLIER) for header, schema in contract.earlier.items()]
        known = {contract.header, *contract.earlier}
        found += [
            _version(topic, contract, header, schema, UNKNOWN)
            for (of, header), schema in sorted(stored.items())
            if of == topic and header not in known
        ]
    return found


def restore(name: str, found: list[SchemaVersion]) -> list[Path]:
    """Write the UNKNOWN schemas from PostgreSQL into `avro/earlier/`, unless today's contract cannot read one of them.

    Raises UserError (exit code 2) with the missing parts of today's contract.
    """
    unknown = [version for version in found if version.standing == UNKNOWN]
    if lost := next((version for version in unknown if version.lost), None):
        raise UserError(
            Code.SCHEMA_INCOMPATIBLE,
            f"records of {lost.topic} that were written with the schema {lost.fingerprint} cannot be read as "
            f"{lost.contract} any more: {'; '.join(lost.lost)}",
            "Change the schema so that they can, or write to a topic of another name, or reset the pipeline: "
            f"`onefold reset {name}`.",
            USAGE,
        )
    folder = pipelines.found()[name].contracts / schema_history.FOLDER
    written = {folder / f"{version.contract}.{version.fingerprint[:8]}.avsc": version.schema for version in unknown}
    try:
        for path, schema in written.items():
            folder.mkdir(exist_ok=True)
            path.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(
            Code.FILE_UNUSABLE,
            f"{error.filename} cannot be written: {error.strerror}",
            "Run it where the project may be changed.",
        ) from None
    return list(written)


def _version(topic: str, contract: StagedRecord, header: bytes, schema: str, standing: str) -> SchemaVersion:
    raw = json.loads(schema)
    lost = schema_history.differences(raw, json.loads(contract.schema)) if standing == UNKNOWN else ()
    return SchemaVersion(topic, contract.name, header[2:].hex(), standing, raw, tuple(lost))


def _domain(pipeline: Pipeline) -> Domain:
    try:
        return load_domain(pipeline.name, pipeline.contracts, pipeline.sql)
    except Misconfigured as error:
        raise UserError(error.code, str(error), f"`onefold check {pipeline.name}` says more.") from None


def _stored(name: str, settings: Settings) -> known_schemas.Schemas:
    try:
        with closing(
            postgres.connect(settings.postgres(), "onefold contracts", settings=postgres.READ_ONLY)
        ) as connection:
            return known_schemas.stored(connection, name)
    except psycopg.errors.UndefinedTable:
        return {}  # no sink of a version with stored schemas has run here
    except psycopg.OperationalError as error:
        raise of_postgres(
            error, "the schemas of the written records, which PostgreSQL keeps, could not be read"
        ) from None
