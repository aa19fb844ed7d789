"""Processors on the simulated log, driven by a scheduler: what they commit is what simulated sinks land.

Each process tries the tasks of all partitions, as two do that both believe to be alone. A killed one does nothing more: not
even what a `finally` of its own code would do.
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
# Who was fenced tries again after that, as the pool has it; else two would fence each other for ever.
FENCED_PAUSE_S = 2.0


# The made-up table is keyed by the offset alone: each partition's are shown from another one on.
FROM = 10_000


class Killed(BaseException):
    """What a process meets that is killed."""


class _Session(SimulatedSession):
    """Of a process that may be dead: then nothing of what it still does reaches the log."""

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
    """Some processes of one pipeline. `output` is what a sink reads of it, under the name that the sink has for it."""

    def __init__(self, driver: TopologyDriver, scheduler: Scheduler, output: str, landed_as: str) -> None:
        self._driver = driver
        self._scheduler = scheduler
        self._output = output
        self._landed_as = landed_as
        self._folded: set[int] = set()
        self.kills = 0
        self.fenced = 0

    def start(self, names: Iterable[str]) -> None:
        """An actor for each process and partition."""
        for name in names:
            for partition in range(self._driver.partitions):
                self._scheduler.start(f"{name}/{partition}", self._life_of(partition))

    @property
    def finished(self) -> bool:
        """All inputs are folded."""
        return len(self._folded) == self._driver.partitions

    @property
    def reach(self) -> dict[Partition, Reach]:
        """What a reader of committed records may read."""
        log = self._driver.log
        return {
            (self._landed_as, partition): Reach(
                FROM * partition, FROM * partition + log.stable(self._output, partition)
            )
            for partition in range(self._driver.partitions)
        }

    def offsets(self, key: Partition) -> list[int]:
        """Those of committed records."""
        return [FROM * key[1] + offset for offset, _ in self._driver.log.read(self._output, key[1], 0)[0]]

    def _life_of(self, partition: int) -> Callable[[], None]:
        def live() -> None:
            while partition not in self._folded:
                self._run(partition)

        return live

    def _run(self, partition: int) -> None:
        """One life of the task in one process: until it is folded, fenced or killed."""
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
