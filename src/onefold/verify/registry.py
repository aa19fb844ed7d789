"""The verifier's own client of a Confluent schema registry, by plain HTTP."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from onefold.error_codes import Code
from onefold.verify import avro
from onefold.verify.decode import Inadmissible
from onefold.verify.verdict import CannotTell

_ANSWER_S = 10.0
_NOT_FOUND = 404
# The registry's own error codes for an unknown subject, version or id. Any other 404 comes from a different server.
_NO_SUCH = (40401, 40402, 40403)
_REFERENCES_MAX = 256
# Ids are non-negative signed 32-bit integers; no registry has a larger id.
_ID_MAX = (1 << 31) - 1


class SchemasById:
    """Finds schemas by id, each once: a schema never changes under its id.

    A refused or unknown schema stays refused for the whole run.
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise CannotTell(
                Code.REGISTRY_WRONG, f"the schema registry's address is {url!r}, which is no http or https one"
            )
        self._url = url.rstrip("/")
        # By id, the schema, or the reason why there is none.
        self._schemas: dict[int, avro.WrittenSchema | str] = {}

    def __call__(self, schema_id: int) -> avro.WrittenSchema:
        """Return the parsed schema. Raises `Inadmissible` for a missing or refused schema, `CannotTell` without an answer."""
        if schema_id not in self._schemas:
            self._schemas[schema_id] = self._look_up(schema_id)
        found = self._schemas[schema_id]
        if isinstance(found, str):
            raise Inadmissible(found)
        return found

    def _look_up(self, schema_id: int) -> avro.WrittenSchema | str:
        found = self._ask(f"schemas/ids/{schema_id}") if schema_id <= _ID_MAX else None
        if found is None:
            return f"the schema registry knows no schema {schema_id}"
        referenced: dict[str, str] = {}
        try:
            self._follow(found, (), referenced)
            return avro.schema(found["schema"], referenced)
        except avro.InvalidSchema as reason:
            return f"schema {schema_id} of the registry is refused: {reason}"

    def _follow(self, found: dict[str, Any], above: tuple[str, ...], texts: dict[str, str]) -> None:
        """Collect the texts of all referenced schemas by their paths. `above`: the paths from the first schema to this one."""
        if (kind := found.get("schemaType") or "AVRO") != "AVRO":
            raise avro.InvalidSchema(f"of type {kind}")
        for reference in found.get("references") or ():
            try:
                subject, version = urllib.parse.quote(reference["subject"], safe=""), int(reference["version"])
            except (LookupError, TypeError, ValueError):
                raise CannotTell(
                    Code.REGISTRY_WRONG, f"the schema registry at {self._url} has a reference without a version"
                ) from None
            path = f"subjects/{subject}/versions/{version}?deleted=true"
            if path in above:
                raise avro.InvalidSchema("it refers to itself")
            if path in texts:
                continue
            if len(texts) + len(above) >= _REFERENCES_MAX:
                raise avro.InvalidSchema("too many references")
            other = self._ask(path)
            if other is None:
                raise avro.InvalidSchema(f"the registry has no version {version} of {subject}")
            self._follow(other, (*above, path), texts)
            texts[path] = other["schema"]

    def _ask(self, path: str) -> dict[str, Any] | None:
        """Return the registry's object at a path, which has the text of a schema; None if the registry reports a missing
        object.
        """
        found: Any = None
        try:
            with urllib.request.urlopen(f"{self._url}/{path}", timeout=_ANSWER_S) as answer:  # noqa: S310 - http, checked above
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND and _says_no_such_schema(error):
                return None
            more = " and is no schema registry?" if error.code == _NOT_FOUND else ""
            raise CannotTell(
                Code.REGISTRY_SILENT, f"the schema registry at {self._url} answers {error.code}{more}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise CannotTell(
                Code.REGISTRY_SILENT, f"the schema registry at {self._url} cannot be reached: {error}"
            ) from None
        except (ValueError, RecursionError):
            pass
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise CannotTell(
                Code.REGISTRY_WRONG, f"the schema registry at {self._url} answers without a schema for {path}"
            )
        return found


def _says_no_such_schema(answer: urllib.error.HTTPError) -> bool:
    try:
        return json.load(answer)["error_code"] in _NO_SUCH
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, RecursionError):
        return False
