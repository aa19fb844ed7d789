"""Who has which task, without a group: every instance has all of them. That is how replicas run."""

from collections.abc import Callable, Mapping


class EveryTask:
    """See `core.abc.Assignment`.

    Args:
        partitions: how many tasks there are.
        assigned: called once, from the first `poll`, with all partition numbers.
        wait: waits so many seconds, or less when there is something else to do.
    """

    def __init__(self, partitions: int, assigned: Callable[[list[int]], None], wait: Callable[[float], object]) -> None:
        self._partitions = partitions
        self._assigned = assigned
        self._wait = wait
        self.assigned_once = False

    def poll(self, timeout_s: float) -> None:
        """Nothing ever comes or goes."""
        if self.assigned_once:
            self._wait(timeout_s)
        else:
            self.assigned_once = True
            self._assigned(list(range(self._partitions)))

    def publish(self, offsets_next: Mapping[tuple[str, int], int]) -> None:
        """There is no group: Kafka's own tools show nothing of replicas."""

    def close(self) -> None:
        """There is no group to leave."""
