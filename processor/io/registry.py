"""A schema registry, for inputs in the Confluent wire format."""

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

from onefold.processor.core.errors import Refused, Rejected, Retriable
from onefold.processor.io import schemas
from onefold.processor.io.avro_reader import Writer

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

# A registry's own code for an id that it does not know, in an answer of status 404. A proxy or a wrong path has another.
_NO_SUCH_SCHEMA = 40403
# The same for a subject, and for a version of one.
_NO_SUCH_VERSION = {40401, 40402, _NO_SUCH_SCHEMA}
_NOT_FOUND = 404
# A schema is asked for once; a registry that needs longer is not there.
TIMEOUT_S = 5
# An id that the registry did not know is asked for again after this time: it may have been registered since. A writer
# registers its schema before it writes, so the first answer is right but for a registry that lags behind another.
UNKNOWN_S = 10.0
# So many other schemas one schema may use: more are asked for by nobody who means well.
REFERENCES_MAX = 256
# So many unknown ids are remembered, the latest ones: 2 MB.
UNKNOWN_MAX = 10_000
# Ids are 32-bit integers with a sign, and never negative.
ID_MAX = 2**31 - 1


class _Refusal(NamedTuple):
    reason: str


class _Missing(Rejected):
    """What a schema refers to is not there now. That may change."""


class ConfluentRegistry:
    """Writer schemas by id. A schema never changes under its id, so each is asked for once, also one that is refused.

    Garbage that begins with a zero byte looks like the Confluent wire format with any id. An id that the registry does not
    know is asked for at most once in `UNKNOWN_S`. Every new id is asked for: registries count their ids up, but imported
    and deleted ones leave gaps, and to refuse an id by guess would lose a record that is good. So garbage with random ids
    is one request each, one after the other, half of them spared because no id has the highest bit set.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """A registry at an address; `clock` tells seconds. Raises `Refused` when the address cannot be used."""
        # Five packages and an HTTP client, which who has no registry needs neither to load nor to install.
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self._url = url
        try:
            self._client = SchemaRegistryClient({"url": url, "timeout": TIMEOUT_S})
        except ValueError as error:
            raise Refused(f"the schema registry's address {url!r} cannot be used: {error}") from None
        self._clock = clock
        # A schema, or why it is refused.
        self._schemas: dict[int, Writer | _Refusal] = {}
        # Until when an id counts as unknown, and why; the oldest first.
        self._unknown: dict[int, tuple[float, str]] = {}

    def schema(self, schema_id: int) -> Writer:
        """The parsed writer schema.

        Raises:
            Rejected: the registry knows no such id, or the schema is none that is safe to read with.
            Retriable: the registry does not answer, or what answers is none.
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
            raise Rejected(known.reason)
        return known

    def _texts(self, what: str, schema: "Schema") -> list[str]:
        """The text of a schema behind those of all schemas that it refers to. Raises `Rejected` when one is not of Avro."""
        texts: dict[tuple[str, int], str] = {}
        opened: list[tuple[str, int]] = []

        def follow(schema: "Schema") -> str:
            if (schema.schema_type or "AVRO") != "AVRO":
                raise Rejected(
                    f"{what} is of type {schema.schema_type}{' by a reference' if opened else ''}, and in the Confluent wire "
                    f"format only Avro is read: let the producer write Avro, or JSON text without the format's five bytes"
                )
            for reference in schema.references or ():
                place = str(reference.subject), int(reference.version or 0)
                if place in opened:
                    raise Rejected(f"{what} refers to version {place[1]} of {place[0]}, which refers to itself")
                if place not in texts:
                    if len(texts) + len(opened) >= REFERENCES_MAX:
                        raise Rejected(f"{what} refers to more than {REFERENCES_MAX} schemas")
                    opened.append(place)
                    texts[place] = follow(self._fetch_version(what, *place))
                    opened.pop()
            return str(schema.schema_str)

        own = follow(schema)
        return [*texts.values(), own]

    def _refuse_unknown(self, schema_id: int) -> None:
        until, reason = self._unknown.get(schema_id, (0.0, ""))
        if schema_id > ID_MAX or until > self._clock():
            raise Rejected(reason) if reason else _no_schema(schema_id)

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
        """A schema that another one refers to. One that was deleted since is still what that one was written with."""
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
                    raise Retriable(f"{address} answers 404 and is no schema registry?") from error
                raise missing() from None
            raise Retriable(f"the schema registry at {self._url} answers {error}") from error
        except Exception as error:
            # Whatever the registry's HTTP library raises, the registry cannot be reached; the record is not at fault.
            raise Retriable(f"the schema registry at {self._url} cannot be reached: {error}") from error
        if not isinstance(schema.schema_str, str):
            raise Retriable(f"the schema registry's address {self._url} answers without a schema for {what}")
        return schema


def _no_schema(schema_id: int) -> Rejected:
    return Rejected(f"the schema registry knows no schema {schema_id}")
