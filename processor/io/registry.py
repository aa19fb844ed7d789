"""A schema registry, for inputs in the Confluent wire format."""

import json
from typing import Any

import fastavro
import fastavro.schema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from processor.core.errors import Refused, Rejected, Retriable

_NOT_FOUND = 404
# A schema is asked for once; a registry that needs longer is not there.
TIMEOUT_S = 5


class ConfluentRegistry:
    """Writer schemas by id. A schema never changes under its id, so each is asked for once."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._client = SchemaRegistryClient({"url": url, "timeout": TIMEOUT_S})
        except ValueError as error:
            raise Refused(f"the schema registry's address {url!r} can not be used: {error}") from None
        self._schemas: dict[int, Any] = {}

    def schema(self, schema_id: int) -> Any:
        """The parsed writer schema.

        Raises:
            Rejected: the registry knows no such id, or the schema is none that is safe to read with.
            Retriable: the registry does not answer.
        """
        if schema_id not in self._schemas:
            self._schemas[schema_id] = _safe(schema_id, self._fetch(schema_id))
        return self._schemas[schema_id]

    def _fetch(self, schema_id: int) -> str:
        try:
            return self._client.get_schema(schema_id).schema_str
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                raise Rejected(f"the schema registry knows no schema {schema_id}") from None
            raise Retriable(f"the schema registry at {self._url} answers {error}") from error
        except Exception as error:
            # Whatever the registry's HTTP library raises, the registry can not be reached; the record is not at fault.
            raise Retriable(f"the schema registry at {self._url} can not be reached: {error}") from error


def _safe(schema_id: int, text: str) -> Any:
    try:
        parsed = fastavro.parse_schema(json.loads(text))
    except (
        ValueError,
        KeyError,
        TypeError,
        fastavro.schema.SchemaParseException,
        fastavro.schema.UnknownType,
    ) as error:
        raise Rejected(f"schema {schema_id} of the registry can not be parsed: {error}") from None
    _refuse_bombs(f"schema {schema_id} of the registry", parsed, {}, ())
    return parsed


def _refuse_bombs(what: str, schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> None:
    """Refuse what lets a few bytes become millions of values, or a stack overflow in compiled code.

    fastavro crashes the process on deep data of a recursive schema, and an array of values that take no bytes can claim
    any length: five bytes decode to fifty million nulls. The schema is a parsed one: its names are full names.
    """
    if isinstance(schema, list):
        for branch in schema:
            _refuse_bombs(what, branch, named, within)
    elif isinstance(schema, str):
        if schema in within:
            raise Rejected(f"{what} is recursive")
    elif schema["type"] in ("array", "map"):
        items = schema["items" if schema["type"] == "array" else "values"]
        _refuse_bombs(what, items, named, within)
        if schema["type"] == "array" and _takes_no_bytes(items, named):
            raise Rejected(f"{what} has an array of values that take no bytes")
    elif schema["type"] in ("record", "error"):
        named[schema["name"]] = schema
        for field in schema["fields"]:
            _refuse_bombs(what, field["type"], named, (*within, schema["name"]))
    elif "name" in schema:
        named[schema["name"]] = schema


def _takes_no_bytes(schema: Any, named: dict[str, Any]) -> bool:
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(schema, str):
        return schema == "null"
    if isinstance(schema, list):
        return False
    if schema["type"] in ("record", "error"):
        return all(_takes_no_bytes(field["type"], named) for field in schema["fields"])
    return schema["type"] == "null" or (schema["type"] == "fixed" and schema["size"] == 0)
