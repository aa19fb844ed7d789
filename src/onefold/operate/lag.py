"""How far the tables are behind, as a person means it: events and output records, and how old the oldest of them is.

Offsets are where it begins (`operate.positions`): where they say that nothing is behind, nothing is. Behind a last record there
may also be markers, aborted records and the gaps of compaction, which nobody has to fold or to land. So what is behind is looked
at. Kafka's client is imported when Kafka is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from onefold import kafka_reader
from onefold.config.settings import Settings
from onefold.operate import answering, pipelines, positions, reading
from onefold.operate.positions import Behind, Place, Ranges
from onefold.processor.core.owner import Owner
from onefold.processor.core.values import Record

if TYPE_CHECKING:
    from confluent_kafka import Message

# A partition in which more follows its first record is not counted through: it would cost what folding costs, and nobody reads
# the last digits of such a number.
COUNTED_MAX = 2_000
# For all partitions together; a broker that is there takes some ten milliseconds, and one that aborted much a little longer.
READ_S = 3.0


class Lag(NamedTuple):
    """Of one pipeline. None: it cannot be determined.

    Attributes:
        input_events: records of the inputs, ticks too, that are not folded.
        input_s: seconds since the oldest of them was sent: of each partition the first counts. 0.0 when there is none.
        output_events, output_s: output records that are not in the database, likewise.
        exact: False: there are at most so many, by their offsets.
        no_inputs, no_outputs: why it, or its age, cannot be determined, or "".
        partitions, refused: as of `Behind`.
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
        """Both together. 0: the pipeline is drained."""
        if self.input_events is None or self.output_events is None:
            return None
        return self.input_events + self.output_events

    @property
    def seconds(self) -> float | None:
        """How old the oldest is of all that is on its way to the database."""
        return None if self.input_s is None or self.output_s is None else max(self.input_s, self.output_s)

    def as_json(self) -> dict[str, Any]:
        """All of it, by name."""
        return {**self._asdict(), "events": self.events, "seconds": self.seconds}


UNKNOWN = Lag()


def of(domain: str, settings: Settings) -> Lag:
    """Of one pipeline. Raises UserError when no servers are set and the embedded stack is not running."""
    return looked_at(positions.behind_of([domain], settings), settings).get(domain, UNKNOWN)


def of_all(settings: Settings, ask_database: bool = True) -> dict[str, Lag]:
    """Of every pipeline; asks nothing more of a Kafka that does not answer the first question.

    Args:
        ask_database: False where it is known not to answer.
    """
    behind = positions.behind_of_all(settings, ask_database)
    if behind is None:
        why = answering.why_silent(settings)
        return dict.fromkeys(pipelines.domains(), UNKNOWN._replace(no_inputs=why, no_outputs=why))
    return dict.fromkeys(pipelines.domains(), UNKNOWN) | looked_at(behind, settings)


def looked_at(behind: Mapping[str, Behind], settings: Settings) -> dict[str, Lag]:
    """The lag of the pipelines of which somebody has asked already what is behind. Reads nothing where nothing is."""
    # A partition may be one pipeline's output and another's input, and they are not equally far.
    wanted: list[Ranges] = [ranges for found in behind.values() for ranges in (found.inputs, found.outputs) if ranges]
    seen = [_look(settings.client(), part, behind) for part in disjoint(wanted)]
    return {name: _lag(found, seen) for name, found in behind.items()}


def disjoint(wanted: list[Ranges]) -> list[Ranges]:
    """The same ranges in as few groups as have a partition only once each: in nearly all cases one."""
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
    """What was found in [start, end) of a partition.

    Attributes:
        at: the offset up to which it was looked at.
        records: so many committed ones there.
        sent_ms: when the first was sent, in milliseconds since 1970.
        forbidden: that this client has no right to read it, in one sentence, or "".
    """

    start: int
    end: int
    at: int
    records: int = 0
    sent_ms: int | None = None
    forbidden: str = ""

    @property
    def events(self) -> int:
        """How many there are, at most where not all was looked at."""
        return self.records + max(0, self.end - self.at)

    @property
    def enough(self) -> bool:
        """Whether it need not be read any further."""
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
    # Of one that was not reached in time nobody knows how old it is, and it may be the oldest.
    age_s = max(0, now_ms - min(sent)) / 1000 if len(sent) == len(waiting) else None
    return sum(part.events for part in waiting), age_s


def _look(client: Mapping[str, Any], ranges: Ranges, names: Iterable[str]) -> dict[Place, _Seen]:
    """What is found in these ranges of these pipelines, as far as it can be read in time."""
    from confluent_kafka import KafkaError, KafkaException

    from onefold import kafka_client

    seen = {place: _Seen(start, end, start) for place, (start, end) in ranges.items()}
    starts, ends = ({place: span[at] for place, span in ranges.items()} for at in (0, 1))
    unread: set[Place] = set()

    def failed(place: Place, error: KafkaError) -> None:
        unread.add(place)
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            seen[place].forbidden = kafka_client.cannot(client, f"read {place[0]}").sentence

    with suppress(KafkaException, TimeoutError), closing(reading.consumer(client)) as consumer:
        left_s = kafka_reader.within(READ_S)
        # By the first answer it knows the cluster; without it librdkafka asks for a partition again half a second later.
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
    """When it was sent, and if it is a copy, its original; in milliseconds since 1970. None: nobody has written it down."""
    envelope: Any = message  # its stub does not say that names of headers are texts
    record = Record(message.topic() or "", 0, 0, None, None, envelope)
    is_own = any(owner.wrote(record.topic, envelope.headers() or ()) for owner in owners)
    sent_ms = record.timestamp_ms if is_own else message.timestamp()[1]
    return sent_ms if sent_ms > 0 else None
