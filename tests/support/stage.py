"""The complete result of a pipeline without a pipeline: correct topics and tables, which the verifier must accept.

A test then changes one thing, and the verifier must report the mismatch. The content comes from the verifier's own model.
So these tests show what the verifier detects, not whether the model is right, which its own tests show.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import psycopg
from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, as no checker sees
from psycopg import sql

from onefold.spark_sink.contracts import ENGINE_SQL
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from onefold.verify.contracts import contracts
from onefold.verify.expect import Expected, Oracle, Table, Workload
from onefold.verify.partitioner import partition_of
from onefold.verify.record import ReadRecord, Source
from onefold.verify.writer_identity import COPY_HEADER, PIPELINE_HEADER, SOURCE_HEADER, WriterIdentity
from onefold.workloads import campaigns
from onefold.workloads.shaping import Input
from tests.support.waiting import eventually

PARTITIONS = 2
SQL = Path(__file__).resolve().parents[2] / "sql"
# Larger than any allowed input, so that the broker accepts records that the pipeline must refuse.
_MESSAGE_BYTES_MAX = 4 * 1024 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Fields of output records without a column in a table.
_BESIDE = {"trades.deltas": {"messages": 1}, "averages.alarms": {"window_end": 0}}

Header = tuple[str, bytes]


class ChangedRule(campaigns.CampaignsModel):
    """The rule of campaigns, until a test sets `changed`, as after a change of the handler."""

    changed: Callable[[dict[str, Any]], bool] | None = None

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Apply the record, unless the changed rule refuses."""
        return (self.changed is None or self.changed(value)) and super().apply(value, source)


class Stage:
    """Topics and tables of one pipeline. `place`: partition and offset of an output record by topic and row key."""

    def __init__(self, bootstrap_servers: str, dsn: str, workload: Workload) -> None:
        self.client: dict[str, Any] = {"bootstrap.servers": bootstrap_servers}
        self.dsn = dsn
        self.workload = workload
        self.expected: Expected
        #: Tasks that write their progress.
        self.reporting: Sequence[int] = range(PARTITIONS)
        self.originals: dict[Source, ReadRecord] = {}
        #: State key of each input record.
        self.keys: dict[Source, str] = {}
        #: Headers of each input.
        self.traced: list[Header] = [("traceparent", b"00-1-2-01")]
        self.place: dict[tuple[str, tuple[Any, ...]], tuple[int, int]] = {}
        self._ends: dict[tuple[str, int], int] = defaultdict(int)
        self.cluster_id, self._ids = self._open()
        self._migrate()
        life = self._ids[f"{workload.name}.changelog"]
        self.oracle = Oracle(workload, PARTITIONS, owner=WriterIdentity(self.cluster_id, workload.name, life))

    def play(self, inputs: Iterable[Input]) -> None:
        """Write the inputs, and all their results in topics and tables. A further call continues from there."""
        oracle = self.oracle
        buried = set(oracle.expected.dead)
        rows = {table.name: dict(oracle.expected.model.rows[table.name]) for table in self.workload.tables}
        for given in inputs:
            partition = partition_of(given.key.decode(), PARTITIONS) if given.key else len(self.originals) % PARTITIONS
            record = self._send(given.topic, partition, given.key, given.value, self.traced)
            self._feed(record)
            self.originals[Source(*record[:3])] = record
        for source, (copy, _) in list(oracle.settled().uncopied.items()):
            self._feed(self.copy(source, copy.partition, copy.key))
        self.expected = oracle.settled()
        for source in self.expected.dead.keys() - buried:
            self.bury(source)
        for table in self.workload.tables:
            for key, row in self.expected.model.rows[table.name].items():
                if rows[table.name].get(key) != row:
                    self.place.pop((table.name, key), None)
                    if table.summed:
                        self.place[table.name, key] = 0, 0  # a summed table's row has no single record
                    else:
                        self.write(table, key)
        self.flush()
        self.report_progress()
        self._fill_tables()

    def _migrate(self) -> None:
        migrate(self.dsn, ENGINE, ENGINE_SQL)
        migrate(self.dsn, self.workload.name, SQL)

    def _feed(self, record: ReadRecord) -> None:
        self.oracle.feed(record)
        self.keys[Source(*record[:3])] = self.oracle.key

    def write(
        self,
        table: Table,
        key: tuple[Any, ...],
        source: Source | None = None,
        partition: int | None = None,
        values: tuple[Any, ...] | None = None,
        kafka_key: bytes | None = None,
    ) -> str:
        """Write the output record of a row; returns its place.

        The caller may choose a different source, partition, values and Kafka key.
        """
        right, right_source = self.expected.model.rows[table.name][key]
        values = values or right
        fields = {c.name: _written(c.kind, v) for c, v in zip(table.columns, values, strict=True) if not c.generated}
        fields |= _BESIDE.get(table.topic, {})
        contract, body = contracts()[table.topic], BytesIO()
        fastavro.schemaless_writer(body, contract.schema, fields)
        header = [(SOURCE_HEADER, str(source or right_source).encode())]
        lies_in = (source or right_source).partition if partition is None else partition
        record = self._send(
            table.topic,
            lies_in,
            kafka_key or self.keys[right_source].encode(),
            contract.prefix + body.getvalue(),
            header,
        )
        self.place.setdefault((table.name, key), (record.partition, record.offset))
        return f"{record.topic}/{record.partition}/{record.offset}"

    def bury(self, source: Source) -> str:
        """Write the dead letter of a record; returns its place."""
        original = self.originals[source]
        value = original.value or b""
        headers = [
            (SOURCE_HEADER, str(source).encode()),
            ("onefold-reason", b"because"),
            ("onefold-sha256", hashlib.sha256(value).hexdigest().encode()),
            ("onefold-bytes", b"%d" % len(value)),
        ]
        head = None if original.value is None else value[:65536]
        record = self._send(f"{source.topic}.dead", source.partition, original.key, head, headers)
        return f"{record.topic}/{record.partition}/{record.offset}"

    def copy(
        self, source: Source, partition: int, key: bytes, sent: bytes | None = None, traced: list[Header] | None = None
    ) -> ReadRecord:
        """Write the copy of a repartitioned record, optionally with a different time and different sender headers."""
        name, original = self.workload.name, self.originals[source]
        by = f"{self.cluster_id}/{name}/{self._ids[f'{name}.changelog']}".encode()
        own = [
            (SOURCE_HEADER, str(source).encode()),
            (COPY_HEADER, sent or b"%d" % (original.timestamp_ms or 0)),
            (PIPELINE_HEADER, by),
        ]
        headers = [*(self.traced if traced is None else traced), *own]
        return self._send(source.topic, partition, key, original.value, headers)

    def report_progress(self, **counts: int) -> None:
        """Write that all records so far are processed and written. `counts` replaces correct counts, by their stored names."""
        counted = {**self.expected.counts.as_stored(), **counts}
        for partition in self.reporting:
            inputs = {
                topic: {"topic_id": self._ids[topic], "next_offset": self._ends[topic, partition]}
                for topic in self.workload.reads
            }
            body = {"inputs": inputs, "counts": counted if partition == 0 else {}, "transactions": 1}
            self._send(f"{self.workload.name}.changelog", partition, b"p", json.dumps(body).encode(), [])
        self._fill_ledger()

    def _fill_ledger(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("DELETE FROM onefold.ledger WHERE sink = %s", [self.workload.name])
            for topic in self.workload.outputs:
                for partition in range(PARTITIONS):
                    connection.execute(
                        "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, writer, updated_at)"
                        " VALUES (%s, %s, %s, %s, %s, 'stage', now())",
                        [self.workload.name, topic, partition, self._ends[topic, partition], self._ids[topic]],
                    )

    def change_state(self, key: bytes, state: bytes) -> None:
        """Write a state into the changelog of task 0."""
        self._send(f"{self.workload.name}.changelog", 0, key, state, [])

    def _send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: list[Header]
    ) -> ReadRecord:
        offset = self._ends[topic, partition]
        self._ends[topic, partition] += 1
        sent_ms = int(time.time() * 1000)
        self._producer.produce(topic, value, key, partition, _must_be_at(offset), timestamp=sent_ms, headers=[*headers])
        self._producer.poll(0)
        return ReadRecord(topic, partition, offset, key, value, list(headers), sent_ms)

    def flush(self) -> None:
        """Wait until the broker has all records."""
        assert self._producer.flush(30) == 0

    def _fill_tables(self) -> None:
        self.flush()
        with psycopg.connect(self.dsn) as connection:
            for table in self.workload.tables:
                name = sql.Identifier(*table.name.split("."))
                connection.execute(sql.SQL("TRUNCATE {}").format(name))
                columns = [c.name for c in table.columns if not c.generated] + ["topic", "partition", "offset"]
                into = sql.SQL(", ").join(map(sql.Identifier, columns))
                with connection.cursor().copy(sql.SQL("COPY {} ({}) FROM STDIN").format(name, into)) as copy:
                    for key, (values, _) in self.expected.model.rows[table.name].items():
                        row = [v for c, v in zip(table.columns, values, strict=True) if not c.generated]
                        copy.write_row([*row, table.topic, *self.place[table.name, key]])

    @property
    def ends(self) -> dict[tuple[str, int], int]:
        """End of each partition, as far as the stage has written."""
        return self._ends

    @property
    def topics(self) -> list[str]:
        """Topics of the pipeline."""
        reads, outputs = self.workload.reads, self.workload.outputs
        return [*reads, *outputs, *(f"{topic}.dead" for topic in reads), f"{self.workload.name}.changelog"]

    def _open(self) -> tuple[str, dict[str, str]]:
        """Recreate the topics; returns the ids of the cluster and of each topic."""
        admin, names = AdminClient(self.client), self.topics
        for deleted in admin.delete_topics(names, operation_timeout=30).values():
            deleted.exception()
        eventually(lambda: not set(names) & set(admin.list_topics(timeout=10).topics), 30, "the old topics are gone")
        config = {"max.message.bytes": str(_MESSAGE_BYTES_MAX)}
        for name, made in admin.create_topics([NewTopic(name, PARTITIONS, config=config) for name in names]).items():
            assert made.exception() is None, f"{name}: {made.exception()}"
        # Idempotent, so that a retry right after the creation of topics changes neither order nor number of records.
        settings = {"message.max.bytes": _MESSAGE_BYTES_MAX, "enable.idempotence": True}
        self._producer = Producer({**self.client, **settings})
        ids = eventually(lambda: _ids(admin, names), 30, "the new topics can be described")
        return str(admin.list_topics(timeout=30).cluster_id), ids


def _written(kind: str, value: Any) -> Any:
    """The value as in an output record."""
    if kind == "millionths":
        return int(value * 1_000_000)
    if kind in ("instant", "timestamp-micros"):
        return (value - _EPOCH) // timedelta(microseconds=1)
    if kind == "timestamp-millis":
        return (value - _EPOCH) // timedelta(milliseconds=1)
    return value.isoformat(sep=" ") if isinstance(value, datetime) else value


def _must_be_at(offset: int) -> Any:
    def check(error: Any, message: Any) -> None:
        assert error is None, error
        assert message.offset() == offset, f"{message.topic()} holds records of somebody else"

    return check


def _ids(admin: AdminClient, names: list[str]) -> dict[str, str]:
    try:
        found = admin.describe_topics(TopicCollection(names))
        return {name: str(found[name].result().topic_id) for name in names}
    except KafkaException:
        return {}
