"""Dead letters of parked keys: the next letters to replay or drop, and whether the processor has processed them.

Kafka has no append that depends on an earlier read. Until the replays of a key are committed, further events of the key arrive,
and also wait. So a command releases a key in rounds: it replays all open dead letters of the key, in the order of their
tickets. After the processor has processed these letters, the next round replays the letters that arrived meanwhile. A round
without letters is the last. The processor enforces the order, even after the crash of a command.
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

# Interval between two reads of the progress, and the time without progress before the command reports a stall and ends.
_LOOK_AGAIN_S = 0.1
STALLED_S = 15.0


class Park(NamedTuple):
    """A parked key: the signature of the pipeline, the place of the record that parked the key, and the state key."""

    signature: bytes
    at: str
    key: str


class Round(NamedTuple):
    """The dead letters of one round.

    Attributes:
        letters: in order.
        heads: the first letter of each key.
        blocked: the parked keys that cannot be released, each with the rejected letter before the waiting letters.
    """

    letters: list[Letter]
    heads: list[Letter]
    blocked: dict[Park, Letter]


def park_of(letter: Letter) -> Park | None:
    """The parked key of a dead letter; None if the key is not parked."""
    ticket = letter.ticket
    return None if ticket is None else Park(letter.signature or b"", ticket.at, ticket.key)


def in_turn(letter: Letter) -> tuple[int, Park, int]:
    """Sort key for letters of parked keys."""
    assert letter.source is not None
    assert letter.ticket is not None
    return letter.source.partition, park_of(letter) or Park(b"", "", ""), letter.ticket.number


def open_letters(letters: DeadLetters, parks: Collection[Park]) -> list[Letter]:
    """Read the open dead letters of these parked keys, without keys and values."""
    found = (one for one in letters.select(Wanted(open=True)) if one.source is not None and park_of(one) in parks)
    return sorted((one._replace(key=None, value=None) for one in found), key=in_turn)


def next_round(waiting: Iterable[Letter], chosen: Collection[RecordPlace]) -> Round:
    """Select the letters of the next round.

    Args:
        waiting: open dead letters of parked keys, in order.
        chosen: the letters to replay or drop.
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
    """Wait until the processor has processed all records that its inputs hold now. Returns False after `wait_s`, or
    `STALLED_S`, without progress.
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
    """Find the heads of keys without progress since the last round, although no letter was rejected: the next letter of such a
    key is gone.

    Args:
        numbers: the ticket numbers of the heads of the last round by key; updated for this round.
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
    """Find the parked keys whose next letter is gone: the first open dead letter has a later ticket. Call this after the
    processor has processed all replays.
    """
    found = {park: head for head in heads if (park := park_of(head)) is not None and head.source is not None}
    states = _states(letters, {park: head.source.partition for park, head in found.items() if head.source is not None})
    return {
        park
        for park, head in found.items()
        if head.ticket is not None and park in states and states[park].next < head.ticket.number
    }


def half_released(letters: DeadLetters) -> Park | None:
    """Find a half-released parked key: some dead letters were replayed or dropped, while later letters wait, or while the
    processor has not processed the replays. None: there is none. No processor may run.

    A key without its next letter is not returned: none of its letters can be released.
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
    """The parked states of these keys, read from their changelog partitions. Keys without a parked state are left out."""
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
