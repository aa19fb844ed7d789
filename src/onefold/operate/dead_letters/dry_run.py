"""Predict the result of a replay of dead letters: with the real contract, handler and states of the pipeline, and without a
write.

The prediction calls the handler with the present states, record by record, as if no key were parked. Events that the pipeline
processes before the replay may change the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import groupby

from onefold.operate.dead_letters.letters import DeadLetters, Letter, Original, said
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.fold import fold
from onefold.processor.core.parking import inner
from onefold.processor.core.values import Record, Transaction
from onefold.processor.io.kafka import KafkaSession
from onefold.processor.runtime.state_manager import StateManager
from onefold.processor.runtime.state_store import MemoryStateStore


def rehearse(letters: DeadLetters, found: Iterable[tuple[Letter, Original]]) -> Iterator[tuple[Letter, str]]:
    """Predict for each dead letter the result for its record.

    Args:
        found: dead letters with a source, by partition number, and in the order of the replay. They are consumed lazily.

    Raises:
        UserError: Kafka does not answer, or the states cannot be read.
    """
    for partition, group in groupby(found, key=lambda pair: pair[0].source.partition if pair[0].source else 0):
        topology = letters.topology
        with said(letters.client), closing(KafkaSession(topology, partition, letters.client)) as session:
            # The session is not opened: opening it would fence the processor of the task.
            states = StateManager(topology, letters.codec, partition).restore(session, stable=True).store
            assert isinstance(states, MemoryStateStore), "without a disk they are in memory"
            states = MemoryStateStore(
                {key: held for key, state in states.items() if (held := inner(state)) is not None}
            )
            partition_of = session.partition_of
        for letter, original in group:
            source = letter.source
            assert source is not None, "who has none is not put back"
            record = Record(source.topic, partition, source.offset, original.key, original.value, original.envelope)
            try:
                transaction = fold(topology, states, (record,), letters.codec.decode, partition_of)
                for topic, _, fields, _, _ in transaction.outputs:
                    letters.codec.encode(topic, fields)
            except ProcessorError as error:
                yield letter, f"a dead letter again: {error}"
            except Exception as error:  # noqa: BLE001 - whatever the pipeline's own code raises
                yield letter, f"a dead letter again: the handler raised {type(error).__name__}: {error}"
            else:
                states.apply(transaction.changes)
                yield letter, _outcome(transaction)


def _outcome(transaction: Transaction) -> str:
    if transaction.dead_letters:
        return f"a dead letter again: {transaction.dead_letters[0].reason}"
    if transaction.misrouted:
        return f"well-formed; copied to partition {transaction.misrouted[0].partition}, where its key belongs"
    if transaction.counts.ignored:
        return "accepted, without effect"
    outputs = len(transaction.outputs)
    return f"accepted, {outputs} output{'' if outputs == 1 else 's'}"
