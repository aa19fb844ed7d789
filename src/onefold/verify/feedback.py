"""Compare the records in feedback topics and queues with the records that accepted inputs ask for, once each.

The model returns the records that an input makes the pipeline write, and a written record names this input. Both come in any
order, because they lie in different partitions. Matched records are forgotten.

Only the pipeline may write to a feedback topic, so a record without the name of an input is a phantom. Workers may requeue a
job, so a record without this name in a queue must equal a matched job.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from onefold.verify.partitioner import Layout, misplaced
from onefold.verify.record import Source
from onefold.verify.verdict import Check, Finding

#: A topic, and the input record that makes the pipeline write to it.
_Cause = tuple[str, Source]
Fields = Mapping[str, Any]
#: A topic, the place of the record, and its fields as text.
_PutBack = tuple[str, str, str]

#: The name of the Kafka key among the fields of a job; no field has this name.
KEY = "Kafka key"


class OpenFeedback(NamedTuple):
    """The state at a moment: expected records not yet found, and requeued jobs."""

    asked: dict[_Cause, list[Fields]]
    put_back: list[_PutBack]


class Fed:
    """Matches expected with found records in feedback topics and queues. Memory: unmatched records, a byte for each offset of
    an input with a match, and all jobs, to recognize requeued ones.

    Args:
        queues: by queue, the number of its partitions.
    """

    def __init__(self, queues: Mapping[str, int] = MappingProxyType({})) -> None:
        self._jobs: dict[str, set[str]] = {topic: set() for topic in queues}
        self._layouts = {topic: Layout(partitions) for topic, partitions in queues.items()}
        self._put_back: list[_PutBack] = []
        self._asked: dict[_Cause, list[Fields]] = {}
        self._written: dict[_Cause, list[tuple[str, Fields]]] = {}
        self._met: dict[tuple[str, str, int], bytearray] = {}
        self._findings: list[Finding] = []
        self._counts_asked: Counter[str] = Counter()
        self._counts_written: Counter[str] = Counter()

    def ask(self, topic: str, fields: Fields, source: Source, key: str = "") -> None:
        """Expect a record from the input record at `source`; for a job, with this Kafka key."""
        if topic in self._jobs:
            fields = {**fields, KEY: key}
        self._counts_asked[topic] += 1
        written = self._written.get((topic, source), [])
        for at, (_, found) in enumerate(written):
            if found == fields:
                del written[at]
                self._meet(topic, source, found)
                return
        self._asked.setdefault((topic, source), []).append(fields)

    def take(self, topic: str, lies_at: str, fields: Fields, source: Source | None, key: str = "") -> None:
        """Take a record of the topic, and the input record it names; for a job, with its Kafka key."""
        if source is None and topic in self._jobs:
            self._put_back.append((topic, lies_at, _text(fields)))
            return
        self._counts_written[topic] += 1
        if source is None:
            text = "the record names no input record: another program has written it"
            self._findings.append(Finding("phantom output", topic, output=lies_at, text=text))
            return
        if topic in self._jobs:
            fields = {**fields, KEY: key}
            partition, offset = map(int, lies_at.rsplit("/", 2)[1:])
            self._layouts[topic].take(key, partition, offset, source, {})
        asked = self._asked.get((topic, source), [])
        if fields in asked:
            asked.remove(fields)
            if not asked:
                del self._asked[topic, source]
            self._meet(topic, source, fields)
        else:
            self._written.setdefault((topic, source), []).append((lies_at, fields))

    def unreadable(self, topic: str, lies_at: str, reason: str) -> None:
        """Note a record that violates the schema of the topic."""
        self._findings.append(Finding("unreadable output", topic, output=lies_at, text=reason))

    def _meet(self, topic: str, source: Source, fields: Fields) -> None:
        if topic in self._jobs:
            self._jobs[topic].add(_text(fields))
        met = self._met.setdefault((topic, *source[:2]), bytearray())
        met.extend(bytes(max(0, source[2] + 1 - len(met))))
        met[source[2]] = 1

    def checks(self) -> list[Check]:
        """Return how many records each topic should have, and has."""
        topics = sorted({*self._counts_asked, *self._counts_written})
        return [Check(topic, self._counts_asked[topic], self._counts_written[topic]) for topic in topics]

    def findings(self) -> Iterator[Finding]:
        """Yield all mismatches, after all input was read."""
        self._findings += self.misplaced()
        yield from self._findings
        asked = {cause: list(fields) for cause, fields in self._asked.items()}
        for cause, written in self._written.items():
            yield from self._wrong(cause, written, asked.get(cause, []))
        yield from self._invented(self._put_back)
        for cause, missing in asked.items():
            yield from _missing(cause, missing)

    def misplaced(self) -> Iterator[Finding]:
        """Yield jobs outside the partition of their Kafka key, once each."""
        for topic, layout in self._layouts.items():
            yield from misplaced(topic, layout.misplaced())

    def known(self, is_applied: Callable[[Source], bool]) -> Iterator[Finding]:
        """Yield the mismatches of records with an applied input record, once each."""
        yield from self._findings
        self._findings.clear()
        for cause in [cause for cause in self._written if is_applied(cause[1])]:
            yield from self._wrong(cause, self._written.pop(cause), self._asked.get(cause, []))
            if not self._asked.get(cause, True):
                del self._asked[cause]

    def open(self) -> OpenFeedback:
        """Return the state at this moment, and hand over the requeued jobs."""
        put_back, self._put_back = self._put_back, []
        return OpenFeedback({cause: list(fields) for cause, fields in self._asked.items()}, put_back)

    def overdue(self, since: OpenFeedback) -> Iterator[Finding]:
        """Yield the records of `since` that are still missing, and its requeued jobs without an equal job, once each. The caller
        has taken everything in the log at that moment.
        """
        yield from self._invented(since.put_back)
        for cause, then in since.asked.items():
            still = self._asked.get(cause, [])
            missing = [fields for fields in then if fields in still]
            for fields in missing:
                still.remove(fields)
            if not still:
                self._asked.pop(cause, None)
            yield from _missing(cause, missing)

    def _wrong(self, cause: _Cause, written: list[tuple[str, Fields]], asked: list[Fields]) -> Iterator[Finding]:
        """Yield records unequal to the expected ones. Each wrong record removes one expected record from `asked`."""
        topic, source = cause
        for lies_at, fields in written:
            met = self._met.get((topic, *source[:2]), bytearray())[source[2] :]
            wrong = dict[str, Any]()
            kind = "phantom output"
            if asked:
                right = asked.pop(0)
                wrong = {name: (right.get(name), fields[name]) for name in fields if fields[name] != right.get(name)}
                text = "that input record asks for another one"
            elif met and met[0]:
                kind = "doubled output"
                text = "that input record has caused its record already"
            else:
                text = "that input record asks for no such thing"
            yield Finding(kind, topic, {}, wrong, lies_at, _place(source), text)

    def _invented(self, put_back: list[_PutBack]) -> Iterator[Finding]:
        for topic, lies_at, job in put_back:
            if job not in self._jobs[topic]:
                text = "the record names no input record, and is no requeued job"
                yield Finding("phantom output", topic, output=lies_at, text=text)


def _missing(cause: _Cause, missing: list[Fields]) -> Iterator[Finding]:
    topic, source = cause
    for fields in missing:
        row = {name: str(value) for name, value in fields.items() if name != KEY}
        yield Finding("missing output", topic, row, source=_place(source), text="it was never written")


def _place(source: Source) -> str:
    return "/".join(map(str, source))


def _text(fields: Fields) -> str:
    """Return an equal text for equal fields. Both come from the same decoder, so numbers have the same spelling."""
    return repr(sorted((name, value) for name, value in fields.items() if name != KEY))
