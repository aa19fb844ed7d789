"""The origin of each setting, for `onefold config`, and misspelt names of settings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, DotEnvSettingsSource, EnvSettingsSource, PydanticBaseSettingsSource

from onefold.config import redaction

ENVIRONMENT = "environment"
DEFAULT = "default"
STACK = "the running stack"
# The lowest similarity ratio of a misspelt name: a missing, doubled, swapped or wrong letter in eight or more.
_ALIKE = 0.85

#: The field of all settings of Kafka's Java client. Each of these settings has its own variable.
JAVA_CLIENT = "spark_kafka"

# Variables for the tests, the supervisor's children, and the search for a project.
NO_SETTINGS = {"ONEFOLD_STATUS_FILE", "ONEFOLD_PROJECT", "ONEFOLD_FAILPOINT", "ONEFOLD_IVY_SETTINGS", "ONEFOLD_SEED"}


class _EmptyHasNoJson(PydanticBaseSettingsSource):
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """See pydantic-settings."""
        return value if value == "" else super().decode_complex_value(field_name, field, value)


class Environment(_EmptyHasNoJson, EnvSettingsSource):
    """The variables of the environment."""


class File(_EmptyHasNoJson, DotEnvSettingsSource):
    """The variables of files."""


class Origin(NamedTuple):
    """The effective value of a setting, and its source.

    Attributes:
        value: The value without secrets; None if unset.
        where: `ENVIRONMENT`, a file, `STACK` or `DEFAULT`.
    """

    value: Any
    where: str


def origins(settings: BaseSettings, running: Mapping[str, Any], files: Sequence[Path]) -> dict[str, Origin]:
    """The origin of each setting, by name.

    Args:
        running: The state of the running stack, {} without a running stack.
        files: The files in force. A later file overrides an earlier file, and the environment overrides all files.
    """
    kind = type(settings)
    sources: list[tuple[str, dict[str, Any]]] = [(ENVIRONMENT, Environment(kind)())]
    sources += [(str(file), File(kind, env_file=file)()) for file in reversed(files)]
    found: dict[str, Origin] = {}
    java = java_client(kind, kind.model_config["env_prefix"], files)
    for name in kind.model_fields:
        if name == JAVA_CLIENT:
            hidden = {one: Origin(redaction.HIDDEN_VALUE, where) for one, (given, where) in java.items() if given}
            found |= {java_variable("", one).lower(): origin for one, origin in hidden.items()}
            continue
        value = getattr(settings, name)
        where = next((place for place, given in sources if given.get(name)), DEFAULT)
        if where == DEFAULT and (file := getattr(settings, f"{name}_file", None)) is not None and value:
            where = str(file)
        if value is None and running.get(name):
            value, where = running[name], STACK
        found[name] = Origin(shown(name, value), where)
    return found


def java_client(kind: type[BaseSettings], prefix: str, files: Sequence[Path]) -> dict[str, tuple[str, str]]:
    """The value and the origin of each setting of Kafka's Java client, by Java's name. An empty value unsets a file's value."""
    sources = [(str(file), File(kind, env_file=file).env_vars) for file in files]
    begin = f"{prefix}{JAVA_CLIENT}_".lower()
    return {
        name.removeprefix(begin).replace("_", "."): (value or "", where)
        for where, given in (*sources, (ENVIRONMENT, Environment(kind).env_vars))
        for name, value in given.items()
        if name.startswith(begin) and name != begin
    }


def outranked(kind: type[BaseSettings], prefix: str, files: Sequence[Path]) -> dict[str, str]:
    """The settings that a stronger source replaces by a file or unsets, each with an empty value."""
    sources = [Environment(kind).env_vars]
    sources += [File(kind, env_file=file).env_vars for file in reversed(files)]
    found = {}
    for name in ("postgres_dsn", "kafka_options", "dashboard_token"):
        variable = f"{prefix}{name}".lower()
        first = next((given for given in sources if given.get(variable) or given.get(f"{variable}_file")), {})
        if first and first.get(variable) in (None, "", "{}"):
            found[name] = ""  # {} would be merged with the values of the remaining sources
    return found


def java_variable(prefix: str, name: str) -> str:
    """The variable for a setting of Kafka's Java client with this Java name."""
    return f"{prefix}{JAVA_CLIENT}_{name}".upper().replace(".", "_")


def variable(prefix: str, name: str) -> str:
    """The variable of a setting. All settings of Kafka's Java client share a name with a placeholder."""
    return prefix + name.upper() + ("_<JAVA_NAME>" if name == JAVA_CLIENT else "")


def shown(name: str, value: Any) -> Any:
    """The value of a setting without secrets, as a JSON value."""
    if name.endswith("_dsn") and value:
        return redaction.dsn(value)
    if name == "dashboard_token" and value:
        return redaction.HIDDEN_VALUE
    if name == "kafka_options":
        return redaction.options(value)
    if name == "spark_options":
        return redaction.spark_options(value)
    if isinstance(value, str):
        return redaction.address(value)
    return json.loads(json.dumps(value, default=str))


def unknown(kind: type[BaseSettings], prefix: str, files: Sequence[Path]) -> list[str]:
    """The variables with the prefix in the environment and in these files that are no settings.

    Names from the environment keep their case, because lower-case variables take effect too.
    """
    known, java = {variable(prefix, name) for name in kind.model_fields} | NO_SETTINGS, java_variable(prefix, "")
    given = {name.upper() for file in files for name in File(kind, env_file=file).env_vars}
    return sorted(
        name
        for name in given | set(os.environ)
        if name.upper().startswith(prefix) and name.upper() not in known and not name.upper().startswith(java)
    )


def misspelt(kind: type[BaseSettings], prefix: str, files: Sequence[Path]) -> list[tuple[str, str]]:
    """Pairs of an `unknown` name and the setting with a similar name or with this name as the beginning."""
    known = [variable(prefix, name) for name in kind.model_fields]

    def alike(name: str) -> list[str]:
        return get_close_matches(name, known, 1, _ALIKE) or [one for one in known if one.startswith(f"{name}_")]

    return [(name, found[0]) for name in unknown(kind, prefix, files) if (found := alike(name.upper()))]
