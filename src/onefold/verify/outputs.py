"""Compare the processor's output records and dead letters with the input.

An output record must conform to its schema, and its header must name an accepted input record. All records of one row come from
one task, which reads its partition in order. So the sources of one row must strictly increase. Otherwise, the record is a
doubled output. A repeated write after an abort, or by a zombie, would show as a doubled output.

Memory: one entry for each row, and one for each dead letter.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from onefold.verify.column_types import KINDS, picked
from onefold.verify.contracts import contracts
from onefold.verify.decode import Inadmissible, decode_output
from onefold.verify.expect import Expected, Table, Workload
from onefold.verify.outcomes import FATES, Fate
from onefold.verify.parks import PARKED_HEADER, ticket_of
from onefold.verify.partitioner import partition_of
from onefold.verify.record import ReadRecord, Source, source_of
from onefold.verify.verdict import Finding
from onefold.verify.writer_identity import SOURCE_HEADER, WriterIdentity


class LastOutput(NamedTuple):
    """The last output record of a row, and the input record named in its header."""

    partition: int
    offset: int
    source: Source


#: See `Outputs.heard`.
Heard = Callable[[Table, tuple[Any, ...], dict[str, Any], LastOutput, LastOutput | None, ReadRecord, bool], object]


class Outputs:
    """Takes the records of output and dead-letter topics, and finds mismatches.

    Args:
        partitions: by topic, the number of partitions.
    """

    def __init__(
        self,
        workload: Workload,
        owner: WriterIdentity | None = None,
        partitions: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._partitions = {topic: partitions.get(topic, 1) for topic in workload.outputs}
        self._owner = owner or WriterIdentity("", workload.name)
        self._tables = workload.outputs
        self._contracts = contracts(workload.name)
        self._letters: dict[Source, list[tuple[ReadRecord, str]]] = {}
        self._dead = {f"{topic}.dead": topic for topic in workload.reads}
        #: The mismatches of records independent of the model.
        self.findings: list[Finding] = []
        self._key_of = _keys_of(self._tables)
        self.last: dict[str, dict[tuple[Any, ...], LastOutput]] = {table.name: {} for table in self._tables.values()}
        self.records: dict[str, int] = dict.fromkeys([*self._tables, *self._dead], 0)
        #: Called for each record of a row, with: table, key, fields, place of the record, last record of the row before, the
        #: record, and whether the record is now the last one.
        self.heard: Heard | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the functions of column types."""
        return {name: value for name, value in self.__dict__.items() if name != "_key_of"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._key_of = _keys_of(self._tables)

    def feed(self, record: ReadRecord) -> None:
        """Take a record of an output or dead-letter topic, in the order of offsets in its partition."""
        wrote = self._owner.wrote(record)
        if wrote is False if record.topic in self._dead else wrote is not None:
            # A second pipeline reads the same input and shares the topic of dead letters; or it reads this output, and puts its
            # copies there. Output records of this pipeline name no pipeline.
            return
        self.records[record.topic] += 1
        source = source_of(record.header(SOURCE_HEADER))
        if source is None:
            text = f"its header {SOURCE_HEADER} names no input record"
            self.findings.append(Finding("phantom output", record.topic, output=_place(record), text=text))
        elif record.topic in self._dead:
            self._letters.setdefault(source, []).append((record, record.topic))
        else:
            self._take_output(record, source)

    def _take_output(self, record: ReadRecord, source: Source) -> None:
        table = self._tables[record.topic]
        try:
            fields = decode_output(self._contracts[record.topic], record.value)
            key = self._key_of[record.topic](fields)
        except (Inadmissible, ValueError, ArithmeticError) as error:  # a key may be out of range
            finding = Finding("unreadable output", record.topic, {}, {}, _place(record), str(source), str(error))
            self.findings.append(finding)
            return
        last = self.last[table.name]
        before = last.get(key)
        written = LastOutput(record.partition, record.offset, source)
        is_last = not before or before.partition == record.partition or not self._is_older(record, source, before)
        if is_last:
            if before and before.source[:2] == source[:2] and before.source.offset >= source.offset:
                text = f"{record.topic}/{before.partition}/{before.offset} names {before.source} already"
                row = dict(zip(table.key, key, strict=True))
                self.findings.append(Finding("doubled output", table.name, row, {}, _place(record), str(source), text))
            last[key] = written
        if self.heard is not None:
            self.heard(table, key, fields, written, before, record, is_last)

    def _is_older(self, record: ReadRecord, source: Source, before: LastOutput) -> bool:
        """Return whether the last record of the row lies in a different partition and was written after this record. Partitions
        are read side by side, and an increase of partitions moves keys.
        """
        if before.source[:2] == source[:2]:
            return before.source > source
        key = (record.key or b"").decode(errors="backslashreplace")
        return before.partition == partition_of(key, self._partitions[record.topic])

    def letters(self) -> list[Source]:
        """Return the input records with a dead letter."""
        return [*self._letters]

    def beyond(self, reached: Mapping[tuple[str, int], int]) -> Source | None:
        """Return an input record with a dead letter at or behind these offsets; None: no such record."""
        return next((source for source in self._letters if source.offset >= reached.get(source[:2], 0)), None)

    def judge(self, expected: Expected) -> Iterator[Finding]:
        """Yield all mismatches, after all input was read."""
        yield from self.findings
        yield from self._judge_letters(expected)

    def _judge_letters(self, expected: Expected) -> Iterator[Finding]:
        for source in expected.dead:
            yield from self.judge_letter(source, expected)
        for source in self._letters.keys() - expected.dead.keys():
            yield from self.judge_letter(source, expected)

    def judge_letter(self, source: Source, expected: Expected) -> Iterator[Finding]:
        """Yield the mismatches of the dead letters of one input record."""
        letter, found = expected.dead.get(source), self._letters.get(source, [])
        if letter is None:
            for record, topic in found:
                key, text = _parked(record.header(PARKED_HEADER)), FATES[expected.fate(source)]
                yield Finding("extra dead letter", topic, key, output=_place(record), source=str(source), text=text)
            return
        if not found:
            key = _parked((letter.parked or "").encode())
            yield Finding("missing dead letter", f"{source.topic}.dead", key, source=str(source), text=letter.reason)
        for record, topic in found[1:]:
            yield Finding("doubled dead letter", topic, output=_place(record), source=str(source))
        for record, topic in found:
            if wrong := _letter_differs(record, letter, f"{source.topic}.dead"):
                yield Finding("changed dead letter", topic, output=_place(record), source=str(source), text=wrong)


def _parked(header: bytes | None) -> dict[str, Any]:
    """Return the parked key in the header of a dead letter, as in a mismatch."""
    ticket = ticket_of(header)
    return {} if ticket is None else {"key": ticket.key}


def judge_copies(expected: Expected) -> Iterator[Finding]:
    """Yield repartitioned records without a copy, and surplus copies, or copies with a wrong timestamp or wrong headers."""
    yield from expected.changed
    for source, (wanted, _) in expected.uncopied.items():
        text = f"it belongs to partition {wanted.partition}, under the key {wanted.key.decode(errors='replace')}"
        yield Finding("missing copy", source.topic, source=str(source), text=text)
    for lies_at, original in expected.doubled():
        text = FATES[expected.fate(original)]
        if expected.fate(original) == Fate.REPARTITIONED and original not in expected.uncopied:
            text = "that input record has its copy already"
        yield Finding("doubled copy", lies_at.topic, output=str(lies_at), source=str(original), text=text)


def _letter_differs(record: ReadRecord, letter: Any, topic: str) -> str:
    """Return the fault of a dead letter, or ""."""
    if record.topic != topic:
        return f"it belongs into {topic}"
    if record.key != letter.key or record.value != letter.head:
        return "key or value are not the original ones"
    if letter.length == len(record.value or b"") and hashlib.sha256(record.value or b"").hexdigest() != letter.sha256:
        return "the value is not the original one"
    if record.header("onefold-sha256") != letter.sha256.encode():
        return "its header onefold-sha256 is not that of the original value"
    if record.header("onefold-bytes") != b"%d" % letter.length:
        return "its header onefold-bytes is not the length of the original value"
    if (record.header(PARKED_HEADER) or b"").decode(errors="replace") != (letter.parked or ""):
        return f"its header {PARKED_HEADER} is not {letter.parked!r}"
    return "" if record.header("onefold-reason") else "it gives no reason"


def _keys_of(tables: Mapping[str, Table]) -> dict[str, Callable[[dict[str, Any]], tuple[Any, ...]]]:
    """Return by topic a function from the fields of an output record to the key of the row."""
    found = {}
    for topic, table in tables.items():
        kinds = {column.name: column.kind for column in table.columns}
        found[topic] = picked(table.key, [KINDS[kinds[name]].from_output for name in table.key])
    return found


def _place(record: ReadRecord) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"
