"""Processors on the simulated log under a scheduler, whose committed records the simulated sinks write.

Each process runs the tasks of all partitions, like two processes that both assume to be alone. A killed process does
nothing more, not even its own `finally` code.
"""

from collections.abc import Callable, Iterable
from typing import Any

from onefold.processor.core.abc import Write
from onefold.processor.runtime.loop import TaskLoop
from onefold.processor.runtime.task import Task
from onefold.processor.testing import SimulatedSession, TopologyDriver
from onefold.spark_sink.landing.ledger import Partition
from onefold.spark_sink.landing.protocols import Reach
from tests.support.scheduler import Scheduler
from tests.support.tasks import elastic_task

KILL_CHANCE = 0.02
# Pause of a fenced process, as in the product, because otherwise two processes would fence each other endlessly.
FENCED_PAUSE_S = 2.0


# The invented table's key is the offset alone, so each partition is shown with different offsets.
FROM = 10_000


class Killed(BaseException):
    """Raised in a killed process."""


class _Session(SimulatedSession):
    """A session of a process that may be dead; writes of a dead process do not reach the log."""

    dead = False

    def produce(self, writes: Iterable[Write]) -> None:
        if not self.dead:
            super().produce(writes)

    def commit(self) -> None:
        if not self.dead:
            super().commit()

    def abort(self) -> None:
        if not self.dead:
            super().abort()

    def close(self) -> None:
        if not self.dead:
            super().close()


class Processors:
    """Processes of one pipeline. `output`: the topic for the sink; `landed_as`: the sink's name of that topic."""

    def __init__(self, driver: TopologyDriver, scheduler: Scheduler, output: str, landed_as: str) -> None:
        self._driver = driver
        self._scheduler = scheduler
        self._output = output
        self._landed_as = landed_as
        self._folded: set[int] = set()
        self.kills = 0
        self.fenced = 0

    def start(self, names: Iterable[str]) -> None:
        """Start an actor for each process and partition."""
        for name in names:
            for partition in range(self._driver.partitions):
                self._scheduler.start(f"{name}/{partition}", self._life_of(partition))

    @property
    def finished(self) -> bool:
        """Whether all inputs are processed."""
        return len(self._folded) == self._driver.partitions

    @property
    def reach(self) -> dict[Partition, Reach]:
        """Range readable as committed."""
        log = self._driver.log
        return {
            (self._landed_as, partition): Reach(
                FROM * partition, FROM * partition + log.stable(self._output, partition)
            )
            for partition in range(self._driver.partitions)
        }

    def offsets(self, key: Partition) -> list[int]:
        """Offsets of committed records."""
        return [FROM * key[1] + offset for offset, _ in self._driver.log.read(self._output, key[1], 0)[0]]

    def _life_of(self, partition: int) -> Callable[[], None]:
        def live() -> None:
            while partition not in self._folded:
                self._run(partition)

        return live

    def _run(self, partition: int) -> None:
        """Run one life of the task in one process, until completed, fenced or killed."""
        driver, scheduler = self._driver, self._scheduler
        session = _Session(driver.log, driver.topology, partition)

        def step(name: str) -> None:
            scheduler.switch(name)
            if scheduler.dice.random() < KILL_CHANCE:
                self.kills += 1
                session.dead = True
                raise Killed(name)

        def make(beat: Any) -> Task:
            return elastic_task(
                driver.topology, session, driver.codec, step, beat, check_every_s=0, clock=scheduler.monotonic
            )

        loop = TaskLoop(partition, make, clock=scheduler.monotonic)
        for wait_s in loop.life():
            scheduler.pause(wait_s)
            if self._is_folded(loop, partition):
                self._folded.add(partition)
                loop.stop()
        if loop.fenced:
            self.fenced += 1
            scheduler.pause(FENCED_PAUSE_S * (1 + scheduler.dice.random()))

    def _is_folded(self, loop: TaskLoop, partition: int) -> bool:
        (topic,) = self._driver.topology.inputs
        return loop.offsets_next.get(topic, 0) >= self._driver.log.identity(topic, partition).end
