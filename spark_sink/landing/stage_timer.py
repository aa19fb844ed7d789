"""How long the stages of landing take, told to whoever listens: where a slow sink spends its time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onefold.telemetry import STAGE_S, Telemetry

# By the step that ends it. Reading has no step: it is no part of the transaction.
_ENDED_BY = {
    "sink.after_cas": "claim",
    "sink.after_copy": "copy",
    "sink.after_merge": "merge",
    "sink.after_commit": "commit",
}


class Stages:
    """Of one domain. `clock`: monotonic seconds. One thread reads, and one lands."""

    def __init__(self, telemetry: Telemetry, domain: str, clock: Callable[[], float]) -> None:
        self._telemetry = telemetry
        self._domain = domain
        self._clock = clock
        self._since = 0.0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is done inside is the stage `read`: until the rows are staged, or on the driver."""
        since = self._clock()
        yield
        self._tell("read", since)

    def timed(self, step: Callable[[str], None]) -> Callable[[str], None]:
        """`step`, which now also tells the stage that it ends. What `step` itself takes belongs to none."""

        def told(name: str) -> None:
            if name in _ENDED_BY:
                self._tell(_ENDED_BY[name], self._since)
            step(name)
            self._since = self._clock()

        return told

    def _tell(self, stage: str, since: float) -> None:
        self._telemetry.add(STAGE_S, self._clock() - since, domain=self._domain, stage=stage)
