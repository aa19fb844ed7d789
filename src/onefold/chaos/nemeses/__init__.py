"""Faults as data: what is done to a stack, how long it lasts, how it is healed, and how soon work must go on.

A nemesis knows only the `Stack` that it is given: the same table drives containers today, and anything else that can kill,
pause and cut tomorrow. It breaks and it heals; whether the numbers are right afterwards is for others to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol


class Stack(Protocol):
    """What can be done to a running stack. Services are named as in docker-compose.yml; where a service has several
    instances, a fault hits the oldest of them, and of replicas the one that publishes.
    """

    def kill(self, service: str) -> None:
        """kill -9 of all that runs in it. The stack starts it again by itself."""

    def leave_dead(self, service: str) -> None:
        """kill -9, and nothing starts it again before `revive`."""

    def revive(self, service: str) -> None:
        """Start what was left dead; returns when it is healthy."""

    def restart(self, service: str) -> None:
        """Ask it to end, and start it again."""

    def pause(self, service: str) -> None:
        """Freeze it: it keeps its connections and answers nothing."""

    def resume(self, service: str) -> None:
        """Let it go on where it was."""

    def cut(self, service: str) -> None:
        """Drop all that it sends and all that is sent to it; no side is notified."""

    def mend(self, service: str) -> None:
        """Let packets pass again."""

    def scale(self, service: str, instances: int) -> None:
        """Have so many instances of it; returns when all of them are healthy."""

    def forget(self, service: str) -> None:
        """Delete the scratch files of a running service, all of them."""

    def instances(self, service: str) -> int:
        """How many of it there are."""


Act = Callable[[Stack], None]


def nothing(stack: Stack) -> None:
    """Leave the stack as it is."""


@dataclass(frozen=True)
class Nemesis:
    """One fault.

    Attributes:
        name: as a user writes it.
        description: what happens, in one sentence.
        inject, heal: what is done, and what undoes it. `heal` must work after an `inject` that failed half-way.
        processor_s, sink_s: the longest stall of a partition, in the processor and in the sink, that is in time.
            Counted from the injection where the stack has to help itself, from the healing where it is held.
        prepare: what must be so before, while load is already flowing.
        hold_s: the time between injection and healing.
        held: whether work cannot go on before the healing.
        one_of: the service of whose instances it hits one, and leaves the others as they are.
    """

    name: str
    description: str
    inject: Act
    heal: Act = nothing
    processor_s: float = 10.0
    sink_s: float = 10.0
    prepare: Act = nothing
    hold_s: float = 0.0
    held: bool = False
    one_of: str = ""

    def among_replicas(self, processor_s: float, sink_s: float) -> Nemesis:
        """The same where the others do all that the one did: they go on from the injection, however long it is held."""
        return replace(self, processor_s=processor_s, sink_s=sink_s, held=False)
