"""The heart: fold a batch of records into one transaction, and do nothing else.

Exactly-once in this product is one sentence: *a transaction is a value*. `fold` computes it from the state as of the
last committed transaction and the records after it; the session then makes all of it true or none of it:

    records = session.poll()                      what came, from the progress on
    transaction = fold(topology, store, records)  outputs, state changes, dead letters, progress: a value
    session.commit(transaction)                   one Kafka transaction
    store.apply(transaction.changes)              only after the commit

A crash before the commit leaves nothing behind: the successor aborts the open transaction, restores state *and*
progress from one changelog partition, and folds the same records again. A crash after the commit loses nothing: the
successor reads the new state and the new progress. Since both came out of one transaction, they cannot disagree.
A zombie cannot commit at all: its successor took its transactional id.

`fold` is the only place that calls a handler.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Protocol

from onefold.processor.core.errors import Rejected
from onefold.processor.core.topology import EmitChange, Topology
from onefold.processor.core.values import (
    OWN_HEADERS,
    Change,
    Counts,
    DeadLetter,
    Event,
    Misrouted,
    Output,
    Produced,
    Record,
    Transaction,
)

# Event(...) without the detour through Python that a NamedTuple's constructor takes; once for every record.
_new = tuple.__new__


#: For a topic where the latest row matters: what identifies a row, in a dict and in another object, and the latest of each
#: so far.
Latest = tuple[Callable[[Any], Any], Callable[[Any], Any], dict[Any, Produced]]


class States(Protocol):
    """The states as of the last committed transaction."""

    def get(self, key: str) -> Any:
        """The state of `key`, or None."""


def fold(
    topology: Topology,
    states: States,
    records: Iterable[Record],
    decode: Callable[[Record], Any],
    partition_of: Callable[[str], int],
) -> Transaction:
    """One transaction out of records that follow the progress, in order.

    Args:
        topology: the pipeline.
        states: read only; the new states are in the transaction.
        records: of this task's partition of every input topic.
        decode: turns a record into the value of its contract, or raises `Rejected`.
        partition_of: the partition where all records of a key belong.
    """
    key_of, handle, known = topology.keys, topology.handle, states.get
    every: list[Produced] = []
    latest: dict[str, Latest | None] = {
        topic: (itemgetter(*fields), attrgetter(*fields), {}) if fields else None
        for topic, fields in topology.outputs.items()
    }
    changes: dict[str, Change] = {}
    befores: list[Any] = []  # of the keys of `changes`, in the same order
    misrouted: list[Misrouted] = []
    dead_letters: list[DeadLetter] = []
    offsets_next: dict[str, int] = {}
    folded = ignored = 0
    output: Any  # two parts, or more
    produced: Produced
    for record in records:
        folded += 1
        topic, partition, offset, _, _, envelope = record
        offsets_next[topic] = offset + 1
        try:
            value = decode(record)
            key = str(key_of[topic](value))
            changed = changes.get(key)
            state = known(key) if changed is None else changed[0]
            # A key that has a state here belongs here: the hash is computed for new keys only.
            if state is None and (at := partition_of(key)) != partition:
                misrouted.append(Misrouted(record, key, at))
                continue
            state_new, outputs = handle(state, _new(Event, (topic, partition, offset, value, envelope)))
        except Rejected as reason:
            dead_letters.append(DeadLetter(record, str(reason)))
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
            except ValueError:  # more than two: whoever has no key or headers to name does not pay for a look
                produced = output_topic, _, fields, _, _ = _addressed(output, key, record)
            place = latest[output_topic]
            if place is None:
                every.append(produced)
            else:
                item, attribute, rows = place
                rows[item(fields) if isinstance(fields, dict) else attribute(fields)] = produced
    counts = Counts(folded - ignored - len(misrouted) - len(dead_letters), ignored, len(misrouted), len(dead_letters))
    if topology.emit_change is not None:
        every += _emitted(topology.emit_change, befores, changes)
    every += chain.from_iterable(rows.values() for _, _, rows in filter(None, latest.values()))
    return Transaction(every, changes, misrouted, dead_letters, offsets_next, counts)


def _emitted(emit_change: EmitChange, befores: list[Any], changes: dict[str, Change]) -> Iterator[Produced]:
    for before, (key, (after, record)) in zip(befores, changes.items(), strict=True):
        if before is not after:
            for output in emit_change(key, before, after):
                yield (output[0], key, output[1], record, ()) if len(output) == 2 else _addressed(output, key, record)


def _addressed(output: Sequence[Any], key: str, record: Record) -> Produced:
    """An output with more than topic and fields. Raises TypeError or ValueError for a key or headers that cannot be."""
    topic, fields, named, headers = Output(*output)
    if not isinstance(named, str | int | None):
        raise TypeError(f"the key of an output is an int or text, and not {named!r}")
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, bytes | None):
            raise TypeError(f"a header is a text and bytes, and not {name!r} and {value!r}")
        if name.startswith(OWN_HEADERS):
            raise ValueError(f"an output cannot have the header {name}: those of that beginning are the processor's")
    return topic, key if named is None else str(named), fields, record, tuple(headers)
