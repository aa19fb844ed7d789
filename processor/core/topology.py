"""What a pipeline declares: its inputs, its key, its state, its handler and its outputs. One literal an app."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onefold.processor.core.errors import Refused
from onefold.processor.core.values import Event, Outputs

#: Key of the changelog record that says how far a task has come.
PROGRESS_KEY = b"p"

#: `(state or None, event) -> (state or None, outputs)`. What it returns is all that it does: no clock, no dice, no
#: I/O. None as state forgets the key. It may raise `Rejected` for an event that can never be processed.
Handler = Callable[[Any, Event], tuple[Any, Outputs]]

#: `(key, state before, state after) -> outputs`, of one transaction. As pure as a handler, but it may not reject: every
#: event that led here has been accepted.
EmitChange = Callable[[str, Any, Any], Outputs]

#: `(value) -> state key`, an int or text. It may raise `Rejected`.
Key = Callable[[Any], int | str]


@dataclass(frozen=True)
class Topology:
    """One pipeline. Contracts are found by topic in `avro/`, so they are not named here.

    **Which order is promised.** All events of a key come to the handler one after the other, and those from one partition of
    one topic in the order of their offsets. Nothing is promised between two topics, nor between a record that was sent to
    the partition of its key and one that was repartitioned there: a payment may come before its order, in each replay the other
    way round. A handler that joins topics keeps in its state what came first, whichever it is. What was committed once
    never changes: a crash repeats no event, and the order in which it was folded is written down in the topic `order`.

    Attributes:
        name: the domain; also the application id, and the first word of its topics.
        inputs: topics read. They have the same number of partitions; partition p of all of them is task p.
        key: the state key of an input value, an int or text; or, where inputs differ in how they name it, one such function
            a topic. Events of two topics with the same key share one state.
        state: the class of the state: a dataclass, or a msgspec Struct, which is made in half of the time.
        handle: the handler.
        outputs: topics written, each by one contract. The value names the fields that identify a row where only the latest
            row matters, or is None where every record counts. Of a row that is written several times in one transaction
            only the last becomes a record, also when they name different keys.
        emit_change: the outputs of a key's change as a whole, called once a transaction for every key that changed. For
            outputs that tell differences, such as what to add to a sum: a key that changed ten times costs one record and
            not ten.

    Raises:
        Refused: `key` has a function for some inputs and not for all of them.
    """

    name: str
    inputs: tuple[str, ...]
    key: Key | Mapping[str, Key]
    state: type
    handle: Handler
    outputs: Mapping[str, tuple[str, ...] | None]
    emit_change: EmitChange | None = None

    def __post_init__(self) -> None:
        if self.keys.keys() != set(self.inputs):
            raise Refused(f"{self.name} has keys for {', '.join(self.keys)}, and reads {', '.join(self.inputs)}")

    @cached_property
    def keys(self) -> Mapping[str, Key]:
        """Per input topic the function that says a value's state key."""
        return self.key if isinstance(self.key, Mapping) else dict.fromkeys(self.inputs, self.key)

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
        """The topic that says in which order the records of several inputs were folded; None with a single one."""
        return f"{self.name}.order" if len(self.inputs) > 1 else None

    @property
    def dead(self) -> dict[str, str]:
        """Per input topic the topic of its dead letters."""
        return {topic: f"{topic}.dead" for topic in self.inputs}
