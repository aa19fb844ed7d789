"""The records of several inputs in the order in which the processor folded them, as it wrote it down.

What depends on the order between two topics (which record changed a row last, and often its values) can only be judged against
the order that was. The processor writes it to the topic `<domain>.order`, in the transaction that commits the results: a record
for each transaction, with runs [topic, first offset, last offset + 1). Whether the *results* agree with it is what the
judge finds out. Runs of a topic only go on: a record that lies between two of them was never processed. What lies before the
first run of a topic may have been processed while the pipeline had one input, and no order: only the processor's counts tell.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Set

from onefold.error_codes import Code
from onefold.verify.record import ReadRecord, Source
from onefold.verify.verdict import CannotTell, Finding

_VERSION = 1
Place = tuple[str, int]


class Order:
    """Puts the records of a domain's inputs into that order, partition by partition, as both become known.

    Args:
        take: gets each record when it is its turn.
        stops: whether it goes no further than to records between two runs. Only who has read everything knows whether the
            processor passed over them, or processed them without an order.
    """

    def __init__(self, inputs: Iterable[str], take: Callable[[ReadRecord], object], *, stops: bool = False) -> None:
        self._inputs = tuple(inputs)
        self._stops = stops
        #: See above.
        self.take = take
        self._waiting: dict[Place, deque[ReadRecord]] = {}
        self._runs: dict[int, deque[tuple[str, int, int]]] = {}
        # Per place the offset up to which its records have been handed in, and in an order.
        self._read: dict[Place, int] = {}
        self._ordered: dict[Place, int] = {}
        self._begun = set[Place]()
        #: The records between two runs, in which nothing was done with them.
        self.skipped: list[Source] = []

    def feed(self, record: ReadRecord) -> None:
        """A record of an input topic; those of one partition come in the order of offsets."""
        place = (record.topic, record.partition)
        self._waiting.setdefault(place, deque()).append(record)
        self._read[place] = record.offset + 1
        self._go_on(record.partition)

    def add(self, record: ReadRecord) -> dict[str, int]:
        """A record of the order topic, which is of one transaction. Returns by input the offset behind what that has processed.
        Raises `CannotTell` when it makes no sense.
        """
        runs, ends = self._runs.setdefault(record.partition, deque()), dict[str, int]()
        for topic, start, end in _decode(record):
            place = (topic, record.partition)
            if topic not in self._inputs or not self._ordered.get(place, 0) <= start < end:
                raise CannotTell(
                    Code.PROGRESS_UNKNOWN,
                    f"{record.topic}/{record.partition}/{record.offset} has {topic} processed from {start} to {end}, "
                    f"which cannot follow the records processed before",
                )
            self._ordered[place] = ends[topic] = end
            runs.append((topic, start, end))
        self._go_on(record.partition)
        return ends

    def go_on(self, take: Callable[[ReadRecord], object], *, stops: bool) -> None:
        """Hand the records to somebody else from now on."""
        self.take, self._stops = take, stops
        for partition in self._runs:
            self._go_on(partition)

    def findings(self, *, drained: bool) -> list[Finding]:
        """The records that the processor passed over.

        Args:
            drained: the processor has read to the end of the inputs, and its whole order was added: what waits is passed over.
        """
        done = [place for place in sorted(self._begun) if drained and not self._runs[place[1]]]
        waiting = [record for place in done for record in self._waiting.get(place, ())]
        return [*map(_skipped, self.skipped), *(_skipped(Source(*record[:3])) for record in waiting)]

    def held(self) -> dict[Place, int]:
        """Per place the first record that was handed in and not handed on, where there is one."""
        return {place: waiting[0].offset for place, waiting in self._waiting.items() if waiting}

    def unordered(self, but: Set[Place] = frozenset()) -> str:
        """A sentence about records that were handed in and not handed on, but those of some places; else nothing."""
        for (topic, partition), offset in sorted(self.held().items()):
            if (topic, partition) not in but:
                return f"the recorded merge order of {topic}/{partition} is missing from offset {offset} on"
        return ""

    def pass_over(self, in_order: int) -> list[Finding]:
        """Name the records that the processor passed over, once, and go on behind them. What was handed in is all that it has
        read, and its whole order of it was added.

        Args:
            in_order: how many of the records that wait the processor has counted. If these are more than its order has, it has
                processed records without an order, and none is passed over.
        """
        if sum(map(len, self._waiting.values())) == self._in_runs() or not self.begin(in_order):
            return []
        self.go_on(self.take, stops=False)
        found = self.findings(drained=True)
        for partition, runs in self._runs.items():
            for topic in self._inputs:
                if not runs and (topic, partition) in self._begun:
                    self._waiting.pop((topic, partition), None)
        self.skipped.clear()
        self._stops = True
        return found

    def begin(self, in_order: int) -> bool:
        """Take what lies before the first run of each topic for passed over, if the processor has counted no more of the records
        that wait than its order has: then it has processed none without an order. Returns whether that is so.
        """
        if in_order > self._in_runs():
            return False
        self._begun |= self._waiting.keys()
        for partition in self._runs:
            self._go_on(partition)
        return True

    def _in_runs(self) -> int:
        """How many of the records that wait are in the order."""
        return sum(
            start <= record.offset < end
            for partition, runs in self._runs.items()
            for topic, start, end in runs
            for record in self._waiting.get((topic, partition), ())
        )

    def left_over(self, *, passed_over: bool = True) -> str:
        """A sentence about records before every order, or that are in the order and not in the log; else nothing.

        Args:
            passed_over: whether nothing was done with the records between two runs. If it was, the order of it is missing.
        """
        if not passed_over and (skipped := self.findings(drained=True)):
            return (
                f"the recorded merge order leaves out records that were processed, the first one at {skipped[0].source}"
            )
        if unordered := self.unordered(self._begun):
            return unordered
        for partition, runs in sorted(self._runs.items()):
            if runs:
                topic, start, end = runs[0]
                return f"{topic}/{partition} was processed from {start} to {end}, but some of these records are missing"
        return ""

    def _go_on(self, partition: int) -> None:
        runs = self._runs.get(partition)
        while runs:
            topic, start, end = runs[0]
            place = (topic, partition)
            waiting = self._waiting.get(place) or deque()
            if waiting and waiting[0].offset < start and (self._stops or place not in self._begun):
                return
            while waiting and waiting[0].offset < start:
                self.skipped.append(Source(*waiting.popleft()[:3]))
            while waiting and waiting[0].offset < end:
                self.take(waiting.popleft())
            if self._read.get(place, 0) < end:
                return
            self._begun.add(place)
            runs.popleft()


def _skipped(source: Source) -> Finding:
    text = "the processor read past it, and its recorded order of the inputs leaves it out"
    return Finding("skipped input", source.topic, source=str(source), text=text)


def _decode(record: ReadRecord) -> list[tuple[str, int, int]]:
    try:
        body = json.loads(record.value or b"")
        if body["version"] > _VERSION:
            raise CannotTell(
                Code.NEWER_VERSION,
                f"{record.topic} is written by a newer Onefold, in version {body['version']}; verify with that one",
            )
        return [(str(topic), int(start), int(end)) for topic, start, end in body["runs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CannotTell(
            Code.RECORD_UNREADABLE, f"{record.topic}/{record.partition}/{record.offset} cannot be read: {error}"
        ) from None
