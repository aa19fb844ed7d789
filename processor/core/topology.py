"""The declaration of a pipeline: inputs, key, state, handler, outputs and tick. An app declares one `Topology` literal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.processor.core.values import Event, Outputs

#: Key of the changelog record that holds a task's progress.
PROGRESS_KEY = b"p"

#: `(state or None, event) -> (state or None, outputs)`. A pure function: no clock, no random number, no I/O, and no change
#: to the given state, since the same event may be folded again from that state. None as state forgets the key. A handler
#: may raise `Rejected` for an event that can never be processed.
Handler = Callable[[Any, Event], tuple[Any, Outputs]]

#: `(key, state before, state after) -> outputs`, for one transaction. As pure as a handler, but must not raise `Rejected`:
#: every event of the change has been accepted.
EmitChange = Callable[[str, Any, Any], Outputs]

#: `(value) -> state key`, an int or text. The function may raise `Rejected`.
Key = Callable[[Any], int | str]

#: `(key, state, at_ms) -> (state or None, outputs)`. As pure as a handler. If a call raises `Rejected` for one key, the tick
#: becomes a dead letter and changes no key.
OnTick = Callable[[str, Any, int], tuple[Any, Outputs]]

# Each tick costs a record and a transaction in each partition, so an interval has a minimum. The maximum of a day keeps a
# timer testable.
_TICK_MIN_MS, _TICK_MAX_MS = 1_000, 86_400_000


#: The treatment of an input record with a null value.
Tombstones = Literal["reject", "ignore", "event"]
#: The treatment of a key's later events after one of its events became a dead letter.
OnDeadLetter = Literal["pass", "park"]


@dataclass(frozen=True)
class Tick:
    """A timer: a record with the time in each partition, at every interval, by the clock of the processor that writes the tick.
    Ticks are an input like any other, in the topic `<name>.ticks`, so a replay and the verifier see the same time.

    A tick calls `handle` once for each key of its partition that has a state, in the order of the keys' texts. One
    transaction holds all results of a tick, and the outputs name the tick as their source.

    **Guarantees.** In a partition, the times of the ticks increase. The times are multiples of the interval since 1970, and
    may have gaps: a pause of an hour leaves one tick and not 3,600. A started task gets its first tick after all records
    that were in the inputs at its start. A tick does not mean that every record from before its time has arrived: a topic or
    a sender may be slow.

    **Costs.** Each tick calls `due` for each key, or `handle` if the tick has no `due`. Each tick is a transaction, even if
    no key is due. With replicas, the results of a tick must fit into one proposal of 20 MB: see docs/hot-hot.md.

    Attributes:
        every_s: the interval in seconds, from 1 to 86,400, in whole milliseconds.
        handle: `(key, state, at_ms) -> (state or None, outputs)`: the key as a text, its state, and the time in milliseconds
            since 1970. None as state forgets the key.
        due: `(state) -> at_ms or None`: the earliest time at which `handle` is called for the key; None: no call as long as
            the state does not change. Without `due`, every tick calls `handle` for every key.

    Raises:
        Refused: the interval is invalid.
    """

    every_s: float
    handle: OnTick
    due: Callable[[Any], int | None] | None = None

    def __post_init__(self) -> None:
        every_ms = self.every_s * 1000
        if not _TICK_MIN_MS <= every_ms <= _TICK_MAX_MS or every_ms != round(every_ms):
            raise Refused(
                Code.PIPELINE_WRONG,
                f"a tick every {self.every_s} s cannot be; say every_s in seconds from {_TICK_MIN_MS // 1000} to "
                f"{_TICK_MAX_MS // 1000}, in whole milliseconds",
            )

    @property
    def every_ms(self) -> int:
        """The interval in milliseconds."""
        return round(self.every_s * 1000)


@dataclass(frozen=True)
class Topology:
    """One pipeline. The schemas are found by topic in `avro/`, so a topology does not name them.

    **Guaranteed order.** The handler gets the events of a key in sequence, and the events from one partition of a
    topic in offset order. Between two topics no order is guaranteed, nor between a record sent to the partition of its key
    and a repartitioned record. A payment may arrive before its order, and after a reset
    the arrival order may differ. A handler that joins topics must keep the first arrival in its state, whichever topic the
    event is from. Committed results never change: a crash repeats no event, and the topic `order` holds the recorded merge
    order.

    Attributes:
        name: the pipeline's name, and the first part of the names of its own topics.
        inputs: topics read. All have the same number of partitions; partition p of all inputs is task p. An input may also
            be an output, as a feedback topic: a record that the pipeline writes under a key reaches the key's state later,
            exactly once (see `fed`).
        key: the function from an input value to its state key, an int or text; or, if the inputs' values differ, a mapping
            with such a function for each topic. Events of two topics with the same key share one state.
        state: the class of the state: a dataclass, or a msgspec Struct, which is faster to create.
        handle: the handler. A handler must not change the given state; a handler returns a new state.
        outputs: topics written, each with one schema. The value names the fields that identify a row if only the latest
            row matters, or is None if every record counts. If a transaction writes a row several times, only the last
            becomes a record, even under different keys.
        emit_change: the outputs for the whole change of a key, called once a transaction for every changed key. Useful for
            outputs that are differences, such as an amount to add to a sum: ten changes of a key cost one record and not ten.
        tick: the interval and the handler of a timer, if the pipeline needs time.
        tombstones: the treatment of a tombstone, an input record with a null value, by which compacted topics and change data
            capture delete a key. "reject": the tombstone becomes a dead letter. "ignore": the tombstone counts as ignored and
            changes nothing. "event": `handle` gets an `Event` with the value None and a `key` that names the deleted key. The
            state key is then the Kafka key as UTF-8 text, since `key` needs a value; a tombstone without such a Kafka key
            becomes a dead letter. An empty value is no tombstone.
        on_dead_letter: the treatment of a key's later events after one of its events was rejected. "pass": the handler
            gets the events. "park": the events wait as dead letters, in order, until `onefold dead-letters` has replayed or
            dropped the rejected event. A record without a known key, such as an undecodable record, parks no key.

    Raises:
        Refused: `key` does not have exactly one function for each input, or an input or output has the name of the tick topic.
            Also, all inputs are feedback topics, or `tombstones` or `on_dead_letter` has an unknown value, or `on_dead_letter`
            is "park" and an input is a feedback topic.
    """

    name: str
    inputs: tuple[str, ...]
    key: Key | Mapping[str, Key]
    state: type
    handle: Handler
    outputs: Mapping[str, tuple[str, ...] | None]
    emit_change: EmitChange | None = None
    tick: Tick | None = None
    tombstones: Tombstones = "reject"
    on_dead_letter: OnDeadLetter = "pass"

    def __post_init__(self) -> None:
        if self.tombstones not in get_args(Tombstones):
            known = ", ".join(map(repr, get_args(Tombstones)))
            raise Refused(Code.PIPELINE_WRONG, f"{self.name} has tombstones={self.tombstones!r}; it is one of {known}")
        if self.on_dead_letter not in get_args(OnDeadLetter):
            known = " or ".join(map(repr, get_args(OnDeadLetter)))
            raise Refused(Code.PIPELINE_WRONG, f"{self.name} has on_dead_letter={self.on_dead_letter!r}; it is {known}")
        if self.on_dead_letter == "park" and self.fed:
            raise Refused(
                Code.PIPELINE_WRONG,
                f"{self.name} has on_dead_letter='park' and writes its own input {self.fed[0]}, whose dead letters cannot be "
                f"dropped: say on_dead_letter='pass'",
            )
        if self.keys.keys() != set(self.inputs):
            raise Refused(
                Code.PIPELINE_WRONG,
                f"{self.name} has keys for {', '.join(self.keys)}, and reads {', '.join(self.inputs)}",
            )
        if self.ticks in (*self.inputs, *self.outputs):
            raise Refused(
                Code.PIPELINE_WRONG,
                f"{self.ticks} is the topic of the ticks of {self.name}; give its input or output another name",
            )
        if self.inputs and self.fed == self.inputs:
            raise Refused(
                Code.PIPELINE_WRONG,
                f"{self.name} reads only what it writes itself, so that nothing would ever come to it",
            )

    @cached_property
    def keys(self) -> Mapping[str, Key]:
        """The function from a value to its state key, per input topic."""
        return self.key if isinstance(self.key, Mapping) else dict.fromkeys(self.inputs, self.key)

    @property
    def ticks(self) -> str | None:
        """The topic of the ticks; None without a tick."""
        return f"{self.name}.ticks" if self.tick is not None else None

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Every topic that a task reads: the inputs and the tick topic."""
        return self.inputs if self.ticks is None else (*self.inputs, self.ticks)

    @property
    def written(self) -> set[str]:
        """Every topic that a task writes: outputs, its own topics, and the inputs, which take repartitioned records."""
        own = {self.changelog, *self.dead.values()} | ({self.order} if self.order is not None else set())
        return {*self.outputs, *self.inputs, *own}

    @property
    def fed(self) -> tuple[str, ...]:
        """The feedback topics: inputs that are also outputs. One key can send a record to another key, on any partition.
        The record commits in the transaction of the causing event, and is folded once like every input. No other producer may
        write to a feedback topic.
        """
        return tuple(topic for topic in self.inputs if topic in self.outputs)

    @property
    def changelog(self) -> str:
        """The compacted topic that holds state and progress."""
        return f"{self.name}.changelog"

    @property
    def decisions(self) -> str:
        """The topic of the replicas' decision log, for active-active replicas (see `core.decision`)."""
        return f"{self.name}.decisions"

    @property
    def order(self) -> str | None:
        """The topic with the recorded merge order of the topics read; None if the pipeline reads a single topic."""
        return f"{self.name}.order" if len(self.reads) > 1 else None

    @property
    def replays(self) -> str:
        """The topic that records which dead letters were replayed into their inputs."""
        return f"{self.name}.replays"

    @property
    def dead(self) -> dict[str, str]:
        """The dead-letter topic of each topic read."""
        return {topic: f"{topic}.dead" for topic in self.reads}
