"""Dead letters of parked keys: which of them are replayed or dropped next, and when the processor has taken them.

Kafka has no append that depends on what was read. Until the replays of a key are committed, further events of the key arrive, and
wait as well. So a key is released in rounds: all its open dead letters are replayed, in the order of their tickets; when the
processor has taken them, those that have come since follow. A round without any is the last one. The processor holds the order,
whatever a command that is killed has left.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from onefold.operate.dead_letters.letters import DeadLetters, Letter, Wanted, said
from onefold.operate.record_reader import RecordPlace
from onefold.processor.core.parking import Parked, is_parked
from onefold.processor.io import admin, range_reader
from onefold.processor.runtime.changelog import STATE, TaskProgress

# Between two looks at the progress; and so long it may stand still before the command says so and ends.
_LOOK_AGAIN_S = 0.1
STALLED_S = 15.0


class Park(NamedTuple):
    """A parked key: the pipeline's signature, where the record lies that parked it, and the state key."""

    signature: bytes
    at: str
    key: str


class Round(NamedTuple):
    """The dead letters of one round.

    Attributes:
        letters: in order.
        heads: of them the first of each key.
        blocked: the parked keys that cannot be released, each with the rejected letter behind which the others wait.
    """

    letters: list[Letter]
    heads: list[Letter]
    blocked: dict[Park, Letter]


def park_of(letter: Letter) -> Park | None:
    """The parked key that a dead letter is of; None: its key is not parked."""
    ticket = letter.ticket
    return None if ticket is None else Park(letter.signature or b"", ticket.at, ticket.key)


def in_turn(letter: Letter) -> tuple[int, Park, int]:
    """What letters of parked keys are sorted by."""
    assert letter.source is not None
    assert letter.ticket is not None
    return letter.source.partition, park_of(letter) or Park(b"", "", ""), letter.ticket.number


def open_letters(letters: DeadLetters, parks: Collection[Park]) -> list[Letter]:
    """The open dead letters of these parked keys, without what they hold."""
    found = (one for one in letters.select(Wanted(open=True)) if one.source is not None and park_of(one) in parks)
    return sorted((one._replace(key=None, value=None) for one in found), key=in_turn)


def next_round(waiting: Iterable[Letter], chosen: Collection[RecordPlace]) -> Round:
    """What is sent next.

    Args:
        waiting: open dead letters of parked keys, in order.
        chosen: those that are to be replayed or dropped.
    """
    by_park: dict[Park, list[Letter]] = {}
    for letter in waiting:
        if (park := park_of(letter)) is not None:
            by_park.setdefault(park, []).append(letter)
    found = Round([], [], {})
    for park, several in by_park.items():
        head = several[0]
        assert head.ticket is not None
        if head.ticket.refused and head.place not in chosen:
            found.blocked[park] = head
        else:
            found.letters.extend(several)
            found.heads.append(head)
    return found


def has_taken(letters: DeadLetters, partitions: Collection[int], wait_s: float | None = None) -> bool:
    """Wait until the processor has taken all that its inputs hold now. Returns whether it has; not, when it stands still for
    `wait_s`, or `STALLED_S`.
    """
    topology, wait_s = letters.topology, STALLED_S if wait_s is None else wait_s
    with said(letters.client):
        kafka = admin.connect(letters.client)
        ends = {
            (topic, partition): admin.stable_end(kafka, topic, partition)
            for topic in topology.inputs
            for partition in partitions
        }
        seen: Mapping[int, bytes] = {}
        deadline = time.monotonic() + wait_s
        while True:
            found = admin.last_progresses(kafka, topology, partitions, letters.client)
            if found != seen:
                seen, deadline = found, time.monotonic() + wait_s
            at = {partition: TaskProgress.decode(value).offsets_next for partition, value in found.items()}
            if all(at.get(partition, {}).get(topic, 0) >= end for (topic, partition), end in ends.items()):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_AGAIN_S)


def not_called(heads: Iterable[Letter], numbers: dict[Park, int]) -> dict[Park, Letter]:
    """The first letters whose keys have made no progress since the round before, though nothing was rejected: the dead letter
    whose turn it is is gone.

    Args:
        numbers: by key the ticket of its first letter in the round before; gets those of this round.
    """
    found = {}
    for head in heads:
        park, ticket = park_of(head), head.ticket
        if park is not None and ticket is not None:
            if not ticket.refused and ticket.number <= numbers.get(park, -1):
                found[park] = head
            numbers[park] = ticket.number
    return found


def without_turn(letters: DeadLetters, heads: Iterable[Letter]) -> set[Park]:
    """The parked keys whose first open dead letter is behind the one whose turn it is: that one is gone. The processor has to
    have taken all replays.
    """
    found = {park: head for head in heads if (park := park_of(head)) is not None and head.source is not None}
    states = _states(letters, {park: head.source.partition for park, head in found.items() if head.source is not None})
    return {
        park
        for park, head in found.items()
        if head.ticket is not None and park in states and states[park].next < head.ticket.number
    }


def half_released(letters: DeadLetters) -> Park | None:
    """A parked key of which some dead letters were replayed or dropped, while others wait, or while the processor has not taken
    the replays. None: there is none. No processor runs.

    Of a key whose next turn no dead letter has any more, nothing else can be released: it is none of these.
    """
    receipts = letters.receipts()
    ended, still = dict[Park, int](), dict[Park, Letter]()
    for letter in letters.select(Wanted()):
        park = park_of(letter)
        if park is not None and letter.source is not None:
            if letters.receipt(letter.source, receipts) is None:
                still[park] = min(letter, still.get(park, letter), key=in_turn)
            else:
                ended[park] = letter.source.partition
    if not ended:
        return None
    states = _states(letters, ended)
    if suspects := [park for park in ended if park in still or park in states]:
        if not has_taken(letters, {*ended.values()}, 0):
            return suspects[0]
        gone = without_turn(letters, still.values())
        return next((park for park in suspects if park in still and park not in gone), None)
    return None


def _states(letters: DeadLetters, parks: Mapping[Park, int]) -> dict[Park, Parked]:
    """The states of these keys, by their partitions, as far as they are parked."""
    topology, keys = letters.topology, {STATE + park.key.encode(): park.key for park in parks}
    states: dict[str, bytes | None] = {}
    with said(letters.client):
        kafka = admin.connect(letters.client)
        ranges = {
            (topology.changelog, partition): (
                admin.identity(kafka, topology.changelog, partition).start,
                admin.stable_end(kafka, topology.changelog, partition),
            )
            for partition in {*parks.values()}
        }
        for message in range_reader.between(letters.client, ranges):
            if (key := keys.get(message.key() or b"")) is not None:
                states[key] = message.value()
    decode = letters.codec.decode_state
    found = {park: decode(topology, state) for park in parks if (state := states.get(park.key)) and is_parked(state)}
    return {park: state for park, state in found.items() if state.at == park.at}
