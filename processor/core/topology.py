"""What a pipeline declares: its inputs, its key, its state, its handler and its outputs. One literal an app."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onefold.processor.core.values import Event, Output

#: Key of the changelog record that says how far a task has come.
PROGRESS_KEY = b"p"

#: `(state or None, event) -> (state or None, outputs)`. What it returns is all that it does: no clock, no dice, no
#: I/O. None as state forgets the key. It may raise `Rejected` for an event that can never be processed.
Handler = Callable[[Any, Event], tuple[Any, Sequence[Output]]]

#: `(key, state before, state after) -> outputs`, of one transaction. As pure as a handler, but it may not reject: every
#: event that led here has been accepted.
Settle = Callable[[str, Any, Any], Sequence[Output]]


@dataclass(frozen=True)
class Topology:
    """One pipeline. Contracts are found by topic in `avro/`, so they are not named here.

    Attributes:
        name: the domain; also the application id, and the first word of its topics.
        inputs: topics read. They have the same number of partitions; partition p of all of them is task p.
        key: the state key of an input value, an int or text. All events of a key are folded one after the other.
        state: the class of the state: a dataclass, or a msgspec Struct, which is made in half of the time.
        handle: the handler.
        outputs: topics written. The value names the fields that identify a row where only the latest row matters
            (several of them in one transaction become one record), or is None where every record counts.
        settle: what a key's change as a whole says, called once a transaction for every key that changed. For outputs that
            tell differences, such as what to add to a sum: a key that changed ten times costs one record and not ten.
    """

    name: str
    inputs: tuple[str, ...]
    key: Callable[[Any], int | str]
    state: type
    handle: Handler
    outputs: Mapping[str, tuple[str, ...] | None]
    settle: Settle | None = None

    @property
    def changelog(self) -> str:
        """The compacted topic that holds state and progress."""
        return f"{self.name}.changelog"

    @property
    def order(self) -> str | None:
        """The topic that says in which order the records of several inputs were folded; None with a single one."""
        return f"{self.name}.order" if len(self.inputs) > 1 else None

    @property
    def dead(self) -> dict[str, str]:
        """Per input topic the topic of its dead letters."""
        return {topic: f"{topic}.dead" for topic in self.inputs}

    def transactional_id(self, partition: int) -> str:
        """Stable for a task: whoever takes the task over fences whoever had it, at once."""
        return f"onefold-{self.name}-{partition}"
