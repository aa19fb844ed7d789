"""What the pipeline writes into inputs of its own and into queues: an accepted input must have asked for every record, once.

The model says what an input makes the pipeline write into them, and the record that was written names that input. Both come in
any order: a record may be read before the one that caused it, which lies in another partition. What matches is forgotten.

Nobody else may write to an input that the pipeline feeds, so a record there that names no input is somebody's invention. A
queue has workers, who put a job back: a record there that names no input must say the same as one that does.
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
#: A topic, where the record lies there, and its fields as text.
_PutBack = tuple[str, str, str]

#: Beside the fields of a job, none of which has such a name.
KEY = "Kafka key"


class OpenFeedback(NamedTuple):
    """What is open at a moment: records that were asked for and are not there, and jobs that were put back."""

    asked: dict[_Cause, list[Fields]]
    put_back: list[_PutBack]


class Fed:
    """What must have been written into these topics, against what was. Memory: what has not met its match, and a byte for each
    offset of an input that caused something; of queues every job, so that those which were put back can be told.

    Args:
        queues: and the partitions of each.
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
        """The input record at `source` makes the pipeline write this; a job under this Kafka key."""
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
        """A record of the topic, and the input record that it names; a job, and its Kafka key."""
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
        """A record of the topic that breaks its contract."""
        self._findings.append(Finding("unreadable output", topic, output=lies_at, text=reason))

    def _meet(self, topic: str, source: Source, fields: Fields) -> None:
        if topic in self._jobs:
            self._jobs[topic].add(_text(fields))
        met = self._met.setdefault((topic, *source[:2]), bytearray())
        met.extend(bytes(max(0, source[2] + 1 - len(met))))
        met[source[2]] = 1

    def checks(self) -> list[Check]:
        """How many records each topic should have, and has."""
        topics = sorted({*self._counts_asked, *self._counts_written})
        return [Check(topic, self._counts_asked[topic], self._counts_written[topic]) for topic in topics]

    def findings(self) -> Iterator[Finding]:
        """Everything wrong, now that all input has been read."""
        self._findings += self.misplaced()
        yield from self._findings
        asked = {cause: list(fields) for cause, fields in self._asked.items()}
        for cause, written in self._written.items():
            yield from self._wrong(cause, written, asked.get(cause, []))
        yield from self._invented(self._put_back)
        for cause, missing in asked.items():
            yield from _missing(cause, missing)

    def misplaced(self) -> Iterator[Finding]:
        """Jobs that do not lie in the partition of their Kafka key. It is said once."""
        for topic, layout in self._layouts.items():
            yield from misplaced(topic, layout.misplaced())

    def known(self, is_applied: Callable[[Source], bool]) -> Iterator[Finding]:
        """Everything wrong with the records of which the input record that they name was applied. It is said once."""
        yield from self._findings
        self._findings.clear()
        for cause in [cause for cause in self._written if is_applied(cause[1])]:
            yield from self._wrong(cause, self._written.pop(cause), self._asked.get(cause, []))
            if not self._asked.get(cause, True):
                del self._asked[cause]

    def open(self) -> OpenFeedback:
        """What is open now; jobs that were put back are handed over."""
        put_back, self._put_back = self._put_back, []
        return OpenFeedback({cause: list(fields) for cause, fields in self._asked.items()}, put_back)

    def overdue(self, since: OpenFeedback) -> Iterator[Finding]:
        """What was open then and still is, now that all that was in the log then has been taken. It is said once."""
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
        """Records that their cause does not ask for. Each of them stands for one that is asked for, which is taken away."""
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
    """The same for the same fields. Both come from the same decoder, so numbers are spelled alike."""
    return repr(sorted((name, value) for name, value in fields.items() if name != KEY))
