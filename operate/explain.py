"""What made a row: the output record that it came from, the input record that caused that, the transactions of both, and the
records of the same row before.

All of it starts from what is stored with the row, its origin; no topic is read from its beginning. What Kafka has forgotten,
or does not answer, is said in a sentence, and the rest is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg

from onefold.error_codes import Code, CodedError
from onefold.exit_codes import REFUSED, USAGE
from onefold.operate import landings, merges, pipelines, positions, rows, transactions, waiting
from onefold.operate.errors import UserError, of_postgres
from onefold.operate.explained import Batch, Cause, Explanation, History, Landed, Shown, Step
from onefold.operate.identity import Identity
from onefold.operate.reading import BYTES_MAX, RECORDS_MAX, Bounds, LogReader, Looked, Place, Silent, Stored
from onefold.operate.rows import Row
from onefold.operate.settings import Settings
from onefold.operate.values import Values, differences, header, readable
from onefold.pipelines import Faulty, Pipeline
from onefold.processor import loading
from onefold.processor.core.owner import Owner
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import SOURCE_HEADER, TIMESTAMP_HEADER, TRACE_HEADER

#: Of the history, how many records are shown.
LIMIT = 10
#: For all questions to Kafka together.
PATIENCE_S = 30.0
# A copy of a copy does not exist, and a pipeline that feeds itself may do so for ever.
_CAUSES_MAX = 8
# Of the inputs between the events of two output records, how many records are looked through, for all steps together.
_BETWEEN_MAX = 5_000
# Of the changelog, how many records are looked through for the transactions of records before the row's own: for each of them,
# and for all. A look takes some hundredths of a second, however little it reads, and counts as so many records at least.
_FOLDED_MAX = 2_000
_ALL_FOLDED_MAX = 10_000
_FOLDED_LEAST = 200


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
    """Everything that can be known of a row.

    Args:
        dsn: of the database.
        table: as `campaigns.totals`.
        key: the columns of its key, as texts.
        limit: how many records of its history are looked for.
        records_max: how many records are looked through for them.
        patience_s: how long Kafka is waited for, for all of it.
        role: of the database, whose rights are taken on where that is possible.

    Raises:
        UserError: there is no such pipeline or table, the key is none of its, or the pipeline does not load; or rows come from a
            decision log (exit code 3).
        psycopg.Error: the database does not answer.
    """
    schema, _, name = table.partition(".")
    if not name:
        raise UserError(
            Code.ARGUMENT_WRONG, f"{table!r} is no table", "Write the schema too, as in campaigns.totals.", USAGE
        )
    (domain,) = pipelines.checked([schema])
    pipeline = pipelines.found()[domain]
    try:
        topology = loading.load_topology(pipeline)
    except Faulty as fault:
        raise UserError(Code.PIPELINE_WRONG, str(fault), exit_code=USAGE) from None
    with rows.reading(dsn, role) as connection:
        row = rows.find(connection, schema, name, key)
        batches = positions.last_batches(connection, domain)
        if why := positions.from_decision_log(topology, batches):
            raise UserError(Code.TABLES_OF_OTHER_TOPICS, why, f"Run `onefold rebuild {domain}`.", REFUSED)
        rejected = rows.rejected(connection, domain)
        noted = _noted(connection, topology.name, batches, [row.origin] if row.origin else [])
    explanation = Explanation(
        table, dict(row.key), None if row.values is None else dict(row.values), str(row.origin) if row.origin else None
    )
    began = time.monotonic()
    values = Values(pipeline, topology, settings.schema_registry_url)
    try:
        client = settings.client()
    except UserError as error:
        explanation.notes.append(error.message)
        return explanation
    with closing(LogReader(client, patience_s)) as reader:
        work = _Work(pipeline, topology, values, reader, row, batches, noted, explanation)
        try:
            work.all(rejected, limit, records_max)
            if row.values is None:
                explanation.notes += waiting.to_fold(domain, settings)
        except Silent as silent:
            explanation.notes.append(f"{silent}. What is said here is what the database knows")
        explanation.records_read, explanation.bytes_read = reader.records, reader.bytes
    if work.places:
        # Anew: while Kafka was asked, no snapshot of the database was held.
        try:
            with rows.reading(dsn, role) as connection:
                work.landed(_noted(connection, topology.name, batches, work.places))
        except psycopg.Error as error:
            explanation.notes.append(problem_of(error).message)
    explanation.seconds = time.monotonic() - began
    return explanation


class _Work:
    """One explanation in the making."""

    def __init__(
        self,
        pipeline: Pipeline,
        topology: Topology,
        values: Values,
        reader: LogReader,
        row: Row,
        batches: Mapping[positions.Place, positions.LastBatch],
        noted: Mapping[Place, landings.Landing],
        explanation: Explanation,
    ) -> None:
        self._topology = topology
        self._values = values
        self._reader = reader
        self._row = row
        self._batches = batches
        self._noted = noted
        self._told = explanation
        self._made_anew = False
        self._between_left = _BETWEEN_MAX
        self._feeds = merges.feeds(pipeline, explanation.table, topology.outputs)
        #: Of the records of the history that is shown, where each lies.
        self.places: list[Place] = []

    def all(self, rejected: list[rows.Rejected], limit: int, records_max: int) -> None:
        """Everything; raises `Silent` where Kafka does."""
        row, told = self._row, self._told
        if row.values is None:
            told.notes.append(f"{told.table} has no such row")
            self._outstanding(None, Identity.of_key(row.key), rejected)
            told.notes += waiting.dead(self._reader, self._topology, row.key)
            return
        if row.origin is None:
            told.notes.append(
                f"{told.table} does not keep which record a row came from: it has no columns of its origin"
            )
            return
        batch = self._batches.get((row.origin.topic, row.origin.partition))
        told.batch = _batch(row, batch, self._noted.get(row.origin))
        self._same_topic(row.origin, batch)
        found = self._reader.at(row.origin)
        if isinstance(found, str):
            told.output = Shown(str(row.origin), problem=found)
            told.notes.append(found)
            return
        told.accumulated = sorted(frozenset[str]().union(*(feed.accumulated for feed in self._feeds)))
        told.output = self._shown(found)
        told.causes = self._causes(found)
        folded = self._folded(found, told.causes, transactions.RECORDS_MAX)
        if isinstance(folded, str):
            told.notes.append(folded)
        else:
            told.folded = folded
        topic, values = found.place.topic, self._values
        adds_up = any(feed.accumulated for feed in self._feeds if feed.topic == topic)
        identity = Identity.of_row(row, values.fields(found)[0], found, adds_up)

        def of_the_row(stored: Stored) -> bool:
            return identity.has(stored, values)

        records, looked = self._backwards(found, of_the_row, limit + 1, records_max)
        self._history(records, limit)
        told.looked = History(f"{topic}/{row.origin.partition}", looked.start, looked.whole, identity.names)
        others = {feed.topic: values.names(feed.topic) for feed in self._feeds if feed.topic != topic}
        told.say_what_columns_are(values.fields(found)[0] or {}, others)
        self._outstanding(found.place, identity, rejected)
        self._transactions(records[:limit])

    def _backwards(
        self, newest: Stored, wanted: Callable[[Stored], bool], count: int, records_max: int
    ) -> tuple[list[Stored], Looked]:
        """Read so many records that are wanted, from this one on backwards; and how far was looked for them. Raises `Silent`."""
        topic, partition, offset = newest.place
        found = [newest]

        def take(records: list[Stored]) -> bool:
            found.extend(filter(wanted, reversed(records)))
            return len(found) >= count

        bounds = Bounds(self._reader.bounds(topic, partition).start, offset)
        # Who wants to look further than usual has records of the usual size looked through.
        bytes_max = BYTES_MAX * max(1, records_max // RECORDS_MAX)
        looked = self._reader.backwards(topic, partition, bounds, take, records_max, bytes_max)
        return found[:count], looked

    def _same_topic(self, origin: Place, batch: positions.LastBatch | None) -> None:
        if batch is None or not self._reader.partitions(origin.topic):
            return
        now = self._reader.topic_ids([origin.topic])[origin.topic]
        if now != batch.topic_id:
            self._made_anew = True
            self._told.notes.append(
                f"{origin.topic} was deleted and recreated since the sink wrote this row (id {batch.topic_id} then, {now} now): "
                f"the record at its origin now is another record"
            )

    def _shown(self, stored: Stored) -> Shown:
        fields, problem = self._values.fields(stored)
        raw = None if problem is None else readable(stored.value)
        trace = header(stored, TRACE_HEADER)
        return Shown(str(stored.place), stored.at_ms, readable(stored.key), fields, raw, problem, trace)

    def _causes(self, stored: Stored) -> list[Cause]:
        """The input record that caused an output, and what that is a copy of, or was caused by in its turn."""
        causes: list[Cause] = []
        how = "caused by"
        while len(causes) < _CAUSES_MAX:
            text = header(stored, SOURCE_HEADER)
            if text is None and causes:
                break
            place = Place.found(text)
            if place is None:
                problem = "it names no input record: its header onefold-source is missing, or says something else"
                causes.append(Cause(how, Shown(readable((text or "").encode()) or "", problem=problem)))
                break
            found = self._reader.at(place)
            if isinstance(found, str):
                causes.append(Cause(how, Shown(str(place), problem=found)))
                break
            causes.append(Cause(how, self._shown(found), found))
            copied = header(found, TIMESTAMP_HEADER) is not None and self._wrote(found)
            if not copied and place.topic not in self._topology.fed:
                break
            stored, how = found, "a copy of" if copied else "caused by"
        return causes

    def _wrote(self, copy: Stored) -> bool:
        return Owner(self._reader.cluster_id(), self._topology.name).wrote(copy.place.topic, copy.headers)

    def _folded(self, written: Stored, causes: Sequence[Cause], records_max: int) -> transactions.Folded | str | None:
        """The transaction that wrote an output record, why it is not known, or None: it names no input record."""
        text = header(written, SOURCE_HEADER)
        source = Place.found(text)
        if source is None:
            return None
        first = causes[0].stored if causes else None
        key = self._values.key_of(first) if first is not None else None
        return transactions.of_changelog(self._reader, self._topology, source, written.at_ms, key, records_max)

    def _transactions(self, found: Sequence[Stored]) -> None:
        """Say of each record of the history by which transaction it was written. That of the first, the row's own, is known."""
        history, left = self._told.history, _ALL_FOLDED_MAX
        history[:1] = [replace(step, folded=self._told.folded) for step in history[:1]]
        for number, written in enumerate(found[1:], 1):
            if left <= 0:
                history[number].unknown.append(
                    f"its transaction was not looked for: {_ALL_FOLDED_MAX:,} records of the changelog at most are looked "
                    f"through for those of the history"
                )
                continue
            read = self._reader.records
            folded = self._folded(written, history[number].causes, min(left, _FOLDED_MAX))
            left -= max(self._reader.records - read, _FOLDED_LEAST)
            if isinstance(folded, str):
                history[number].unknown.append(folded)
            else:
                history[number] = replace(history[number], folded=folded)

    def landed(self, noted: Mapping[Place, landings.Landing]) -> None:
        """Say of each record of the history by which batch it was landed."""
        steps = self._told.history
        for number, (place, step) in enumerate(zip(self.places, steps, strict=True)):
            if self._made_anew:
                step.unknown.append("its batch is not known: it lies in a topic that was made again")
            elif place in noted:
                steps[number] = replace(step, landed=Landed.of(noted[place]))
            else:
                step.unknown.append("its batch is not known: onefold.batch does not have it, or not any more")

    def _history(self, found: list[Stored], limit: int) -> None:
        shown = [self._shown(one) for one in found]
        for number, (one, step) in enumerate(zip(found[:limit], shown, strict=False)):
            before = shown[number + 1] if number + 1 < len(shown) else None
            changed: dict[str, Any] | None = None
            if before is not None and isinstance(step.value, dict) and isinstance(before.value, dict):
                changed = differences(before.value, step.value)
            self._told.history.append(Step(step, self._causes(one), changed))
            self.places.append(one.place)
        if found and self._topology.outputs.get(found[0].place.topic) is not None:
            self._told.history[:] = [
                self._with_others(step, earlier)
                for step, earlier in zip(self._told.history, [*self._told.history[1:], None], strict=True)
            ]

    def _with_others(self, step: Step, before: Step | None) -> Step:
        """The same with the input records of its key between its own and that of the record before."""
        mine = step.causes[0].stored if step.causes else None
        theirs = before.causes[0].stored if before is not None and before.causes else None
        if mine is None or theirs is None or mine.place[:2] != theirs.place[:2]:
            return step
        first = max(theirs.place.offset + 1, mine.place.offset - self._between_left)
        self._between_left -= mine.place.offset - first
        key = self._values.key_of(mine)
        of_key = [
            str(stored.place)
            for stored in self._reader.read(*mine.place[:2], first, mine.place.offset)
            if key is not None and self._values.key_of(stored) == key
        ]
        return replace(step, others=of_key[::-1], others_whole=first == theirs.place.offset + 1)

    def _outstanding(self, origin: Place | None, identity: Identity, rejected: list[rows.Rejected]) -> None:
        """What has been written for this row and has not landed, or never will."""
        topics = [feed.topic for feed in self._feeds]
        self._told.notes += waiting.set_aside(rejected, topics, identity, self._values)
        self._told.notes += waiting.on_the_way(self._reader, self._batches, topics, identity, self._values, origin)


def _noted(
    connection: psycopg.Connection[Any],
    sink: str,
    batches: Mapping[positions.Place, positions.LastBatch],
    places: Sequence[Place],
) -> dict[Place, landings.Landing]:
    """The batches of output records, as they were noted."""
    ids = {place: batches[place[:2]].topic_id for place in places if place[:2] in batches}
    return landings.landings(connection, sink, ids)


def _batch(row: Row, last: positions.LastBatch | None, noted: landings.Landing | None) -> Batch | None:
    """What is known of the sink's transaction: the batch of the row's record as it was noted; or else of the last one of its
    partition, which the ledger has, whether it was that one, for a row has the number of its own.
    """
    if last is None:
        return None
    if noted is not None:
        later = (last.updated_at.isoformat(), last.writer) if noted.next_offset < last.next_offset else (None, None)
        return Batch(noted.writer, noted.at.isoformat(), True, last.next_offset, *later)
    if row.transaction is not None and row.transaction == last.transaction:
        return Batch(last.writer, last.updated_at.isoformat(), True, last.next_offset)
    at = row.committed_at.isoformat() if row.committed_at is not None else None
    return Batch(None, at, at is not None, last.next_offset, last.updated_at.isoformat(), last.writer)


def problem_of(error: psycopg.Error) -> CodedError:
    """What to say when the database does not answer."""
    return of_postgres(error, "the database does not answer")
