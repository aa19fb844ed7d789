"""A sink over a simulated log: the real write path with ledger and merges on a real PostgreSQL, without Kafka and Spark."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from onefold.operate.record_reader import RecordPlace, Stored
from onefold.processor.core.topology import Topology
from onefold.processor.testing.log import SimulatedLog
from onefold.spark_sink.contracts import Target
from onefold.spark_sink.landing import land as landing
from onefold.spark_sink.landing import ledger
from onefold.spark_sink.landing.ledger import BatchRange, OffsetRange
from onefold.spark_sink.landing.staging_tables import Staged
from onefold.spark_sink.postgres.connection import Connection
from tests.support.merged import columns_of, of

WRITER = "a-sink"


class Given(Staged):
    """A batch whose rows are literals of the statement that reads them."""

    def __init__(self, targets: Mapping[str, Target], rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        self.targets = sorted(rows)
        self._targets, self._rows = targets, rows

    def fill(self, connection: Connection) -> None:
        """Nothing to fill: the statement holds the rows."""

    def relation(self, target: str) -> sql.Composable:
        """A SELECT of the rows for `target`."""
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.postgres_type))
            for column in self._targets[target].columns
        )
        rows = sql.Literal(Jsonb(list(self._rows[target])))
        return sql.SQL("SELECT * FROM jsonb_to_recordset({}) AS given({})").format(rows, columns)


class Lander:
    """Writer of committed records, from the ledger's offsets on."""

    def __init__(self, topology: Topology, connection: Connection) -> None:
        self._name, self._connection = topology.name, connection
        self._domain, self._values = of(topology)
        self._topics = [topic for topic in topology.outputs if topic in self._domain.targets]

    def land(self, log: SimulatedLog, step: Callable[[str], None]) -> None:
        """Write one batch of all topics with a table. A batch may be aborted at any step, and repeated."""
        stands = ledger.positions(self._connection, self._name)
        ranges, rows = list[OffsetRange](), dict[str, list[dict[str, Any]]]()
        for topic in self._topics:
            for partition in range(log.partitions(topic)):
                found = log.identity(topic, partition)
                if (topic, partition) not in stands:
                    ledger.open_partition(self._connection, self._name, (topic, partition), 0, found.topic_id, WRITER)
                start = stands[topic, partition].next_offset if (topic, partition) in stands else 0
                records, end = log.read(topic, partition, start)
                ranges.append(OffsetRange(topic, partition, start, end, found.topic_id))
                for offset, entry in records:
                    stored = Stored(RecordPlace(topic, partition, offset), 0, entry.key, entry.value, ())
                    rows.setdefault(topic, []).append(columns_of(self._values, stored))
        if rows:
            batch = BatchRange(self._name, WRITER, tuple(ranges))
            landing.land(self._connection, batch, Given(self._domain.targets, rows), self._domain.targets, step)
