"""Compute the bytes of one transaction from records. No I/O, no clock, no broker.

The result is a value, `Prepared`: processed and encoded, but not committed. A decider commits it atomically: by a Kafka
transaction (`transaction_decider`) or by a decision log (`log_decider`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from onefold.error_codes import Code
from onefold.processor.core.abc import Codec, Inputs, Write
from onefold.processor.core.errors import Rejected
from onefold.processor.core.fold import States, fold, state_key
from onefold.processor.core.owner import PIPELINE_HEADER
from onefold.processor.core.parking import Parking, parking
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import (
    SOURCE_HEADER,
    TIMESTAMP_HEADER,
    Change,
    DeadLetter,
    Record,
    Transaction,
    source_template,
    trace_of,
)
from onefold.processor.runtime import merge_order
from onefold.processor.runtime.changelog import STATE, TaskProgress
from onefold.processor.runtime.dead_letters import headers_of, key_of, value_of
from onefold.processor.runtime.handler_errors import NO_FAULT, Bugs


class Prepared(NamedTuple):
    """One transaction, computed and encoded.

    Attributes:
        writes: outputs, repartitioned copies, dead letters, and the merge order of the inputs.
        states: a changelog record for each changed key.
        changes: the same states as Python values, for the store.
        progress: the progress of the task after the commit.
    """

    writes: list[Write]
    states: list[Write]
    changes: Mapping[str, Change]
    progress: TaskProgress


class Compute:
    """Processes and encodes the records of one task.

    Args:
        inputs: the source of the partitioner and of the pipeline's signature.
    """

    def __init__(self, topology: Topology, codec: Codec, inputs: Inputs) -> None:
        self._parks = topology if topology.on_dead_letter == "park" else None
        self._topology = topology if self._parks is None else parking(topology)
        self._codec = codec
        self._partition = inputs.partition
        self._partition_of = inputs.partition_of
        self._signature = inputs.owner.signature
        self._bugs = Bugs()

    def prepare(
        self, states: States, progress: TaskProgress, records: Sequence[Record], rejected: Mapping[Record, str]
    ) -> Prepared:
        """Compute the transaction of the given records.

        If a record cannot be processed or encoded, all records are processed again with that record as a dead letter.

        Args:
            states: the states as of the last committed transaction.
            progress: the progress as of the last committed transaction; the records follow it.
            rejected: the records that are dead letters already, with the reasons.

        Raises:
            Refused: too many records fail, so the handler is wrong and not the records.
        """
        transaction, writes, states_written = self._folded(states, progress.ticked_ms, records, dict(rejected))
        after = progress.advanced(transaction.offsets_next, transaction.counts, transaction.ticked_ms)
        return Prepared([*writes, *self._order(records)], states_written, transaction.changes, after)

    def _folded(
        self, states: States, ticked_ms: int, records: Sequence[Record], rejected: dict[Record, str]
    ) -> tuple[Transaction, list[Write], list[Write]]:
        topology, partition_of = self._topology, self._partition_of
        parks = None
        if self._parks is not None:
            crashed = frozenset(rejected)  # decoding a poison record may end the process again
            key_of = partial(state_key, topology, self._codec.decode)
            parks = Parking(self._parks, self._signature, lambda record: None if record in crashed else key_of(record))

        def decode(record: Record) -> object:
            if record in rejected:
                raise Rejected(rejected[record], Code.REJECTED)
            return self._codec.decode(record)

        while True:
            chosen = decode if rejected else self._codec.decode
            try:
                transaction = fold(topology, states, records, chosen, partition_of, ticked_ms, parks)
                return transaction, *self._encode(transaction)
            except _Unencodable as fault:
                rejected[fault.record] = fault.reason
                continue
            except NO_FAULT:
                raise
            except Exception as error:  # noqa: BLE001 - raised again unless a record is at fault
                bug = error
            folding = topology, states, records, chosen, partition_of
            faults = self._bugs.at_fault(*folding, self._try_encode, ticked_ms, parks)
            if faults.keys() <= rejected.keys():
                raise bug
            rejected.update(faults)

    def _encode(self, transaction: Transaction) -> tuple[list[Write], list[Write]]:
        """The records for other topics, and the records for the changelog."""
        encode, encode_state, changelog = self._codec.encode, self._codec.encode_state, self._topology.changelog
        partition = self._partition
        source = {topic: source_template(topic, partition) for topic in self._topology.reads}
        writes: list[Write] = []
        states: list[Write] = []
        add, add_state = writes.append, states.append
        cause: Record | None = None
        # By the id of the cause: a record may cause several outputs, which need not be adjacent.
        known: dict[int, list[tuple[str, bytes | None]]] = {}
        try:
            for topic, key, value, cause, more in transaction.outputs:
                headers = known.get(id(cause))
                if headers is None:
                    headers = known[id(cause)] = [(SOURCE_HEADER, source[cause.topic] % cause.offset)]
                    envelope = cause.envelope
                    # Most records have no headers, and then the call of `trace_of` would cost as much as the source header.
                    if envelope is not None and envelope.headers():
                        headers += trace_of(cause)
                if more:
                    # The handler's headers replace trace headers of the same name.
                    said = dict(more)
                    headers = [headers[0], *more, *(header for header in headers[1:] if header[0] not in said)]
                add((topic, None, key.encode(), encode(topic, value), headers))
            for key, (state, cause) in transaction.changes.items():  # noqa: B007 - named when it cannot be encoded
                data = None if state is None else encode_state(state)
                add_state((changelog, partition, STATE + key.encode(), data, None))
        except Rejected as reason:
            assert cause is not None, "something was being encoded"
            raise _Unencodable(cause, str(reason)) from reason
        for record, key, key_partition in transaction.misrouted:
            # The copy gets a timestamp of now. With the record's old timestamp, retention could delete the copy unread.
            sent_ms = (TIMESTAMP_HEADER, b"%d" % record.timestamp_ms)
            kept = [(SOURCE_HEADER, record.source), sent_ms, (PIPELINE_HEADER, self._signature)]
            add((record.topic, key_partition, key.encode(), record.value, [*record.headers, *kept]))
        writes += [self._dead(letter) for letter in transaction.dead_letters]
        return writes, states

    def _try_encode(self, transaction: Transaction) -> None:
        with suppress(_Unencodable):
            self._encode(transaction)

    def _order(self, records: Sequence[Record]) -> list[Write]:
        """The merge order record, if the pipeline has several inputs."""
        if self._topology.order is None:
            return []
        return [(self._topology.order, self._partition, None, merge_order.encode(records), None)]

    def _dead(self, letter: DeadLetter) -> Write:
        topic = self._topology.dead[letter.record.topic]
        return (topic, self._partition, key_of(letter), value_of(letter), headers_of(letter, self._signature))


class _Unencodable(Exception):
    def __init__(self, record: Record, reason: str) -> None:
        super().__init__(reason)
        self.record = record
        self.reason = reason
