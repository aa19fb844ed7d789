"""A schema registry, for inputs in the Confluent wire format."""

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused, Rejected, Retriable
from onefold.processor.io import schemas
from onefold.processor.io.avro_reader import WriterSchema

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

# A registry's code for an unknown id, in an answer of status 404. A proxy or a wrong path has a different code.
_NO_SUCH_SCHEMA = 40403
# A registry's codes for an unknown subject, and for an unknown version of a subject.
_NO_SUCH_VERSION = {40401, 40402, _NO_SUCH_SCHEMA}
_NOT_FOUND = 404
# The timeout of a request. A slower registry counts as unreachable.
TIMEOUT_S = 5
# Seconds until a further request for an unknown id, which may have been registered since. A writer registers the schema before
# the first record, so the first answer is right unless the registry lags behind a primary.
UNKNOWN_S = 10.0
# The most schemas that a schema may refer to; more are an attack.
REFERENCES_MAX = 256
# The number of remembered unknown ids, the latest: 2 MB.
UNKNOWN_MAX = 10_000
# Ids are signed 32-bit integers, and never negative.
ID_MAX = 2**31 - 1


class _Refusal(NamedTuple):
    reason: str


class _Missing(Rejected):
    """A referenced schema is missing, for now."""


class ConfluentRegistry:
    """Writer schemas by id. The schema of an id never changes, so the reader requests each id once, also a refused one.

    Garbage with a leading zero byte looks like the Confluent wire format with any id. The reader requests an unknown id at
    most once in `UNKNOWN_S`. The reader requests every new id: registries count ids up, but imported and deleted schemas
    leave gaps, and a guess would lose a good record. So garbage with random ids costs a request each, in sequence; half of
    the requests are spared, because no id has the highest bit set.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """A registry at an address; `clock` returns seconds. Raises `Refused` if the address cannot be used."""
        # Five packages and an HTTP client, which an installation without a registry neither loads nor needs.
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self._url = url
        try:
            self._client = SchemaRegistryClient({"url": url, "timeout": TIMEOUT_S})
        except ValueError as error:
            raise Refused(
                Code.REGISTRY_WRONG, f"the schema registry's address {url!r} cannot be used: {error}"
            ) from None
        self._clock = clock
        # A schema, or the reason of a refusal.
        self._schemas: dict[int, WriterSchema | _Refusal] = {}
        # The time until which an id counts as unknown, and the reason; the oldest first.
        self._unknown: dict[int, tuple[float, str]] = {}

    def schema(self, schema_id: int) -> WriterSchema:
        """Return the parsed writer schema.

        Raises:
            Rejected: the registry does not know the id, or the schema exceeds a limit of `schemas`.
            Retriable: the registry does not answer, or the server is no registry.
        """
        if schema_id not in self._schemas:
            self._refuse_unknown(schema_id)
            found = self._fetch(schema_id)
            try:
                texts = self._texts(f"schema {schema_id} of the registry", found)
                self._schemas[schema_id] = schemas.parse(schema_id, texts[-1], texts[:-1])
            except _Missing as reason:
                self._remember_unknown(schema_id, reason)
                raise
            except Rejected as reason:
                self._schemas[schema_id] = _Refusal(str(reason))
        known = self._schemas[schema_id]
        if isinstance(known, _Refusal):
            raise Rejected(known.reason, Code.WRITER_SCHEMA_UNUSABLE)
        return known

    def _texts(self, what: str, schema: "Schema") -> list[str]:
        """The text of a schema behind the texts of all referenced schemas. Raises `Rejected` if a schema is not Avro."""
        texts: dict[tuple[str, int], str] = {}
        opened: list[tuple[str, int]] = []

        def follow(schema: "Schema") -> str:
            if (schema.schema_type or "AVRO") != "AVRO":
                raise Rejected(
                    f"{what} is of type {schema.schema_type}{' by a reference' if opened else ''}, and in the Confluent wire "
                    f"format only Avro is read: let the producer write Avro, or JSON text without the format's five bytes",
                    Code.WRITER_SCHEMA_UNUSABLE,
                )
            for reference in schema.references or ():
                place = str(reference.subject), int(reference.version or 0)
                if place in opened:
                    raise Rejected(
                        f"{what} refers to version {place[1]} of {place[0]}, which refers to itself",
                        Code.WRITER_SCHEMA_UNUSABLE,
                    )
                if place not in texts:
                    if len(texts) + len(opened) >= REFERENCES_MAX:
                        raise Rejected(
                            f"{what} refers to more than {REFERENCES_MAX} schemas", Code.WRITER_SCHEMA_UNUSABLE
                        )
                    opened.append(place)
                    texts[place] = follow(self._fetch_version(what, *place))
                    opened.pop()
            return str(schema.schema_str)

        own = follow(schema)
        return [*texts.values(), own]

    def _refuse_unknown(self, schema_id: int) -> None:
        until, reason = self._unknown.get(schema_id, (0.0, ""))
        if schema_id > ID_MAX or until > self._clock():
            raise Rejected(reason, Code.WRITER_SCHEMA_UNUSABLE) if reason else _no_schema(schema_id)

    def _remember_unknown(self, schema_id: int, reason: Rejected) -> None:
        self._unknown.pop(schema_id, None)
        if len(self._unknown) >= UNKNOWN_MAX:
            del self._unknown[next(iter(self._unknown))]
        self._unknown[schema_id] = self._clock() + UNKNOWN_S, str(reason)

    def _fetch(self, schema_id: int) -> "Schema":
        def unknown() -> Rejected:
            self._remember_unknown(schema_id, reason := _no_schema(schema_id))
            return reason

        return self._ask(f"id {schema_id}", lambda: self._client.get_schema(schema_id), {_NO_SUCH_SCHEMA}, unknown)

    def _fetch_version(self, what: str, subject: str, version: int) -> "Schema":
        """A referenced schema, also a deleted one: the referring schema was written with the deleted version."""
        return self._ask(
            f"version {version} of {subject}",
            lambda: self._client.get_version(subject, version, deleted=True).schema,
            _NO_SUCH_VERSION,
            lambda: _Missing(f"{what} refers to version {version} of {subject}, which the registry does not have"),
        )

    def _ask(
        self, what: str, ask: "Callable[[], Schema]", unknown: Collection[int], missing: Callable[[], Rejected]
    ) -> "Schema":
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            schema = ask()
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                if error.error_code not in unknown:
                    address = f"the schema registry's address {self._url}"
                    raise Retriable(Code.REGISTRY_WRONG, f"{address} answers 404 and is no schema registry?") from error
                raise missing() from None
            raise Retriable(Code.REGISTRY_SILENT, f"the schema registry at {self._url} answers {error}") from error
        except Exception as error:
            # Any error of the HTTP library means that the registry cannot be reached. The record is not at fault.
            raise Retriable(
                Code.REGISTRY_SILENT, f"the schema registry at {self._url} cannot be reached: {error}"
            ) from error
        if not isinstance(schema.schema_str, str):
            raise Retriable(
                Code.REGISTRY_WRONG, f"the schema registry's address {self._url} answers without a schema for {what}"
            )
        return schema


def _no_schema(schema_id: int) -> Rejected:
    return Rejected(f"the schema registry knows no schema {schema_id}", Code.WRITER_SCHEMA_UNKNOWN)
