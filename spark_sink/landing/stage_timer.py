"""Measures the duration of each stage of a write, to locate the bottleneck of a slow sink."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onefold.telemetry import STAGE_S, Telemetry

# The stages by the step at the end of each stage. Reading has no step, because reading is not part of the transaction.
_ENDED_BY = {
    "sink.after_cas": "claim",
    "sink.after_copy": "copy",
    "sink.after_merge": "merge",
    "sink.after_commit": "commit",
}


class Stages:
    """Reports the stage durations of one pipeline. `clock`: monotonic seconds. One thread reads, another thread writes."""

    def __init__(self, telemetry: Telemetry, domain: str, clock: Callable[[], float]) -> None:
        self._telemetry = telemetry
        self._domain = domain
        self._clock = clock
        self._since = 0.0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Measure the block as the stage `read`, until the rows are on the driver."""
        since = self._clock()
        yield
        self._tell("read", since)

    def timed(self, step: Callable[[str], None]) -> Callable[[str], None]:
        """Return `step` extended by the report of the stage's duration. The time inside `step` belongs to no stage."""

        def told(name: str) -> None:
            if name in _ENDED_BY:
                self._tell(_ENDED_BY[name], self._since)
            step(name)
            self._since = self._clock()

        return told

    def _tell(self, stage: str, since: float) -> None:
        self._telemetry.add(STAGE_S, self._clock() - since, domain=self._domain, stage=stage)
