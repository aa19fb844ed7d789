"""Contracts and what they were: what avro/ has, what Postgres has seen, and how one that was overwritten comes back."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from onefold import lineage, postgres
from onefold.config.errors import UserError, of_postgres
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import pipelines
from onefold.pipelines import Pipeline
from onefold.processor.core.errors import Misconfigured
from onefold.spark_sink.contracts import Contract, Domain, load_domain
from onefold.spark_sink.landing import known_contracts

TODAY, EARLIER, UNKNOWN = "today's", "earlier", "not in avro/"


@dataclass(frozen=True)
class Version:
    """A schema that records of a landed topic have been written with, or may be.

    Attributes:
        fingerprint: CRC-64-AVRO of the schema, 16 hex digits as they stand in a record behind C3 01.
        standing: TODAY, EARLIER, or UNKNOWN: only Postgres has it.
        lost: UNKNOWN only: why its records could not be read by the contract of today.
    """

    topic: str
    contract: str
    fingerprint: str
    standing: str
    schema: dict[str, Any]
    lost: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Ready for JSON, without the schema."""
        return {
            "topic": self.topic,
            "contract": self.contract,
            "fingerprint": self.fingerprint,
            "standing": self.standing,
            "lost": list(self.lost),
        }


def versions(name: str, settings: Settings) -> list[Version]:
    """The versions of every contract that a pipeline's sink lands, today's first. Raises UserError."""
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


def restore(name: str, found: list[Version]) -> list[Path]:
    """Writes those that only Postgres has into `avro/earlier/`, unless one of them cannot be read by today's contract.

    Raises UserError (exit code 2) with what the contract of today lacks.
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
    folder = pipelines.found()[name].contracts / lineage.FOLDER
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


def _version(topic: str, contract: Contract, header: bytes, schema: str, standing: str) -> Version:
    raw = json.loads(schema)
    lost = lineage.differences(raw, json.loads(contract.schema)) if standing == UNKNOWN else ()
    return Version(topic, contract.name, header[2:].hex(), standing, raw, tuple(lost))


def _domain(pipeline: Pipeline) -> Domain:
    try:
        return load_domain(pipeline.name, pipeline.contracts, pipeline.sql)
    except Misconfigured as error:
        raise UserError(error.code, str(error), f"`onefold check {pipeline.name}` says more.") from None


def _stored(name: str, settings: Settings) -> known_contracts.Schemas:
    try:
        with closing(
            postgres.connect(settings.postgres(), "onefold contracts", settings=postgres.READ_ONLY)
        ) as connection:
            return known_contracts.stored(connection, name)
    except psycopg.errors.UndefinedTable:
        return {}  # no sink of a version that keeps them has run here
    except psycopg.OperationalError as error:
        raise of_postgres(
            error, "the schemas of the written records, which PostgreSQL keeps, could not be read"
        ) from None
