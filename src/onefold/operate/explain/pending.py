"""Find records of a row that are missing in PostgreSQL: not processed yet, not written yet, rejected by the sink, or dead
letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.operate import lag, offsets
from onefold.operate.dead_letters.letters import DeadLetters
from onefold.operate.explain.rows import REJECTED_MAX, RejectedOutput, RowIdentity
from onefold.operate.record_reader import LogReader, RecordPlace, Silent, Stored
from onefold.operate.shown_values import Values, header
from onefold.printable import printable
from onefold.processor.core.values import SOURCE_HEADER
from onefold.processor.runtime.dead_letters import REASON_HEADER

# The search limit for unwritten records, in all partitions together: the next record of the row is usually near.
_RECORDS_MAX = 5_000
# The newest records in each partition of a dead-letter topic.
_DEAD_MAX = 200


class PendingRecords:
    """Finds missing records of a row. Every method returns sentences.

    Args:
        topics: the topics that fill the table.
        landed: the offsets that the sink has written.
        rejected: the newest records that the sink rejected.
    """

    def __init__(
        self,
        reader: LogReader,
        values: Values,
        topics: Sequence[str],
        landed: Mapping[offsets.Place, offsets.LastBatch],
        rejected: Sequence[RejectedOutput],
    ) -> None:
        self._reader = reader
        self._values = values
        self._topics = topics
        self._landed = landed
        self._rejected = rejected

    def of_row(self, identity: RowIdentity, origin: RecordPlace | None) -> list[str]:
        """Find records that the sink rejected, or has not written yet. Raises `Silent`."""
        return [*self._rejections(identity), *self._unwritten(identity, origin)]

    def _rejections(self, identity: RowIdentity) -> list[str]:
        found, unreadable = [], 0
        for one in self._rejected:
            if one.place.topic not in self._topics:
                continue
            stored = Stored(one.place, 0, None, one.value, ())
            fields, problem = self._values.fields(stored)
            if fields is None or problem is not None:
                unreadable += 1
            elif identity.has(stored, fields):
                found.append(
                    f"the sink rejected a record of this row, in onefold.rejected: {one.place}: {printable(one.reason)}"
                )
        if unreadable:
            most = " of the newest" if len(self._rejected) == REJECTED_MAX else ""
            found.append(
                f"{unreadable:,}{most} records in onefold.rejected of the sink {self._values.topology.name} cannot be read, and "
                f"may be of this row"
            )
        return found

    def _unwritten(self, identity: RowIdentity, origin: RecordPlace | None) -> list[str]:
        found: list[str] = []
        behind = looked = 0
        for topic in self._topics:
            for partition in range(self._reader.partitions(topic)):
                batch = self._landed.get((topic, partition))
                if batch is None and origin is not None:
                    continue  # the sink has no offset: the row has a different writer
                bounds = self._reader.bounds(topic, partition)
                start = max(bounds.start, batch.next_offset if batch is not None else 0)
                behind += max(0, bounds.end - start)
                end = min(bounds.end, start + _RECORDS_MAX - looked)
                if end <= start:
                    continue
                looked += end - start
                of_row = [
                    one.place
                    for one in self._reader.read(topic, partition, start, end)
                    if identity.has(one, self._values.fields(one)[0])
                ]
                found += [
                    f"a record of this row is in Kafka, and not in PostgreSQL yet: {place}" for place in of_row[-3:]
                ]
        if behind and (not found or origin is None):
            beyond = f"; the first {looked:,} were looked through" if looked < behind else ""
            found.append(
                f"{behind:,} offsets of the topics that make this table are not written to PostgreSQL yet{beyond}"
            )
        return found

    def dead(self, key: Mapping[str, str | None], settings: Settings) -> list[str]:
        """Find dead letters whose Kafka key is a value of the row's key, among the newest. Raises `Silent`."""
        keys = {value.encode() for value in key.values() if value is not None}
        found: list[Stored] = []
        for topic in self._values.topology.dead.values():
            for partition in range(self._reader.partitions(topic)):
                bounds = self._reader.bounds(topic, partition)
                start = max(bounds.start, bounds.end - _DEAD_MAX)
                if start < bounds.end:
                    read = self._reader.read(topic, partition, start, bounds.end)
                    found += [stored for stored in read if stored.key in keys]
        return self._told(found[-3:], settings) if found else []

    def _told(self, dead: Sequence[Stored], settings: Settings) -> list[str]:
        """Give the reasons of dead letters, and whether they were replayed or dropped. Raises `Silent`."""
        letters, told = DeadLetters(self._values.topology.name, settings), []
        try:
            receipts = letters.receipts()
            for stored in dead:
                receipt = letters.receipt(RecordPlace.found(header(stored, SOURCE_HEADER)), receipts)
                since = "" if receipt is None else f", {printable(str(receipt))}"
                reason = printable(header(stored, REASON_HEADER) or "no reason is given")
                told.append(f"an input record with this key is a dead letter{since}: {stored.place}: {reason}")
        except UserError as error:
            raise Silent(error.message) from None
        return told


def unprocessed(pipeline: str, settings: Settings) -> list[str]:
    """Count the input records that the processor has not processed yet."""
    found = lag.of(pipeline, settings)
    if not found.input_events:
        return []
    most = "" if found.exact else "up to "
    what = "input record is" if found.input_events == 1 else "input records are"
    return [f"{most}{found.input_events:,} {what} not processed yet"]
