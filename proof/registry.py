"""Writer schemas from a Confluent schema registry, by plain HTTP: the judge has a client of its own."""

import json
import urllib.error
import urllib.request
from typing import Any

import fastavro

from onefold.proof.decode import Inadmissible
from onefold.proof.verdict import CannotTell

_ANSWER_S = 10.0
_NOT_FOUND = 404


class Registry:
    """Looks schemas up by their id, each once: a schema never changes under its id."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise CannotTell(f"the schema registry's address is {url!r}, which is no http or https one")
        self._url = url.rstrip("/")
        self._schemas: dict[int, Any] = {}

    def __call__(self, schema_id: int) -> Any:
        """The parsed schema. Raises `Inadmissible` when there is none, `CannotTell` without an answer."""
        if schema_id not in self._schemas:
            self._schemas[schema_id] = self._look_up(schema_id)
        return self._schemas[schema_id]

    def _look_up(self, schema_id: int) -> Any:
        try:
            url = f"{self._url}/schemas/ids/{schema_id}"
            with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:  # noqa: S310 - http, checked above
                return fastavro.parse_schema(json.loads(json.load(answer)["schema"]))
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND:
                raise Inadmissible(f"the schema registry knows no schema {schema_id}") from None
            raise CannotTell(f"the schema registry at {self._url} answers {error.code}") from None
        except OSError as error:
            raise CannotTell(f"the schema registry at {self._url} can not be reached: {error}") from None
        except (ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
            raise Inadmissible(f"schema {schema_id} of the registry can not be parsed: {error}") from None
