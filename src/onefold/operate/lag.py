"""The lag of the tables: the number of events and output records, and the age of the oldest.

The calculation starts from offsets (`operate.offsets`): no offsets behind means no lag. The offsets after the last record may
also be markers, aborted records and gaps of compaction, without work for processor and sink. So the records in these ranges are
read. Kafka's client is imported only for a request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from onefold import kafka_reader
from onefold.config.settings import Settings
from onefold.operate import offsets, ping, pipelines, record_reader
from onefold.operate.offsets import Behind, Place, Ranges
from onefold.processor.core.owner import Owner
from onefold.processor.core.values import Record

if TYPE_CHECKING:
    from confluent_kafka import Message

# A partition with more offsets after its first record is estimated: a count would cost as much as processing, and the exact
# number is of little use.
COUNTED_MAX = 2_000
# For all partitions together; a healthy broker takes some ten milliseconds, and slightly more for many aborted records.
READ_S = 3.0


class Lag(NamedTuple):
    """The lag of one pipeline. None: unknown.

    Attributes:
        input_events: unprocessed records of the inputs, timer records included.
        input_s: seconds since the oldest of them was sent, by the first record of each partition. 0.0 if there is none.
        output_events, output_s: the same for output records that are missing in the database.
        exact: False: the numbers are upper bounds from offsets.
        no_inputs, no_outputs: why the number or the age is unknown, or "".
        partitions, refused: see `Behind`.
    """

    input_events: int | None = None
    input_s: float | None = None
    output_events: int | None = None
    output_s: float | None = None
    exact: bool = True
    no_inputs: str = ""
    no_outputs: str = ""
    partitions: str = ""
    refused: tuple[str, ...] = ()

    @property
    def events(self) -> int | None:
        """The sum of both lags. 0: the pipeline is drained."""
        if self.input_events is None or self.output_events is None:
            return None
        return self.input_events + self.output_events

    @property
    def seconds(self) -> float | None:
        """The age in seconds of the oldest record that is not yet in the database."""
        return None if self.input_s is None or self.output_s is None else max(self.input_s, self.output_s)

    def as_json(self) -> dict[str, Any]:
        """All fields and properties by name."""
        return {**self._asdict(), "events": self.events, "seconds": self.seconds}


UNKNOWN = Lag()


def of(domain: str, settings: Settings) -> Lag:
    """The lag of one pipeline. Raises UserError if no servers are set and the embedded stack is not running."""
    return looked_at(offsets.behind_of([domain], settings), settings).get(domain, UNKNOWN)


def of_all(settings: Settings, ask_database: bool = True) -> dict[str, Lag]:
    """The lag of every pipeline. If Kafka does not answer the first request, there are no further requests for lags.

    Args:
        ask_database: False if the database is known not to answer.
    """
    behind = offsets.behind_of_all(settings, ask_database)
    if behind is None:
        why = ping.why_silent(settings)
        return dict.fromkeys(pipelines.domains(), UNKNOWN._replace(no_inputs=why, no_outputs=why))
    return dict.fromkeys(pipelines.domains(), UNKNOWN) | looked_at(behind, settings)


def looked_at(behind: Mapping[str, Behind], settings: Settings) -> dict[str, Lag]:
    """The lag of pipelines with known offset ranges. Empty ranges need no read."""
    # A partition may be an output and an input of two pipelines with different positions.
    wanted: list[Ranges] = [ranges for found in behind.values() for ranges in (found.inputs, found.outputs) if ranges]
    seen = [_look(settings.client(), part, behind) for part in disjoint(wanted)]
    return {name: _lag(found, seen) for name, found in behind.items()}


def disjoint(wanted: list[Ranges]) -> list[Ranges]:
    """Distribute the ranges to as few groups as possible, with each partition once per group: nearly always one group."""
    groups: list[Ranges] = []
    for ranges in wanted:
        for place, span in ranges.items():
            group = next((one for one in groups if one.get(place, span) == span), None)
            if group is None:
                groups.append(group := {})
            group[place] = span
    return groups


@dataclass
class _Seen:
    """The records found in [start, end) of a partition.

    Attributes:
        at: the next offset to read.
        records: the number of committed records so far.
        sent_ms: the time of the first record, in milliseconds since 1970.
        forbidden: the missing right to read the partition, in one sentence, or "".
    """

    start: int
    end: int
    at: int
    records: int = 0
    sent_ms: int | None = None
    forbidden: str = ""

    @property
    def events(self) -> int:
        """The number of records; an upper bound if a part was not read."""
        return self.records + max(0, self.end - self.at)

    @property
    def enough(self) -> bool:
        """Whether the rest of the range need not be read."""
        return self.at >= self.end or (self.records > 0 and self.end - self.at > COUNTED_MAX)


def _lag(behind: Behind, seen: list[dict[Place, _Seen]]) -> Lag:
    inputs, outputs = (None if ranges is None else _found(ranges, seen) for ranges in (behind.inputs, behind.outputs))
    parts = [*(inputs or ()), *(outputs or ())]
    now_ms = int(time.time() * 1000)
    no_inputs, no_outputs = (
        why or next((part.forbidden for part in found or () if part.forbidden), "")
        for why, found in ((behind.no_inputs, inputs), (behind.no_outputs, outputs))
    )
    exact = all(part.at >= part.end for part in parts)
    refused = tuple(dict.fromkeys([*behind.refused, *(part.forbidden for part in parts if part.forbidden)]))
    return Lag(*_sum(inputs, now_ms), *_sum(outputs, now_ms), exact, no_inputs, no_outputs, behind.partitions, refused)


def _found(ranges: Ranges, seen: list[dict[Place, _Seen]]) -> list[_Seen]:
    return [
        next(one[place] for one in seen if place in one and (one[place].start, one[place].end) == span)
        for place, span in ranges.items()
    ]


def _sum(parts: list[_Seen] | None, now_ms: int) -> tuple[int | None, float | None]:
    """(events, seconds)."""
    if parts is None:
        return None, None
    waiting = [part for part in parts if part.events]
    if not waiting:
        return 0, 0.0
    sent = [part.sent_ms for part in waiting if part.sent_ms is not None]
    # The age of a partition that was not read in time is unknown, and may be the largest.
    age_s = max(0, now_ms - min(sent)) / 1000 if len(sent) == len(waiting) else None
    return sum(part.events for part in waiting), age_s


def _look(client: Mapping[str, Any], ranges: Ranges, names: Iterable[str]) -> dict[Place, _Seen]:
    """Read the records in these ranges, as far as time permits. `names`: the pipelines, which may have written copies."""
    from confluent_kafka import KafkaError, KafkaException

    from onefold import kafka_client

    seen = {place: _Seen(start, end, start) for place, (start, end) in ranges.items()}
    starts, ends = ({place: span[at] for place, span in ranges.items()} for at in (0, 1))
    unread: set[Place] = set()

    def failed(place: Place, error: KafkaError) -> None:
        unread.add(place)
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            seen[place].forbidden = kafka_client.cannot(client, f"read {place[0]}").sentence

    with suppress(KafkaException, TimeoutError), closing(record_reader.consumer(client)) as consumer:
        left_s = kafka_reader.within(READ_S)
        # The first answer gives the client the cluster's metadata; else librdkafka repeats its request for a partition after
        # half a second.
        cluster_id = str(consumer.list_topics(timeout=READ_S).cluster_id or "")
        owners = [Owner(cluster_id, name) for name in names]
        for place, message in kafka_reader.messages(consumer, starts, ends, left_s, failed):
            _take(one := seen[place], message, owners)
            if one.enough:
                del ends[place]
    for place, one in seen.items():
        if place not in ends and place not in unread and not one.enough:
            one.at = one.end
    return seen


def _take(one: _Seen, message: Message, owners: Iterable[Owner]) -> None:
    if not one.records:
        one.sent_ms = _sent_ms(message, owners)
    one.records += 1
    one.at = (message.offset() or 0) + 1


def _sent_ms(message: Message, owners: Iterable[Owner]) -> int | None:
    """When a record, or the original of a copy, was sent, in milliseconds since 1970. None: no timestamp."""
    envelope: Any = message  # the stub lacks that header names are texts
    record = Record(message.topic() or "", 0, 0, None, None, envelope)
    is_own = any(owner.wrote(record.topic, envelope.headers() or ()) for owner in owners)
    sent_ms = record.timestamp_ms if is_own else message.timestamp()[1]
    return sent_ms if sent_ms > 0 else None
