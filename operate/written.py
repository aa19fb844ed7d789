"""The output records behind a row: the one that it came from, and those of the same row before it.

A row's origin is an offset of an output topic, or a place in a decision log. In both cases there is one partition to look
through, backwards, and a limit to how far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from onefold.operate.reading import BYTES_MAX, RECORDS_MAX, Bounds, LogReader, Looked, Place, Stored
from onefold.processor.core.decision import Kind, Proposal
from onefold.processor.core.errors import Refused
from onefold.processor.io.proposals import AvroProposals
from onefold.spark_sink.decisions import PLACE_BITS, offset_of

# A proposal holds thousands of records; of so many, what there is in a quarter of a million.
_PROPOSALS_MAX = 2_000

Wanted = Callable[[Stored], bool]


class Written(NamedTuple):
    """An output record.

    Attributes:
        stored: its bytes, and the topic that it is for.
        where: where it lies, in words.
        proposal: of a decision log: the proposal that it is in.
    """

    stored: Stored
    where: str
    proposal: Proposal | None = None


class History(NamedTuple):
    """Output records, the newest first, and how far was looked for them."""

    records: list[Written]
    looked: Looked


class Topics:
    """Output records where they lie in output topics."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def at(self, origin: Place) -> Written | str:
        """The record, or why there is none. Raises `Silent`."""
        found = self._reader.at(origin)
        return found if isinstance(found, str) else _plain(found)

    def before(self, newest: Written, wanted: Wanted, count: int, records_max: int) -> History:
        """So many records that are wanted, of those in the same partition, from this one on backwards. Raises `Silent`."""
        topic, partition, offset = newest.stored.place
        found: list[Written] = [newest]

        def take(records: list[Stored]) -> bool:
            found.extend(map(_plain, filter(wanted, reversed(records))))
            return len(found) >= count

        bounds = Bounds(self._reader.bounds(topic, partition).start, offset)
        # Who wants to look further than usual has records of the usual size looked through.
        bytes_max = BYTES_MAX * max(1, records_max // RECORDS_MAX)
        looked = self._reader.backwards(topic, partition, bounds, take, records_max, bytes_max)
        return History(found[:count], looked)


class DecisionLog:
    """Output records where they are parts of decisions. An origin's offset is a place in the log (docs/hot-hot.md)."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._proposals = AvroProposals()

    def at(self, origin: Place) -> Written | str:
        """The record, or why there is none. Raises `Silent`."""
        offset, number = offset_of(origin.offset), origin.offset & ((1 << PLACE_BITS) - 1)
        decision = self._reader.at(Place(origin.topic, origin.partition, offset))
        if isinstance(decision, str):
            return decision
        proposal = self._proposal(decision)
        if proposal is None:
            return f"the record at {decision.place} is no proposal: the row cannot come from it"
        writes = self._writes(decision, proposal)
        return writes[number] if number < len(writes) else f"{decision.place} has no write {number}"

    def before(self, newest: Written, wanted: Wanted, count: int, records_max: int) -> History:
        """As of `Topics`. Of the log only what came true counts, and what cannot be told to have come true is left out."""
        log, partition, at = newest.stored.place
        assert newest.proposal is not None, "it is of a decision log"
        decisions = {offset_of(at): newest.proposal}
        values = {offset_of(at): newest.stored._replace(place=Place(log, partition, offset_of(at)))}
        task = newest.proposal.task
        found: list[Written] = []

        def earlier(whole: bool) -> list[Written]:
            """Of the decision at hand what it wrote before, and of those before it everything."""
            writes = [
                one for one in self._writes(values[offset_of(at)], decisions[offset_of(at)]) if _is_before(one, at)
            ]
            for offset in _decided(decisions, offset_of(at), whole):
                writes = [*self._writes(values[offset], decisions[offset]), *writes]
            return [one for one in reversed(writes) if wanted(one.stored)]

        def take(records: list[Stored]) -> bool:
            for record in records:
                proposal = self._proposal(record)
                if proposal is not None and proposal.task == task:
                    decisions[record.place.offset] = proposal
                    values[record.place.offset] = record
            found[:] = [newest, *earlier(whole=False)]
            return len(found) >= count

        start = self._reader.bounds(log, partition).start
        bounds = Bounds(start, offset_of(at))
        proposals_max = min(records_max, _PROPOSALS_MAX) if records_max <= RECORDS_MAX else records_max
        bytes_max = BYTES_MAX * max(1, records_max // RECORDS_MAX)
        looked = self._reader.backwards(log, partition, bounds, take, proposals_max, bytes_max)
        # At the very beginning of the log nothing can have come before the first proposal of a version.
        whole = looked.whole and start == 0
        found = [newest, *earlier(whole)]
        return History(found[:count], Looked(looked.start, whole))

    def _proposal(self, record: Stored) -> Proposal | None:
        try:
            found = self._proposals.decode(record.value)
        except Refused:
            return None
        return found if isinstance(found, Proposal) else None

    def _writes(self, decision: Stored, proposal: Proposal) -> list[Written]:
        log, partition, offset = decision.place
        found = []
        for number, (topic, _, key, value, headers) in enumerate(self._proposals.writes(proposal.body.writes)):
            # Where it lies is a place in the log; what it is for, the topic of its own, is what it is decoded by.
            place = Place(log, partition, offset << PLACE_BITS | number)
            stored = Stored(place, decision.at_ms, key, value, tuple(headers or ()), topic)
            found.append(Written(stored, f"{log}/{partition}/{offset}, write {number}, for {topic}", proposal))
        return found


def _plain(stored: Stored) -> Written:
    return Written(stored, str(stored.place))


def _is_before(written: Written, at: int) -> bool:
    return written.stored.place.offset < at


def _decided(proposals: dict[int, Proposal], newest: int, whole: bool) -> Iterable[int]:
    """The offsets of the decisions before the one at `newest`, the newest first.

    Who reads a log backwards does not know where it stood. But what the decision at hand continues has come true: a proposal of
    the version before that ends where this one starts, and of several such ones the first. The last one found is left out,
    unless all of the log was read: the first of its version may lie before what was read. The same can only be true of
    another one when replicas hung so long that several of their proposals came late, one after the other; and what these say
    differs from what came true only where the handler has dice or a clock.
    """
    by_version: dict[int, list[int]] = {}
    for offset in sorted(proposals):
        by_version.setdefault(proposals[offset].version, []).append(offset)
    chain = [newest]
    while (before := _continued(proposals, by_version, chain[-1])) is not None:
        chain.append(before)
    return chain[1:] if whole else chain[1:-1]


def _continued(proposals: dict[int, Proposal], by_version: dict[int, list[int]], offset: int) -> int | None:
    """The decision that the one at `offset` continues, if it was read. Before an opening nobody decided here."""
    decision = proposals[offset]
    if decision.kind is Kind.OPEN:
        return None
    starts = {topic: (part.topic_id, part.start) for topic, part in decision.inputs.items()}
    others: list[int] = [*by_version.get(decision.version - 1, []), *by_version.get(decision.version, [])]
    for other in others:
        proposal = proposals[other]
        # An opening says at which version it stands, and counts none.
        continues = proposal.version + (proposal.kind is not Kind.OPEN) == decision.version
        ends: dict[str, tuple[str, int]] = {topic: (part.topic_id, part.end) for topic, part in proposal.inputs.items()}
        if continues and other < offset and ends == starts:
            return other
    return None
