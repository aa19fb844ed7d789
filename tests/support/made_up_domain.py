"""An invented pipeline for tests of the sink, whose expected rows the test computes itself.

Two topics: `readings`, where the highest version of a key is kept, and `notes`, all of which are kept.
"""

import io
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, as no checker sees
from fastavro.schema import fingerprint, to_parsing_canonical_form

from onefold.spark_sink.kafka.topics import KafkaTopics
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.postgres.connection import connect
from tests.support.infrastructure import delete_topics, transactional

Row = tuple[Any, ...]

_READING = [
    {"name": "key", "type": "long"},
    {"name": "version", "type": "long"},
    {"name": "label", "type": "string"},
    {"name": "amount", "type": ["null", "long"], "default": None},
]
_NOTE = [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]

_SCHEMA = """
CREATE SCHEMA {name};
CREATE TABLE {name}.readings (key bigint PRIMARY KEY, version bigint NOT NULL, label text NOT NULL, amount bigint,
    CHECK (amount <> 13), topic text NOT NULL, partition integer NOT NULL, "offset" bigint NOT NULL);
CREATE TABLE {name}.notes (id bigint PRIMARY KEY, text text NOT NULL, topic text NOT NULL, partition integer NOT NULL,
    "offset" bigint NOT NULL, landings integer NOT NULL DEFAULT 1);
"""

_MERGE_READINGS = """
INSERT INTO {name}.readings AS stored (key, version, label, amount, topic, partition, "offset")
SELECT DISTINCT ON (key) key, version, label, amount, topic, partition, "offset" FROM :stage AS stage
ORDER BY key, version DESC, "offset" DESC
ON CONFLICT (key) DO UPDATE SET version = excluded.version, label = excluded.label, amount = excluded.amount,
    topic = excluded.topic, partition = excluded.partition, "offset" = excluded."offset"
WHERE (excluded.version, excluded."offset") > (stored.version, stored."offset");
"""

# Counts the writes of a note, so that a second write is visible, which a usual merge would hide.
_MERGE_NOTES = """
INSERT INTO {name}.notes AS stored (id, text, topic, partition, "offset")
SELECT id, text, topic, partition, "offset" FROM :stage AS stage ORDER BY id
ON CONFLICT (id) DO UPDATE SET landings = stored.landings + 1;
"""


def write_domain(root: Path, checkout: Path, name: str) -> None:
    """Write the pipeline's files, and Onefold's own."""
    for folder in ("avro", "sql/schema", "sql/merge"):
        (root / folder).mkdir(parents=True)
    shutil.copy(checkout / "sql/merge/onefold.rejected.sql", root / "sql/merge")
    (root / f"sql/schema/{name}.01.sql").write_text(_SCHEMA.format(name=name), encoding="utf-8")
    for kind, fields, merge in (("readings", _READING, _MERGE_READINGS), ("notes", _NOTE, _MERGE_NOTES)):
        schema = {"type": "record", "name": kind.title(), "namespace": name, "fields": fields}
        (root / f"avro/{name}.{kind}.avsc").write_text(
            json.dumps({**schema, "topics": [f"{name}.{kind}"]}), encoding="utf-8"
        )
        (root / f"sql/merge/{name}.{kind}.sql").write_text(merge.format(name=name), encoding="utf-8")


class MadeUp:
    """The invented pipeline's topics, and the expected rows."""

    def __init__(self, name: str, root: Path, bootstrap_servers: str) -> None:
        self.name, self.root = name, root
        self.readings, self.notes = f"{name}.readings", f"{name}.notes"
        self.topics = [self.notes, self.readings]
        self._servers = bootstrap_servers
        self._schemas = {
            topic: json.loads((root / f"avro/{topic}.avsc").read_text(encoding="utf-8")) for topic in self.topics
        }
        self._producer: Producer | None = None
        self._looks: KafkaTopics | None = None
        self._partitions = 2
        self._latest: dict[int, Row] = {}
        self._notes: dict[int, Row] = {}
        self.sent = 0

    def create_topics(self, partitions: int) -> None:
        """Create both topics."""
        new = [NewTopic(topic, partitions, 1) for topic in self.topics]
        admin = AdminClient({"bootstrap.servers": self._servers})
        for future in admin.create_topics(new).values():
            future.result()

    def make_anew(self, partitions: int = 2) -> None:
        """Delete and create the topics under the same names."""
        delete_topics(AdminClient({"bootstrap.servers": self._servers}), tuple(self.topics))
        self.create_topics(partitions)

    def add_topic(self, topic: str, schema: dict[str, Any]) -> None:
        """Add a topic, to be created with the others."""
        self.topics.append(topic)
        self._schemas[topic] = schema

    def encode(self, topic: str, record: dict[str, Any]) -> bytes:
        """Encode an Avro single object."""
        return self._header(topic) + _body(self._schemas[topic], record)

    def raw(self, topic: str, record: dict[str, Any]) -> dict[str, Any]:
        """Numbers, bytes and texts that Avro stores for the record's dates, times, decimals and ids."""
        body = io.BytesIO(_body(self._schemas[topic], record))
        found = fastavro.schemaless_reader(body, _raw(self._schemas[topic]), None)
        assert isinstance(found, dict)
        return found

    def encode_raw(self, topic: str, raw: dict[str, Any]) -> bytes:
        """Encode an Avro single object from such numbers, bytes and texts."""
        return self._header(topic) + _body(_raw(self._schemas[topic]), raw)

    def _header(self, topic: str) -> bytes:
        canonical = to_parsing_canonical_form(self._schemas[topic])
        return b"\xc3\x01" + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))

    def send(self, numbers: range, *, commit: bool = True, partitions: int = 2) -> None:
        """Send a reading (of key number % 7) and a note for each number, in one transaction."""
        values: list[tuple[str, int, bytes | None]] = []
        if partitions != self._partitions:  # new clients, which fetch the topics' metadata again
            self.close()
            self._producer, self._partitions = None, partitions
        self.sent = max(self.sent, numbers.stop)
        for number in numbers:
            key = number % 7
            reading = {"key": key, "version": number, "label": f'the "{number}",\nth', "amount": number * 2 or None}
            note = {"id": number, "text": "" if number % 2 else f"note {number}"}
            values.append((self.readings, key % partitions, self.encode(self.readings, reading)))
            values.append((self.notes, number % partitions, self.encode(self.notes, note)))
            if commit:
                self._latest[key] = max(
                    self._latest.get(key, (key, -1)), tuple(reading.values()), key=lambda row: row[1]
                )
                self._notes[number] = (number, note["text"], 1)
        self.send_raw(values, commit=commit)

    def send_raw(
        self,
        values: list[tuple[str, int, bytes | None]],
        *,
        commit: bool = True,
        source: bytes | None = None,
        strangers: int = 0,
    ) -> None:
        """Send arbitrary bytes as (topic, partition, value), in one transaction.

        `source`: header of a processor for that input record, on all values but the first `strangers`.
        """
        headers: list[tuple[str, str | bytes | None]] = [("onefold-source", source)] if source else []
        producer = self._transactional()
        producer.begin_transaction()
        for number, (topic, partition, value) in enumerate(values):
            producer.produce(topic, value, b"k", partition, headers=headers if number >= strangers else [])
        producer.flush(20)
        producer.commit_transaction(20) if commit else producer.abort_transaction(20)

    def is_landed(self, dsn: str) -> bool:
        """Whether the ledger has reached the end of every partition. Raises when Kafka or PostgreSQL is unreachable."""
        if self._looks is None:
            self._looks = KafkaTopics(self._servers, {})
        return at_the_end(dsn, self.name, self._looks, self.topics)

    def close(self) -> None:
        """Close the connections to Kafka."""
        if self._looks is not None:
            self._looks.close()
            self._looks = None

    def check(self, connection: "psycopg.Connection[Any]") -> None:
        """Check that every row is right, and that no note was written twice."""
        readings = connection.execute(f"SELECT key, version, label, amount FROM {self.name}.readings").fetchall()
        assert {row[0]: row for row in readings} == self._latest
        notes = connection.execute(f"SELECT id, text, landings FROM {self.name}.notes").fetchall()
        assert {row[0]: row for row in notes} == self._notes

    def _transactional(self) -> Producer:
        if self._producer is None:
            self._producer = transactional({"bootstrap.servers": self._servers}, self.name)
        return self._producer


def _body(schema: Any, record: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, record)
    return body.getvalue()


def _raw(schema: Any) -> Any:
    """The schema without logical types."""
    if isinstance(schema, list):
        return [_raw(part) for part in schema]
    if isinstance(schema, dict):
        return {name: _raw(part) for name, part in schema.items() if name != "logicalType"}
    return schema


def at_the_end(dsn: str, domain: str, looks: KafkaTopics, topics: list[str]) -> bool:
    """Whether the pipeline's ledger has reached the end of every partition of `topics`."""
    with closing(connect(dsn, "look")) as connection:
        # Onefold's migrations end before those of a pipeline begin, and each is a separate transaction.
        there = connection.execute("SELECT to_regclass('onefold.applied')").fetchone() != (None,)
        asked = "SELECT count(*) > 0 FROM onefold.applied WHERE pipeline = %s"
        migrated = there and connection.execute(asked, (domain,)).fetchone() == (True,)
        stored = ledger.positions(connection, domain) if migrated else {}
    return all(key in stored and stored[key].next_offset == found.end for key, found in looks.reach(topics).items())
