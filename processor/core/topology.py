"""What a pipeline declares: its inputs, its key, its state, its handler, its outputs and its tick. One literal an app."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from onefold.error_codes import Code
from onefold.processor.core.errors import Refused
from onefold.processor.core.values import Event, Outputs

#: Key of the changelog record that says how far a task has come.
PROGRESS_KEY = b"p"

#: `(state or None, event) -> (state or None, outputs)`. What it returns is all that it does: no clock, no dice, no
#: I/O, and the state that it is given stays as it was: an event may be folded again from it. None as state forgets the key. It
#: may raise `Rejected` for an event that can never be processed.
Handler = Callable[[Any, Event], tuple[Any, Outputs]]

#: `(key, state before, state after) -> outputs`, of one transaction. As pure as a handler, but it may not reject: every
#: event that led here has been accepted.
EmitChange = Callable[[str, Any, Any], Outputs]

#: `(value) -> state key`, an int or text. It may raise `Rejected`.
Key = Callable[[Any], int | str]

#: `(key, state, at_ms) -> (state or None, outputs)`. As pure as a handler. When it raises `Rejected` for one key, the tick
#: is a dead letter and has changed no key.
OnTick = Callable[[str, Any, int], tuple[Any, Outputs]]

# A tick is a record and a transaction in each partition. What comes more often is no tick, and a day is the longest that
# somebody would wait for one to see whether it works.
_TICK_MIN_MS, _TICK_MAX_MS = 1_000, 86_400_000


#: What becomes of an input record with a null value.
Tombstones = Literal["reject", "ignore", "event"]
#: What becomes of the later events of a key one of whose events is a dead letter.
OnDeadLetter = Literal["pass", "park"]


@dataclass(frozen=True)
class Tick:
    """Time, as an input: a record every interval in each partition, which says what time it is, by the clock of the processor
    that wrote it. It is in the log like every other input, in the topic `<name>.ticks`, so that a replay and the verifier see
    the same time.

    A tick calls `handle` once for each key of its partition that has a state, in the order of the keys' texts. All that
    comes of it is in one transaction, and its outputs name the tick as their source.

    **What is promised.** The times of the ticks of a partition go up. They are multiples of the interval since 1970, and
    some may be left out: after a pause of an hour there is one, and not 3,600. A task that is started gets its first when
    it has processed all that was there before. But a tick says what time it was, and not that every record from before that
    time has come: a topic may be slow, and so may its sender.

    **What it costs.** With `due` a call of it for each key and tick; without it a call of `handle`. And a transaction for
    each tick, also when no key is due. With replicas what comes of it has to fit into one proposal of 20 MB: see docs/hot-hot.md.

    Attributes:
        every_s: the interval in seconds, from 1 to 86,400, in whole milliseconds.
        handle: `(key, state, at_ms) -> (state or None, outputs)`: the key as a text, its state, and the time in milliseconds
            since 1970. None as state forgets the key.
        due: `(state) -> at_ms or None`: the time from which on the key wants to be called; None: it does not, until its
            state is another one. Without it every key is called at every tick.

    Raises:
        Refused: the interval is none.
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
    """One pipeline. Contracts are found by topic in `avro/`, so they are not named here.

    **Which order is promised.** All events of a key come to the handler one after the other, and those from one partition of
    one topic in the order of their offsets. Nothing is promised between two topics, nor between a record that was sent to
    the partition of its key and one that was repartitioned there: a payment may come before its order, in each replay the other
    way round. A handler that joins topics keeps in its state what came first, whichever it is. What was committed once
    never changes: a crash repeats no event, and the recorded merge order of its inputs is in the topic `order`.

    Attributes:
        name: the pipeline; also the application id, and the first word of its topics.
        inputs: topics read. They have the same number of partitions; partition p of all of them is task p. An input may also
            be an output: the pipeline then feeds itself, and what it writes under a key comes to that key's state later, exactly
            once (see `fed`).
        key: the state key of an input value, an int or text; or, where inputs differ in how they name it, one such function
            a topic. Events of two topics with the same key share one state.
        state: the class of the state: a dataclass, or a msgspec Struct, which is made in half of the time.
        handle: the handler. It leaves the state that it is given as it is, and returns a new one.
        outputs: topics written, each by one schema. The value names the fields that identify a row where only the latest
            row matters, or is None where every record counts. Of a row that is written several times in one transaction
            only the last becomes a record, also when they name different keys.
        emit_change: the outputs of a key's change as a whole, called once a transaction for every key that changed. For
            outputs that tell differences, such as what to add to a sum: a key that changed ten times costs one record and
            not ten.
        tick: when the pipeline needs time, how often and for what.
        tombstones: what becomes of a tombstone: an input record with a null value, by which compacted topics and change data
            capture delete a key. "reject": it is a dead letter. "ignore": it is read, counted as ignored, and changes nothing.
            "event": `handle` gets an `Event` whose value is None and whose `key` says what is deleted. Its state key is
            the Kafka key as UTF-8 text, since there is no value to ask `key` of; a tombstone without such a key is a dead
            letter. An empty value is no tombstone.
        on_dead_letter: what becomes of the later events of a key after one of its events was rejected. "pass": the handler
            gets them. "park": they wait as dead letters, in order, until `onefold dead-letters` has replayed or dropped the
            rejected one. A record whose key is not known, as one that cannot be decoded, parks nothing.

    Raises:
        Refused: `key` has a function for some inputs and not for all of them, another topic has the name of the ticks',
            nobody else writes to any of the inputs, `tombstones` is none of the three, or `on_dead_letter` none of the two,
            or "park" where the pipeline feeds itself.
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
        """Per input topic the function that says a value's state key."""
        return self.key if isinstance(self.key, Mapping) else dict.fromkeys(self.inputs, self.key)

    @property
    def ticks(self) -> str | None:
        """The topic of the ticks; None without a tick."""
        return f"{self.name}.ticks" if self.tick is not None else None

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Every topic that a task reads: the inputs, and the ticks."""
        return self.inputs if self.ticks is None else (*self.inputs, self.ticks)

    @property
    def written(self) -> set[str]:
        """Every topic that a task writes to: outputs, inputs, for copies of records that belong elsewhere, and its own."""
        own = {self.changelog, *self.dead.values()} | ({self.order} if self.order is not None else set())
        return {*self.outputs, *self.inputs, *own}

    @property
    def fed(self) -> tuple[str, ...]:
        """The inputs that the pipeline itself writes: how one key sends something to another one, on whatever partition that is.
        The record is in the transaction of the event that causes it, and is folded once like every input. Nobody else may
        write to these topics.
        """
        return tuple(topic for topic in self.inputs if topic in self.outputs)

    @property
    def changelog(self) -> str:
        """The compacted topic that holds state and progress."""
        return f"{self.name}.changelog"

    @property
    def decisions(self) -> str:
        """The topic in which replicas decide, when the pipeline runs hot-hot (see `core.decision`)."""
        return f"{self.name}.decisions"

    @property
    def order(self) -> str | None:
        """The topic that says in which order the records of several topics were folded; None with a single one."""
        return f"{self.name}.order" if len(self.reads) > 1 else None

    @property
    def replays(self) -> str:
        """The topic that says which dead letters were put back into their inputs."""
        return f"{self.name}.replays"

    @property
    def dead(self) -> dict[str, str]:
        """Per topic that is read the topic of its dead letters."""
        return {topic: f"{topic}.dead" for topic in self.reads}
