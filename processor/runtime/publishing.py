"""Publishing by a replica, when a decided version stays unpublished (see `publisher`)."""

from collections.abc import Callable, Iterator

import structlog

from onefold.processor.core.errors import Abortable, Corrupted, Fenced, Refused, Retriable
from onefold.processor.runtime.backoff import backoff_s
from onefold.processor.runtime.log_decider import LogDecider
from onefold.processor.runtime.publisher import Publisher
from onefold.processor.runtime.takeover import TakeoverTimeout
from onefold.processor.runtime.thread import LifeThread

log = structlog.get_logger()

# The shortest takeover timeout. Each replica adds a random part of up to the same length.
TAKEOVER_S = 0.3
# How long decisions gather for one transaction, because a transaction costs the broker much more than a proposal. Readers that
# need a decision sooner read the log.
GATHER_S = 0.02
# The interval of the checks for unpublished versions. After a publisher's crash, rows wait up to this time; a check costs
# little.
LOOK_S = 0.02
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.2, 5.0
# A publisher ends after the current transaction. The next publisher fences a publisher that hangs longer.
STOP_TIMEOUT_S = 5.0


class Publishing:
    """Runs the publisher of one replica in a thread, while the replica publishes (see `log_decider.Publishes`).

    Args:
        make: makes a publisher.
        timeout_s: the takeover timeout. Different for each replica, or all replicas take over at once.
        clock: monotonic seconds, of the replica's clock.
        thread: makes the thread.
    """

    def __init__(
        self,
        decider: LogDecider,
        make: Callable[[], Publisher],
        timeout_s: float = TAKEOVER_S,
        *,
        clock: Callable[[], float],
        thread: Callable[[Callable[[], Iterator[float]], str], LifeThread] = LifeThread,
    ) -> None:
        self._decider = decider
        self._make = make
        self._timeout_s = timeout_s
        self._timeout = TakeoverTimeout(timeout_s, clock)
        self._publisher: Publisher | None = None
        self._stopping = False
        self._failures = 0
        self.failure: BaseException | None = None
        self._thread = thread(self.life, f"publisher-{decider.partition}")
        self._started = False

    @property
    def publishes(self) -> bool:
        """Whether this replica publishes. A fenced publisher may not have read of the fence yet."""
        return self._publisher is not None

    def start(self) -> None:
        """Start the thread."""
        self._started = True
        self._thread.start()

    def stop(self) -> None:
        """End after the current transaction, and wait for the end."""
        self._stopping = True
        self._thread.wake()
        if self._started:
            self._thread.join(STOP_TIMEOUT_S)

    def life(self) -> Iterator[float]:
        """Publish until stopped. Yields the seconds to wait before the next step."""
        try:
            while not self._stopping:
                yield self._step()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again by `LogDecider.is_ready`
            self.failure = error
        self._leave()

    def _step(self) -> float:
        try:
            if self._publisher is None:
                if not self._timeout.is_over(self._decider.unpublished_since):
                    return LOOK_S
                self._publisher = self._make()
                self._publisher.open()
                log.info("publishes", partition=self._decider.partition, version=self._publisher.progress.transactions)
            before = self._publisher.written
            published = self._publisher.turn()
            self._decider.done.written.append(self._publisher.written - before)
        except Fenced:
            log.info("another replica publishes", partition=self._decider.partition)
            self._leave()
            self._timeout.fenced()
            return self._timeout_s  # time for the other replica to start
        except (Retriable, Abortable, Corrupted) as error:
            if not isinstance(error, Abortable):
                self._leave()
            self._failures += 1
            about = {"reason": str(error), "code": str(error.code)}
            log.warning("publishing starts over", partition=self._decider.partition, **about)
            return backoff_s(BACKOFF_FIRST_S, BACKOFF_MAX_S, self._failures)
        except Refused:
            self._leave()
            raise
        self._failures = 0
        if published:
            self._timeout.published()
        return GATHER_S if published else 0.0

    def _leave(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
