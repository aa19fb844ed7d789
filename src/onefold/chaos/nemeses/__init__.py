"""Faults as data: injection, duration, healing, and bounds for the recovery.

A fault uses only a `Stack`, so the same table serves containers and every stack that can kill, pause and cut. Faults do not
check results; the verifier does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol


class Stack(Protocol):
    """Operations on a running stack. Services are named as in docker-compose.yml.

    If a service has several instances, a fault hits the oldest instance; of replicas, the publisher.
    """

    def kill(self, service: str) -> None:
        """Kill all processes of the service with SIGKILL. The stack starts the service again."""

    def leave_dead(self, service: str) -> None:
        """Kill with SIGKILL, without a restart before `revive`."""

    def revive(self, service: str) -> None:
        """Start the killed instance, and return when the service is healthy."""

    def restart(self, service: str) -> None:
        """Stop the service gracefully, and start the service again."""

    def pause(self, service: str) -> None:
        """Pause the service, which keeps its connections and does not answer."""

    def resume(self, service: str) -> None:
        """Resume the service."""

    def cut(self, service: str) -> None:
        """Drop all packets from and to the service, without notice to either side."""

    def mend(self, service: str) -> None:
        """Accept packets again."""

    def scale(self, service: str, instances: int) -> None:
        """Scale the service, and return when all instances are healthy."""

    def forget(self, service: str) -> None:
        """Delete all scratch files of a running service."""

    def instances(self, service: str) -> int:
        """Number of instances of the service."""


Act = Callable[[Stack], None]


def nothing(stack: Stack) -> None:
    """Leave the stack unchanged."""


@dataclass(frozen=True)
class Nemesis:
    """One fault.

    Attributes:
        name: name for the command line.
        description: the fault in one sentence.
        inject, heal: injection and healing. `heal` must work after an `inject` that failed half-way.
        processor_s, sink_s: longest accepted stall of a partition, in the processor and in the sink, from the injection on,
            or from the healing on if `held`.
        prepare: preparation of the stack, while load already runs.
        hold_s: seconds between injection and healing.
        held: whether work cannot continue before the healing.
        one_of: service of which one instance is hit, while the remaining instances run on; "" for other faults.
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
        """Return the same fault for a service with further replicas, which continue from the injection on, however long the
        fault lasts."""
        return replace(self, processor_s=processor_s, sink_s=sink_s, held=False)
