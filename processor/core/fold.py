"""Fold a batch of records into one transaction.

Exactly-once in Onefold is one sentence: *a transaction is a value*. `fold` computes the value from the states as of the
last committed transaction and the records after it. The session commits the whole value or nothing:

    records = session.poll()                      records after the progress
    transaction = fold(topology, store, records)  outputs, states, dead letters, progress
    session.commit(transaction)                   one Kafka transaction
    store.apply(transaction.changes)              after the commit

A crash before the commit leaves no effect: the successor aborts the open transaction, restores state *and*
progress from one changelog partition, and folds the same records again. A crash after the commit loses nothing: the
successor reads the new state and the new progress. State and progress cannot disagree, since one transaction wrote both.
A zombie cannot commit: its successor took over the transactional id, and the broker fences the zombie.

`fold` is the only place that calls a handler.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, Protocol

from onefold.error_codes import Code
from onefold.processor.core.errors import Rejected
from onefold.processor.core.parking import Parking
from onefold.processor.core.topology import EmitChange, Tick, Topology
from onefold.processor.core.values import (
    OWN_HEADERS,
    Change,
    DeadLetter,
    Event,
    Misrouted,
    Output,
    Outputs,
    Produced,
    Record,
    RecordCounts,
    Transaction,
)

#: The end of the year 9999, in milliseconds. A tick with a later time, say in microseconds, would be the partition's last.
TICK_MS_MAX = 253_402_300_799_999

# `Event(...)` without the Python call of a NamedTuple's constructor, since the loop makes an event for every record.
_new = tuple.__new__


#: For a topic with row fields: the getters of a row's identity, from a dict and from an object, and the latest output per row.
Latest = tuple[Callable[[Any], Any], Callable[[Any], Any], dict[Any, Produced]]


class States(Protocol):
    """The states as of the last committed transaction."""

    def get(self, key: str) -> Any:
        """The state of `key`, or None."""

    def items(self) -> Iterable[tuple[str, Any]]:
        """Every key that has a state, and its state."""


class _Into:
    """The transaction under construction: the results of the records so far."""

    def __init__(self, topology: Topology, ticked_ms: int) -> None:
        self.every: list[Produced] = []
        self.latest: dict[str, Latest | None] = {
            topic: (itemgetter(*fields), attrgetter(*fields), {}) if fields else None
            for topic, fields in topology.outputs.items()
        }
        self.changes: dict[str, Change] = {}
        self.befores: list[Any] = []  # the earlier states of the keys of `changes`, in the same order
        self.misrouted: list[Misrouted] = []
        self.dead_letters: list[DeadLetter] = []
        self.offsets_next: dict[str, int] = {}
        self.folded = self.ignored = 0
        self.ticked_ms = ticked_ms

    def take(self, key: str, before: Any, after: Any, record: Record, outputs: Outputs) -> None:
        """Add the result of a record for a key. `_fold_records` repeats these lines in its loop to save the call."""
        if key not in self.changes:
            self.befores.append(before)
        self.changes[key] = (after, record)
        for output in outputs:
            produced = _produced(output, key, record)
            place = self.latest[produced[0]]
            if place is None:
                self.every.append(produced)
            else:
                item, attribute, rows = place
                fields = produced[2]
                rows[item(fields) if isinstance(fields, dict) else attribute(fields)] = produced


def fold(
    topology: Topology,
    states: States,
    records: Iterable[Record],
    decode: Callable[[Record], Any],
    partition_of: Callable[[str], int],
    ticked_ms: int = 0,
    parking: Parking | None = None,
) -> Transaction:
    """Compute one transaction from records that follow the progress, in order.

    Args:
        topology: the pipeline.
        states: read only; the new states are in the transaction.
        records: from this task's partition of every topic that the task reads.
        decode: turns a record into a value of its topic's schema and a tombstone into None, or raises `Rejected`.
        partition_of: returns the partition of a state key.
        ticked_ms: the time of the last folded tick.
        parking: handles rejected records (see `core.parking`). None: each becomes a dead letter.
    """
    into = _Into(topology, ticked_ms)
    if parking is not None:
        decode = parking.decoding(decode, partial(_state, states, into), topology.tombstones == "ignore")
    if topology.tick is None:
        _fold_records(topology, states, records, decode, partition_of, parking, into)
    else:
        for ticks, run in groupby(records, lambda record: record.topic == topology.ticks):
            if not ticks:
                _fold_records(topology, states, run, decode, partition_of, parking, into)
                continue
            for record in run:
                _fold_tick(topology.tick, states, record, decode, into)
    misrouted, dead_letters = into.misrouted, into.dead_letters
    accepted = into.folded - into.ignored - len(misrouted) - len(dead_letters)
    counts = RecordCounts(accepted, into.ignored, len(misrouted), len(dead_letters))
    outputs = into.every
    if topology.emit_change is not None:
        outputs += _emitted(topology.emit_change, into.befores, into.changes)
    outputs += chain.from_iterable(rows.values() for _, _, rows in filter(None, into.latest.values()))
    return Transaction(outputs, into.changes, misrouted, dead_letters, into.offsets_next, counts, into.ticked_ms)


def _fold_records(
    topology: Topology,
    states: States,
    records: Iterable[Record],
    decode: Callable[[Record], Any],
    partition_of: Callable[[str], int],
    parking: Parking | None,
    into: _Into,
) -> None:
    key_of, handle, known = topology.keys, topology.handle, states.get
    every, latest, changes, befores = into.every, into.latest, into.changes, into.befores
    misrouted, dead_letters, offsets_next = into.misrouted, into.dead_letters, into.offsets_next
    ignores_tombstones = topology.tombstones == "ignore"
    folded = ignored = 0
    output: Any  # two items, or more
    produced: Produced
    for record in records:
        folded += 1
        topic, partition, offset, record_key, _, envelope = record
        offsets_next[topic] = offset + 1
        try:
            value = decode(record)
            if value is not None:
                key = str(key_of[topic](value))
            elif ignores_tombstones:
                ignored += 1
                continue
            else:
                key = tombstone_key(record_key)
            changed = changes.get(key)
            state = known(key) if changed is None else changed[0]
            # A key with a state here belongs to this partition, so the hash is computed for new keys only.
            if state is None and (at := partition_of(key)) != partition:
                misrouted.append(Misrouted(record, key, at))
                continue
            state_new, outputs = handle(state, _new(Event, (topic, partition, offset, value, envelope, record_key)))
        except Rejected as reason:
            if parking is None:
                dead_letters.append(DeadLetter(record, str(reason)))
            else:
                ignored += _fold_rejected(parking, states, record, reason, into)
            continue
        if state_new is state and not outputs:
            ignored += 1
            continue
        if changed is None:
            befores.append(state)
        changes[key] = (state_new, record)
        for output in outputs:
            try:
                output_topic, fields = output
                produced = (output_topic, key, fields, record, ())
            except ValueError:  # more than two items; plain outputs, the usual case, skip this cost
                produced = output_topic, _, fields, _, _ = _addressed(output, key, record)
            place = latest[output_topic]
            if place is None:
                every.append(produced)
            else:
                item, attribute, rows = place
                rows[item(fields) if isinstance(fields, dict) else attribute(fields)] = produced
    into.folded += folded
    into.ignored += ignored


def _fold_rejected(parking: Parking, states: States, record: Record, reason: Rejected, into: _Into) -> bool:
    """Handle a rejected record; return whether the record was processed after all and changed nothing."""
    letter, key, before, after, outputs, idle = parking.take(record, reason, partial(_state, states, into))
    if letter is not None:
        into.dead_letters.append(letter)
    if after is not before or outputs:
        # If the handler's state cannot be encoded, the error must name the record that produced the state.
        keeps = (letter is not None or idle) and key in into.changes
        into.take(key, before, after, into.changes[key][1] if keeps else record, outputs)
    return idle


def _state(states: States, into: _Into, key: str) -> Any:
    """Return the state of a key after all records so far."""
    changed = into.changes.get(key)
    return states.get(key) if changed is None else changed[0]


def state_key(topology: Topology, decode: Callable[[Record], Any], record: Record) -> str | None:
    """Return the state key of a rejected record, or None if the record has no known key."""
    if record.topic not in topology.keys:
        return None
    try:
        value = decode(record)
        key = tombstone_key(record.key) if value is None else str(topology.keys[record.topic](value))
        key.encode()  # headers and changelog hold the key as UTF-8
        return key
    except Exception:  # noqa: BLE001 - the pipeline's code may raise anything for a rejected value
        return None


def tombstone_key(record_key: bytes | None) -> str:
    """Return the state key of a tombstone. Raises `Rejected` if the Kafka key is missing or no UTF-8 text."""
    if record_key is None:
        raise Rejected("the value is null, and there is no key that says what is deleted", Code.VALUE_UNREADABLE)
    try:
        return record_key.decode()
    except UnicodeDecodeError as error:
        raise Rejected(
            f"the value is null, and its key is no UTF-8 text that says what is deleted: {error}", Code.VALUE_UNREADABLE
        ) from None


def _fold_tick(tick: Tick, states: States, record: Record, decode: Callable[[Record], Any], into: _Into) -> None:
    """Fold a tick as one record: either every due key is handled, or the tick is a dead letter and changes no key."""
    into.folded += 1
    into.offsets_next[record.topic] = record.offset + 1
    try:
        at_ms: int = decode(record).at_ms
        if not 0 <= at_ms <= TICK_MS_MAX:
            raise Rejected(
                f"at_ms is {at_ms}; a time is from 0 to {TICK_MS_MAX} milliseconds since 1970", Code.VALUE_UNREADABLE
            )
        if at_ms <= into.ticked_ms:
            into.ignored += 1  # another processor wrote the same tick, or its clock is behind
            return
        seen = [(key, state, tick.handle(key, state, at_ms)) for key, state in _due(tick, states, into.changes, at_ms)]
    except Rejected as reason:
        into.dead_letters.append(DeadLetter(record, str(reason)))
        return
    into.ticked_ms = at_ms
    idle = True
    for key, before, (after, outputs) in seen:
        if after is before and not outputs:
            continue
        idle = False
        into.take(key, before, after, record, outputs)
    into.ignored += idle


def _due(tick: Tick, states: States, changes: Mapping[str, Change], at_ms: int) -> list[tuple[str, Any]]:
    """Return the keys that are due at a tick, sorted, with their states after the records before the tick."""
    present = chain(
        ((key, state) for key, state in states.items() if key not in changes),
        ((key, state) for key, (state, _) in changes.items() if state is not None),
    )
    due = tick.due
    if due is None:
        return sorted(present, key=itemgetter(0))
    found = ((key, state) for key, state in present if (from_ms := due(state)) is not None and from_ms <= at_ms)
    return sorted(found, key=itemgetter(0))


def _emitted(emit_change: EmitChange, befores: list[Any], changes: dict[str, Change]) -> Iterator[Produced]:
    for before, (key, (after, record)) in zip(befores, changes.items(), strict=True):
        if before is not after:
            for output in emit_change(key, before, after):
                yield _produced(output, key, record)


def _produced(output: Sequence[Any], key: str, record: Record) -> Produced:
    return (output[0], key, output[1], record, ()) if len(output) == 2 else _addressed(output, key, record)


def _addressed(output: Sequence[Any], key: str, record: Record) -> Produced:
    """Build an output with a key or headers. Raises TypeError or ValueError if the key or a header is invalid."""
    topic, fields, named, headers = Output(*output)
    if not isinstance(named, str | int | None):
        raise TypeError(f"the key of an output is an int or text, and not {named!r}")
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, bytes | None):
            raise TypeError(f"a header is a text and bytes, and not {name!r} and {value!r}")
        if name.startswith(OWN_HEADERS):
            raise ValueError(f"an output cannot have the header {name}: those of that beginning are the processor's")
    return topic, key if named is None else str(named), fields, record, tuple(headers)
