"""Trace a row: the output record, the input record that caused it, the processor's transaction, the sink's batch, and the last
records of the row.

The search starts from the origin that is stored with the row, and reads no topic from its beginning. If Kafka has deleted a
record, or does not answer, a note says so, and the rest is shown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing

from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED, USAGE
from onefold.operate import merge_sql, offsets, pipelines
from onefold.operate.explain import pending, rows, transactions
from onefold.operate.explain.explanation import Cause, Explanation, Folded, OutputStep, SearchedRange, ShownRecord
from onefold.operate.explain.rows import FoundRow, RowIdentity
from onefold.operate.record_reader import (
    BYTES_MAX,
    RECORDS_MAX,
    LogReader,
    PartitionBounds,
    RecordPlace,
    Silent,
    Stored,
)
from onefold.operate.shown_values import Values, differences, header, readable
from onefold.pipelines import InvalidDeclaration
from onefold.processor import loading
from onefold.processor.core.owner import Owner
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import SOURCE_HEADER, TIMESTAMP_HEADER, TRACE_HEADER

#: The number of records shown for the row.
LIMIT = 10
#: For all requests to Kafka together.
PATIENCE_S = 30.0
# A copy has no copies, but a feedback topic can continue the chain without end.
_CAUSES_MAX = 8


def explain(
    settings: Settings,
    dsn: str,
    table: str,
    key: Mapping[str, str],
    *,
    limit: int = LIMIT,
    records_max: int = RECORDS_MAX,
    patience_s: float = PATIENCE_S,
    role: str | None = None,
) -> Explanation:
    """Explain a row.

    Args:
        dsn: of the database.
        table: as `campaigns.totals`.
        key: the key columns, as texts.
        limit: the number of records shown for the row.
        records_max: the number of records to search.
        patience_s: the time-out of all requests to Kafka together.
        role: the database role to assume for its rights, if the login may.

    Raises:
        UserError: the pipeline or table is unknown, the key does not match the table, or the pipeline does not load; or rows
            come from a decision log (exit code 3).
        psycopg.Error: the database does not answer.
    """
    began = time.monotonic()
    schema, _, name = table.partition(".")
    if not name:
        raise UserError(
            Code.ARGUMENT_WRONG, f"{table!r} is no table", "Write the schema too, as in campaigns.totals.", USAGE
        )
    (pipeline_name,) = pipelines.checked([schema])
    pipeline = pipelines.found()[pipeline_name]
    try:
        topology = loading.load_topology(pipeline)
    except InvalidDeclaration as fault:
        raise UserError(Code.PIPELINE_WRONG, str(fault), exit_code=USAGE) from None
    with rows.reading(dsn, role) as connection:
        row = rows.find(connection, schema, name, key)
        landed = offsets.last_batches(connection, topology.name)
        if why := offsets.from_decision_log(topology, landed):
            raise UserError(Code.TABLES_OF_OTHER_TOPICS, why, f"Run `onefold rebuild {pipeline_name}`.", REFUSED)
        rejected = rows.rejected(connection, topology.name)
        topic_id = landed[row.origin[:2]].topic_id if row.origin and row.origin[:2] in landed else None
        batch = rows.batch(connection, topology.name, row.origin, topic_id) if row.origin and topic_id else None
    told = Explanation(table, dict(row.key), row.values, str(row.origin) if row.origin else None)
    told.batch = batch
    values = Values(pipeline, topology, settings.schema_registry_url)
    try:
        client = settings.client()
    except UserError as error:
        told.notes.append(error.message)
        return told
    with closing(LogReader(client, patience_s)) as reader:
        log = _Log(topology, values, reader)
        ask = pending.PendingRecords(
            reader, values, merge_sql.feeding(pipeline, table, topology.outputs), landed, rejected
        )
        try:
            if row.values is None:
                told.notes += [f"{table} has no such row", *ask.of_row(RowIdentity.of(row), None)]
                told.notes += [*ask.dead(row.key, settings), *pending.unprocessed(topology.name, settings)]
            elif row.origin is None:
                told.notes.append(f"{table} has no columns for the origin of its rows: topic, partition and offset")
            else:
                if topic_id is not None:
                    told.notes += log.recreated(row.origin.topic, topic_id)
                if batch is None:
                    told.notes.append("the batch of this row is not known: it is not in onefold.batch, or not any more")
                if (identity := log.explain(told, row, row.origin, limit, records_max)) is not None:
                    told.notes += ask.of_row(identity, row.origin)
        except Silent as silent:
            told.notes.append(f"{silent}. What is said here is what the database knows")
        told.records_read, told.bytes_read = reader.records, reader.bytes
    told.seconds = time.monotonic() - began
    return told


class _Log:
    """The records behind a row. Every method raises `Silent` if Kafka does not answer."""

    def __init__(self, topology: Topology, values: Values, reader: LogReader) -> None:
        self._topology = topology
        self._values = values
        self._reader = reader

    def explain(
        self, told: Explanation, row: FoundRow, origin: RecordPlace, limit: int, records_max: int
    ) -> RowIdentity | None:
        """Fill in the Kafka records of a row, and return the identity of the row's records; None: the output record is gone."""
        found = self._reader.at(origin)
        if isinstance(found, str):
            told.output = ShownRecord(str(origin), problem=found)
            told.notes.append(found)
            return None
        told.output = self._shown(found)
        told.causes, event = self._causes(found)
        folded = self._folded(found, event)
        if isinstance(folded, str):
            told.notes.append(folded)
        else:
            told.folded = folded
        identity = RowIdentity.of(row, self._values.fields(found)[0], found.key)
        self._history(told, found, identity, limit, records_max)
        return identity

    def recreated(self, topic: str, topic_id: str) -> list[str]:
        """Report a topic that was recreated since the sink read it."""
        if not self._reader.partitions(topic) or (now := self._reader.topic_ids([topic])[topic]) == topic_id:
            return []
        when = f"since the sink wrote this row (id {topic_id} then, {now} now)"
        return [f"{topic} was deleted and recreated {when}: the record at its origin now is another record"]

    def _shown(self, stored: Stored) -> ShownRecord:
        fields, problem = self._values.fields(stored)
        raw = None if problem is None else readable(stored.value)
        trace = header(stored, TRACE_HEADER)
        return ShownRecord(str(stored.place), stored.at_ms, readable(stored.key), fields, raw, problem, trace)

    def _causes(self, stored: Stored) -> tuple[list[Cause], Stored | None]:
        """Find the input record that caused an output, and then the original of each copy and the cause of each feedback
        record. The second value of the pair is the first input record.
        """
        causes: list[Cause] = []
        event: Stored | None = None
        how = "caused by"
        while len(causes) < _CAUSES_MAX:
            text = header(stored, SOURCE_HEADER)
            if text is None and causes:
                break
            place = RecordPlace.found(text)
            if place is None:
                problem = "it names no input record: its header onefold-source is missing, or says something else"
                causes.append(Cause(how, ShownRecord(readable((text or "").encode()) or "", problem=problem)))
                break
            found = self._reader.at(place)
            if isinstance(found, str):
                causes.append(Cause(how, ShownRecord(str(place), problem=found)))
                break
            event = event or found
            causes.append(Cause(how, self._shown(found)))
            copied = header(found, TIMESTAMP_HEADER) is not None and self._wrote(found)
            if not copied and place.topic not in self._topology.fed:
                break
            stored, how = found, "a copy of" if copied else "caused by"
        return causes, event

    def _wrote(self, copy: Stored) -> bool:
        return Owner(self._reader.cluster_id(), self._topology.name).wrote(copy.place.topic, copy.headers)

    def _folded(self, written: Stored, event: Stored | None) -> Folded | str | None:
        """Find the transaction that wrote an output record; None: the record names no input record."""
        source = RecordPlace.found(header(written, SOURCE_HEADER))
        if source is None:
            return None
        key = self._values.key_of(event) if event is not None else None
        return transactions.of_changelog(self._reader, self._topology, source, written.at_ms, key)

    def _history(self, told: Explanation, newest: Stored, identity: RowIdentity, limit: int, records_max: int) -> None:
        topic, partition, offset = newest.place
        found = [newest]

        def take(records: list[Stored]) -> bool:
            found.extend(one for one in reversed(records) if identity.has(one, self._values.fields(one)[0]))
            return len(found) > limit

        bounds = PartitionBounds(self._reader.bounds(topic, partition).start, offset)
        # A wider search by records is also a wider search by bytes.
        bytes_max = BYTES_MAX * max(1, records_max // RECORDS_MAX)
        looked = self._reader.backwards(topic, partition, bounds, take, records_max, bytes_max)
        told.looked = SearchedRange(f"{topic}/{partition}", looked.start, looked.whole, list(identity.values))
        shown = [self._shown(one) for one in found[: limit + 1]]
        for record, this, before in zip(found[:limit], shown, [*shown[1:], None], strict=False):
            known = before is not None and isinstance(this.value, dict) and isinstance(before.value, dict)
            changed = differences(before.value, this.value) if before is not None and known else None
            told.history.append(OutputStep(this, self._causes(record)[0], changed))
