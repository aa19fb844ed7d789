"""What the processor wrote, against the input: output records and dead letters.

An output record must follow its contract, and its header must name an accepted input record. All records of one row
come from one task, which reads its partition in order: so for one row the sources must go up strictly. One that does
not is a doubled output. (A record that is written again after an abort, or by a zombie, shows up exactly so.)

Memory: one entry a row, one byte an input record for each output topic, one entry a dead letter.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from onefold.proof.contracts import contracts
from onefold.proof.decode import Inadmissible, decode_output
from onefold.proof.expect import Expected, Table, Workload
from onefold.proof.fates import Fate
from onefold.proof.kinds import KINDS, picked
from onefold.proof.owner import SOURCE_HEADER, Owner
from onefold.proof.placement import Share
from onefold.proof.record import Record, Source, source_of
from onefold.proof.verdict import Finding


class Written(NamedTuple):
    """The last output record of a row, and the input record that it names."""

    partition: int
    offset: int
    source: Source


class Taken(NamedTuple):
    """What `Outputs` know of records, as plain data: what is wrong with them, how many there are by topic, what they name, and
    the dead letters.
    """

    findings: list[Finding]
    records: dict[str, int]
    named: dict[tuple[str, str, int], bytearray]
    letters: dict[Source, list[tuple[Record, str]]]


#: See `Outputs.heard`.
Heard = Callable[[Table, tuple[Any, ...], dict[str, Any], Written, Written | None], None]


class Outputs:
    """Takes the records of output and dead-letter topics, and knows what is wrong with them."""

    def __init__(self, workload: Workload, owner: Owner | None = None) -> None:
        self._owner = owner or Owner("", workload.name)
        self._tables = workload.outputs
        self._contracts = contracts(workload.name)
        self._letters: dict[Source, list[tuple[Record, str]]] = {}
        self._dead = {f"{topic}.dead": topic for topic in workload.reads}
        #: What is wrong with records by themselves.
        self.findings: list[Finding] = []
        # Per output topic and input partition one byte an input offset: some output names it.
        self._named: dict[tuple[str, str, int], bytearray] = {}
        self._key_of = _keys_of(self._tables)
        self.last: dict[str, dict[tuple[Any, ...], Written]] = {table.name: {} for table in self._tables.values()}
        self.records: dict[str, int] = dict.fromkeys([*self._tables, *self._dead], 0)
        #: Called for each record of a row: table, key, fields, and what is the last of the row now, and was before.
        self.heard: Heard | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what is made of the tables' kinds: functions are no state."""
        return {name: value for name, value in self.__dict__.items() if name != "_key_of"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._key_of = _keys_of(self._tables)

    def taken(self) -> "Taken":
        """What was taken so far, without the rows."""
        return Taken(self.findings, self.records, self._named, self._letters)

    def add(self, other: "Taken") -> None:
        """Take what another one has taken; no input partition has outputs in both."""
        self.findings += other.findings
        for topic, records in other.records.items():
            self.records[topic] += records
        self._named |= other.named
        for source, letters in other.letters.items():
            self._letters.setdefault(source, []).extend(letters)

    def are_of(self, share: Share) -> bool:
        """Do all outputs name inputs of this share?"""
        return all(partition in share for _, _, partition in self._named)

    def feed(self, record: Record) -> None:
        """Take one record of an output or dead-letter topic, in the order of offsets within a partition."""
        wrote = self._owner.wrote(record)
        if wrote is False if record.topic in self._dead else wrote is not None:
            # Another pipeline reads the same input, and has the same topic for its dead letters; or it reads this output, and
            # puts its copies there. What this one writes into an output names no pipeline.
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

    def _take_output(self, record: Record, source: Source) -> None:
        table = self._tables[record.topic]
        try:
            fields = decode_output(self._contracts[record.topic], record.value)
        except Inadmissible as error:
            finding = Finding("unreadable output", record.topic, {}, {}, _place(record), str(source), str(error))
            self.findings.append(finding)
            return
        key = self._key_of[record.topic](fields)
        place = record.topic, source.topic, source.partition
        named = self._named.get(place)
        if named is None:
            named = self._named[place] = bytearray()
        if len(named) <= source.offset:
            named.extend(bytes(source.offset + 1 - len(named)))
        named[source.offset] = 1
        last = self.last[table.name]
        before = last.get(key)
        if (
            before
            and before.partition != record.partition
            and before.source[:2] == source[:2]
            and before.source > source
        ):
            return  # partitions are read side by side, and its key has moved to another one that was added
        if before and before.source[:2] == source[:2] and before.source.offset >= source.offset:
            text = f"{record.topic}/{before.partition}/{before.offset} names {before.source} already"
            row = dict(zip(table.key, key, strict=True))
            self.findings.append(Finding("doubled output", table.name, row, {}, _place(record), str(source), text))
        written = last[key] = Written(record.partition, record.offset, source)
        if self.heard is not None:
            self.heard(table, key, fields, written, before)

    def ahead_of(self, reached: Mapping[tuple[str, int], int]) -> Source | None:
        """An input record at one of these offsets or behind them that was named already; None: there is none."""
        named = (Source(topic, at, len(offsets) - 1) for (_, topic, at), offsets in self._named.items() if offsets)
        sources = (source for several in (named, self._letters) for source in several)
        return next((source for source in sources if source.offset >= reached.get(source[:2], 0)), None)

    def judge(self, expected: Expected) -> Iterator[Finding]:
        """Everything wrong with what was written, now that all input has been read."""
        yield from self.findings
        yield from self._phantoms(expected)
        yield from self._judge_letters(expected)

    def _phantoms(self, expected: Expected) -> Iterator[Finding]:
        for (output, topic, partition), named in self._named.items():
            fates = expected.fates.get((topic, partition), bytearray())
            fates = fates + bytes(max(0, len(named) - len(fates)))
            for offset, (is_named, fate) in enumerate(zip(named, fates, strict=False)):
                if is_named and fate != Fate.ACCEPTED:
                    source = Source(topic, partition, offset)
                    yield Finding("phantom output", output, source=str(source), text=FATES[fate])

    def _judge_letters(self, expected: Expected) -> Iterator[Finding]:
        for source in expected.dead:
            yield from self.judge_letter(source, expected)
        for source in self._letters.keys() - expected.dead.keys():
            yield from self.judge_letter(source, expected)

    def judge_letter(self, source: Source, expected: Expected) -> Iterator[Finding]:
        """Everything wrong with the dead letters of one input record."""
        letter, found = expected.dead.get(source), self._letters.get(source, [])
        if letter is None:
            for record, topic in found:
                text = FATES[expected.fate(source)]
                yield Finding("extra dead letter", topic, output=_place(record), source=str(source), text=text)
            return
        if not found:
            yield Finding("missing dead letter", f"{source.topic}.dead", source=str(source), text=letter.reason)
        for record, topic in found[1:]:
            yield Finding("doubled dead letter", topic, output=_place(record), source=str(source))
        for record, topic in found:
            if wrong := _letter_differs(record, letter, f"{source.topic}.dead"):
                yield Finding("changed dead letter", topic, output=_place(record), source=str(source), text=wrong)


#: What a fate says of a record that names it.
FATES = {
    Fate.NONE: "there is no such committed input record",
    Fate.ACCEPTED: "that input record is accepted",
    Fate.IGNORED: "that input record changes nothing",
    Fate.REPARTITIONED: "that input record takes effect as its copy in another partition",
    Fate.DEAD: "that input record is a dead letter",
}


def judge_copies(expected: Expected) -> Iterator[Finding]:
    """Misrouted records without their copy, and copies that are one too many."""
    for source, wanted in expected.uncopied.items():
        text = f"it belongs to partition {wanted.partition}, under the key {wanted.key.decode(errors='replace')}"
        text += f", with the time {wanted.sent_ms}" if wanted.sent_ms is not None else ""
        yield Finding("missing copy", source.topic, source=str(source), text=text)
    for lies_at, original in expected.doubled():
        text = FATES[expected.fate(original)]
        if expected.fate(original) == Fate.REPARTITIONED and original not in expected.uncopied:
            text = "that input record has its copy already"
        yield Finding("doubled copy", lies_at.topic, output=str(lies_at), source=str(original), text=text)


def _letter_differs(record: Record, letter: Any, topic: str) -> str:
    """What a dead letter has wrong, or nothing."""
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
    return "" if record.header("onefold-reason") else "it gives no reason"


def _keys_of(tables: Mapping[str, Table]) -> dict[str, Callable[[dict[str, Any]], tuple[Any, ...]]]:
    """Per topic what makes a row's key of an output record."""
    found = {}
    for topic, table in tables.items():
        kinds = {column.name: column.kind for column in table.columns}
        found[topic] = picked(table.key, [KINDS[kinds[name]].from_output for name in table.key])
    return found


def _place(record: Record) -> str:
    return f"{record.topic}/{record.partition}/{record.offset}"
