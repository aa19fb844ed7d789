"""What a model of a pipeline gives the judge: which rows there must be, and what else."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from onefold.proof.fed import Fields
from onefold.proof.objects import Store
from onefold.proof.record import Source
from onefold.proof.verdict import Check, Finding


class Model(Protocol):
    """What a domain's rows must be."""

    @property
    def rows(self) -> Mapping[str, Mapping[tuple[Any, ...], tuple[tuple[Any, ...], Source]]]:
        """`rows[table][key]`: the values by column, and the source that last changed them."""

    def key(self, value: dict[str, Any], source: Source, /) -> str:
        """The text of the state key of a well-formed value."""

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Take one value; False when it changes nothing. Raises `Inadmissible` when a rule forbids it."""

    def settle(self) -> None:
        """Bring `rows` up to date with all that was applied."""


class TickingModel(Model, Protocol):
    """What is right in a domain with ticks."""

    def tick(self, at_ms: int, source: Source) -> bool:
        """Take one tick, which is for the keys of its partition alone: those whose values had a source in it. False when it
        changes nothing. Raises `Inadmissible`, before it changes anything, when a rule forbids it.

        Args:
            at_ms: the time, in milliseconds since 1970. In one partition it only goes up.
            source: of the tick.
        """


class DeletingModel(Model, Protocol):
    """What is right in a domain whose tombstones are events."""

    def delete(self, key: str, source: Source) -> bool:
        """Take the tombstone of a state key. False when it changes nothing. Raises `Inadmissible` when a rule forbids it."""


class Feeding(Model, Protocol):
    """A model of a pipeline that feeds itself, or that has queues."""

    def feeds(self) -> Iterable[tuple[str, Fields]]:
        """What the value that was applied last makes the pipeline write into inputs of its own and into its queues: topic and
        all fields. It is asked for after values that changed something.
        """


class Making(Model, Protocol):
    """A model of a pipeline whose workers make objects in a store."""

    def unmade(self) -> str:
        """What was asked for and is not reported to be made, in one sentence; "" when all is."""

    def judge_made(self, store: Store) -> tuple[list[Check], list[Finding]]:
        """What was compared in the object store, and what is wrong there."""

    def follow_made(self, store: Store) -> Callable[[], Iterable[Finding]]:
        """What says, whenever it is asked, what is wrong with the objects that were reported since. An error of the store may
        come out of it; then it is asked again.
        """
