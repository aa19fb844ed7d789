"""The recorded merge order of several inputs.

The order between two topics affects results: which record changed a row last, and often the values of the row. So the
verifier needs the order of the processor. The processor writes the order to the topic `<pipeline>.order`, in the transaction
that commits the results. Each transaction has one record, with runs [topic, first offset, last offset + 1). The verifier checks
whether the results agree with the order.

The runs of a topic only advance, so a record between two runs was never processed. A record before the first run of a topic may
have been processed without a recorded order, when the pipeline had one input. Only the counts of the processor show the
difference.
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
    """Puts the records of a pipeline's inputs into the recorded order, by partition, as records and order become known.

    Args:
        take: gets each record in its turn.
        stops: whether to stop at records between two runs. Only after reading everything is it known whether the processor
            passed over these records, or processed them without an order.
    """

    def __init__(self, inputs: Iterable[str], take: Callable[[ReadRecord], object], *, stops: bool = False) -> None:
        self._inputs = tuple(inputs)
        self._stops = stops
        #: Gets each record in its turn.
        self.take = take
        self._waiting: dict[Place, deque[ReadRecord]] = {}
        self._runs: dict[int, deque[tuple[str, int, int]]] = {}
        # By input partition, the offset up to which records were fed, and up to which they have an order.
        self._read: dict[Place, int] = {}
        self._ordered: dict[Place, int] = {}
        self._begun = set[Place]()
        #: The records between two runs, which the processor passed over.
        self.skipped: list[Source] = []

    def feed(self, record: ReadRecord) -> None:
        """Take a record of an input topic, in the order of offsets in its partition."""
        place = (record.topic, record.partition)
        self._waiting.setdefault(place, deque()).append(record)
        self._read[place] = record.offset + 1
        self._go_on(record.partition)

    def add(self, record: ReadRecord) -> dict[str, int]:
        """Take a record of the order topic, for one transaction. Return by input the offset behind the records processed by the
        transaction. Raises `CannotTell` for impossible runs.
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
        """Give the records to a different function from now on."""
        self.take, self._stops = take, stops
        for partition in self._runs:
            self._go_on(partition)

    def findings(self, *, drained: bool) -> list[Finding]:
        """Return the records that the processor passed over.

        Args:
            drained: the processor has read to the end of the inputs, and its complete order was added, so all waiting records
                are passed over.
        """
        done = [place for place in sorted(self._begun) if drained and not self._runs[place[1]]]
        waiting = [record for place in done for record in self._waiting.get(place, ())]
        return [*map(_skipped, self.skipped), *(_skipped(Source(*record[:3])) for record in waiting)]

    def held(self) -> dict[Place, int]:
        """By input partition, the first record that still waits for its turn, if any."""
        return {place: waiting[0].offset for place, waiting in self._waiting.items() if waiting}

    def unordered(self, but: Set[Place] = frozenset()) -> str:
        """Return a sentence about records that still wait for their turn, except in the partitions `but`; else ""."""
        for (topic, partition), offset in sorted(self.held().items()):
            if (topic, partition) not in but:
                return f"the recorded merge order of {topic}/{partition} is missing from offset {offset} on"
        return ""

    def pass_over(self, in_order: int) -> list[Finding]:
        """Name the records that the processor passed over, once each, and continue behind them. The records fed are exactly the
        records read by the processor, and its complete order of them was added.

        Args:
            in_order: how many of the waiting records the processor has counted. If the order has fewer, the processor has
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
        """Treat the records before the first run of each topic as passed over. If the processor has counted more of the waiting
        records than its order has, it has processed records without an order, and none is passed over. Return whether the
        records are passed over.
        """
        if in_order > self._in_runs():
            return False
        self._begun |= self._waiting.keys()
        for partition in self._runs:
            self._go_on(partition)
        return True

    def _in_runs(self) -> int:
        """Return how many of the waiting records are in the order."""
        return sum(
            start <= record.offset < end
            for partition, runs in self._runs.items()
            for topic, start, end in runs
            for record in self._waiting.get((topic, partition), ())
        )

    def left_over(self, *, passed_over: bool = True) -> str:
        """Return a sentence about records before any order, or about records in the order but not in the log; else "".

        Args:
            passed_over: whether the processor passed over the records between two runs. If not, their order is missing.
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
