"""The declared pipelines, and functions for commands on their topics, tables and verification models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from onefold.config.errors import UserError, of_postgres, of_processor
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.pipelines import FoundPipelines, InvalidDeclaration, find
from onefold.processor.core.errors import ProcessorError


def found() -> FoundPipelines:
    """All declared pipelines, and the faults of unusable declarations."""
    return find()


def domains() -> list[str]:
    """The names of all pipelines whose declaration is valid."""
    return list(find().pipelines)


def checked(names: Sequence[str]) -> list[str]:
    """The names without duplicates. Raises UserError (exit code 2) for an unknown pipeline or an invalid declaration."""
    known = find()
    for name in names:
        if name in known.pipelines:
            continue
        if about := [fault for fault in known.faults if re.search(rf"\b{re.escape(name)}\b", fault)]:
            raise UserError(Code.PIPELINE_WRONG, about[0], exit_code=USAGE)
        raise UserError(
            Code.PIPELINE_UNKNOWN, f"there is no pipeline {name}", f"There are: {', '.join(known.pipelines)}.", USAGE
        )
    return list(dict.fromkeys(names))


def workload(name: str) -> Any:
    """The module that generates events of a pipeline. Raises UserError (exit code 2) if there is none."""
    pipeline = find()[name]
    try:
        module = pipeline.load_workload()
    except InvalidDeclaration as fault:
        raise UserError(Code.PIPELINE_WRONG, str(fault), exit_code=USAGE) from None
    if not hasattr(module, "generate"):
        raise UserError(
            Code.NO_GENERATOR,
            f"there is no generator of events for {name}",
            f"Name a module with generate(seed, count) under `workload` in {pipeline.declared_in}.",
            USAGE,
        )
    return module


def topology_with_input(topic: str) -> Any:
    """The topology with `topic` as an external input. Raises UserError (exit code 2) if there is none."""
    from onefold.processor import loading

    inputs: list[str] = []
    for pipeline in find().pipelines.values():
        try:
            topology = loading.load_topology(pipeline)
        except InvalidDeclaration:  # `check` reports the fault; the topic may belong to another pipeline
            continue
        if topic in topology.fed:
            raise UserError(
                Code.ARGUMENT_WRONG,
                f"{topic} is a feedback topic of {pipeline.name}, and only its processor may write to it",
                exit_code=USAGE,
            )
        if topic in topology.inputs:
            return topology
        inputs += (name for name in topology.inputs if name not in topology.fed)
    raise UserError(
        Code.PIPELINE_UNKNOWN, f"{topic} is no input topic", f"Input topics are: {', '.join(inputs)}.", USAGE
    )


def topics_of_others(name: str) -> Mapping[str, str]:
    """The topics that other pipelines read or write, dead letters included, each with the name of such a pipeline."""
    from onefold.processor import loading

    found: dict[str, str] = {}
    for other in find().pipelines.values():
        if other.name != name:
            with suppress(InvalidDeclaration):  # `check` reports the fault
                topology = loading.load_topology(other)
                named = (*topology.reads, *topology.outputs, *topology.dead.values())
                found |= dict.fromkeys(named, other.name)
    return found


def create_topics(names: Sequence[str], settings: Settings) -> list[str]:
    """Create the missing topics of the pipelines. Returns their names. Raises UserError if Kafka refuses or does not answer."""
    from onefold.processor import loading
    from onefold.processor.io import admin

    client = settings.client()
    try:
        return [
            topic
            for name in names
            for topic in admin.create_topics(
                loading.topology_of(name), settings.partitions, client, replication=settings.replication()
            )
        ]
    except ProcessorError as error:
        raise of_processor(error, "the topics could not be made") from None


def migrate_engine(settings: Settings) -> list[str]:
    """Apply the schema files of Onefold's own tables. Returns the newly applied files."""
    from onefold.spark_sink.contracts import ENGINE_SQL
    from onefold.spark_sink.postgres.schema import ENGINE

    return _migrate({ENGINE: ENGINE_SQL}, settings)


def migrate(names: Sequence[str], settings: Settings) -> list[str]:
    """Apply the schema files of the pipelines that were not applied yet. Returns their names."""
    known = find()
    return _migrate({name: known[name].sql for name in names}, settings)


def give_rights(names: Sequence[str], settings: Settings) -> list[str]:
    """Give the existing roles of services their rights on the tables of the pipelines, as printed by `onefold grants`. Returns
    the schemas and tables of another owner, who has to give the rights.
    """
    import psycopg

    from onefold import postgres
    from onefold.operate import grants

    known = find()
    try:
        with postgres.connect(settings.postgres(), "onefold migrate") as connection:
            return grants.renew(connection, [known[name] for name in names])
    except psycopg.Error as error:
        raise of_postgres(error, "the rights of services could not be given") from None


def _migrate(roots: Mapping[str, Path], settings: Settings) -> list[str]:
    import psycopg

    from onefold.processor.core.errors import Refused
    from onefold.spark_sink.postgres import schema

    dsn = settings.postgres()
    try:
        return [file for name, root in roots.items() for file in schema.migrate(dsn, name, root)]
    except Refused as error:
        raise UserError(error.code, f"the tables could not be made: {error}", exit_code=error.exit_code) from None
    except psycopg.Error as error:
        raise of_postgres(error, "the tables could not be made") from None
