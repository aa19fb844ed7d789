"""The domains that there are, and what commands ask of their topologies: topics, tables, lag, keys."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from onefold.operate.errors import USAGE, UserError, first_line
from onefold.operate.settings import Settings
from onefold.processor import service
from onefold.processor.core.errors import ProcessorError
from onefold.processor.io import admin


def domains() -> list[str]:
    """All domains."""
    return service.domains()


def checked(names: Sequence[str]) -> list[str]:
    """The names, each once. Raises UserError (exit code 2) for one that is no domain."""
    known = domains()
    for name in names:
        if name not in known:
            raise UserError(f"there is no domain {name}", f"There are: {', '.join(known)}.", USAGE)
    return list(dict.fromkeys(names))


def topology_with_input(topic: str) -> Any:
    """The topology that reads `topic`. Raises UserError (exit code 2) when there is none."""
    topologies = [service.topology_of(name) for name in domains()]
    for topology in topologies:
        if topic in topology.inputs:
            return topology
    inputs = [name for topology in topologies for name in topology.inputs]
    raise UserError(f"{topic} is no input topic", f"Input topics are: {', '.join(inputs)}.", USAGE)


def create_topics(names: Sequence[str], settings: Settings) -> list[str]:
    """Makes the missing topics of the domains. Returns their names. Raises UserError when Kafka refuses or is
    silent.
    """
    client = {**settings.client(), "log_level": "0"}  # a failed call is told in our words, not also in librdkafka's
    try:
        return [
            topic
            for name in names
            for topic in admin.create_topics(service.topology_of(name), settings.partitions, client)
        ]
    except ProcessorError as error:
        raise UserError(f"the topics could not be made: {error}") from None


def migrate(settings: Settings) -> list[str]:
    """Applies the schema files that were not applied yet. Returns their names."""
    import psycopg

    from onefold.spark_sink import schema
    from onefold.spark_sink.errors import SinkError

    try:
        return schema.migrate(settings.postgres(), sql_root())
    except (psycopg.Error, SinkError) as error:
        raise UserError(f"the tables could not be made: {first_line(error)}") from None


def sql_root() -> Path:
    """The folder of schema/ and merge/."""
    return Path(str(resources.files("onefold"))) / "sql"
