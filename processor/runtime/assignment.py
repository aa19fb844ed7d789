"""Who has which task, without a group: every instance has all of them. That is how replicas run."""

from collections.abc import Callable, Mapping
from typing import Protocol


class Presence(Protocol):
    """By which others see that an instance lives. It decides nothing."""

    def beat(self) -> None:
        """It does; called every few seconds. Raises nothing."""

    def close(self) -> None:
        """It leaves."""


class EveryTask:
    """See `core.abc.Assignment`.

    Args:
        partitions: how many tasks there are.
        assigned: called once, from the first `poll`, with all partition numbers.
        wait: waits so many seconds, or less when there is something else to do.
        presence: by which others see that this instance lives.
    """

    def __init__(
        self,
        partitions: int,
        assigned: Callable[[list[int]], None],
        wait: Callable[[float], object],
        presence: Presence,
    ) -> None:
        self._partitions = partitions
        self._assigned = assigned
        self._wait = wait
        self._presence = presence
        self.assigned_once = False

    def poll(self, timeout_s: float) -> None:
        """Nothing ever comes or goes."""
        self._presence.beat()
        if self.assigned_once:
            self._wait(timeout_s)
        else:
            self.assigned_once = True
            self._assigned(list(range(self._partitions)))

    def publish(self, offsets_next: Mapping[tuple[str, int], int]) -> None:
        """There is no group: Kafka's own tools show nothing of replicas."""

    def close(self) -> None:
        """Nobody needs to look for it any more."""
        self._presence.close()
