"""Writer schemas from a Confluent schema registry, by plain HTTP: the judge has a client of its own."""

import http.client
import json
import urllib.error
import urllib.request

from onefold.proof import avro
from onefold.proof.decode import Inadmissible
from onefold.proof.verdict import CannotTell

_ANSWER_S = 10.0
_NOT_FOUND = 404
# What a registry itself answers for an id that it does not know; any other 404 is somebody else's.
_NO_SUCH_SCHEMA = 40403
# Ids are 32-bit integers with a sign, and never negative: no registry is asked for more.
_ID_MAX = (1 << 31) - 1


class Registry:
    """Finds schemas by their id, each once: a schema never changes under its id.

    Nor does the judge ask again for one that is refused or unknown. A run ends, and one answer holds for all of it.
    """

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise CannotTell(f"the schema registry's address is {url!r}, which is no http or https one")
        self._url = url.rstrip("/")
        # A schema, or why there is none.
        self._schemas: dict[int, avro.Written | str] = {}

    def __call__(self, schema_id: int) -> avro.Written:
        """The parsed schema. Raises `Inadmissible` when there is none, `CannotTell` without an answer."""
        if schema_id not in self._schemas:
            self._schemas[schema_id] = self._look_up(schema_id)
        found = self._schemas[schema_id]
        if isinstance(found, str):
            raise Inadmissible(found)
        return found

    def _look_up(self, schema_id: int) -> avro.Written | str:
        text = self._ask(schema_id) if schema_id <= _ID_MAX else None
        if text is None:
            return f"the schema registry knows no schema {schema_id}"
        try:
            return avro.schema(text)
        except avro.Refused as reason:
            return f"schema {schema_id} of the registry is refused: {reason}"

    def _ask(self, schema_id: int) -> str | None:
        """The schema's text; None when the registry has none."""
        try:
            url = f"{self._url}/schemas/ids/{schema_id}"
            with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:  # noqa: S310 - http, checked above
                text = json.load(answer)["schema"]
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND and _says_no_such_schema(error):
                return None
            more = " and is no schema registry?" if error.code == _NOT_FOUND else ""
            raise CannotTell(f"the schema registry at {self._url} answers {error.code}{more}") from None
        except (OSError, http.client.HTTPException) as error:
            raise CannotTell(f"the schema registry at {self._url} cannot be reached: {error}") from None
        except (ValueError, LookupError, TypeError, RecursionError):
            text = None
        if not isinstance(text, str):
            raise CannotTell(f"the schema registry at {self._url} answers without a schema for id {schema_id}")
        return text


def _says_no_such_schema(answer: urllib.error.HTTPError) -> bool:
    try:
        return bool(json.load(answer)["error_code"] == _NO_SUCH_SCHEMA)
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, RecursionError):
        return False
