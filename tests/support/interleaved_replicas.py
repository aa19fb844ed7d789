"""Replica processes on the simulated log under a scheduler, which may switch or kill a process in the middle of a turn.

A process is the product's except at the ends: the real loop drives the real replica, and a separate actor runs the real
publisher. Switch points are the steps, and each read of or append to a log. At each switch point the process may be killed,
which stops both actors. An append may be delayed, arrive after the sender's end, or arrive twice.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.core.values import Record
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.runtime.changelog import TaskProgress
from onefold.processor.runtime.log_decider import LogDecider
from onefold.processor.runtime.loop import TaskLoop
from onefold.processor.runtime.publisher import Publisher
from onefold.processor.runtime.publishing import Publishing
from onefold.processor.runtime.retention import Retention
from onefold.processor.runtime.state_manager import AUTO, StateManager
from onefold.processor.runtime.takeover import TaskShares
from onefold.processor.runtime.task import Task
from onefold.processor.runtime.thread import LifeThread
from onefold.processor.testing import SimulatedSession, TopologyDriver
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from onefold.processor.testing.session import SimulatedInputs
from tests.support.scheduler import Scheduler
from tests.support.simulated_disk import SimulatedDisk, SimulatedFiles

# Per switch point, while kills remain; small, so that a process lives long enough to publish. Larger for a switch point without
# a kill so far, because some are reached only once in a process's life.
KILL_CHANCE, FIRST_KILL_CHANCE = 0.008, 0.1
# Share of delayed appends, and share of those that arrive twice.
LATE_CHANCE, TWICE_CHANCE = 0.2, 0.3
# Virtual seconds: maximum until the restart of a killed process, between two events, and until a delayed append arrives.
RESTART_S, EVENT_S, LATE_S = 0.5, 0.02, 0.1
# The shortest takeover timeout, so that short-lived processes become publishers.
TAKEOVER_S = 0.1
# Number of records at the end of the decision log that are too young for deletion.
YOUNG = 3


class Killed(GeneratorExit):
    """Raised in the actors of a killed process, as when the driver of a generator closes it."""


class Interleaved:
    """Task 0 of a pipeline with its replicas and its sender.

    Args:
        given: endless topics and values.
        kills: number of kills. The run ends when all have happened and all inputs are published.
        memory_bytes: memory limit of states before the state goes to disk; None: no limit.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        driver: TopologyDriver,
        names: str,
        given: Iterator[tuple[str, Any]],
        *,
        kills: int,
        deletes: bool = False,
        memory_bytes: int | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.driver = driver
        self.topology: Topology = driver.topology
        self.log = driver.log
        self.log.create(self.topology.decisions, 1)
        self.kills = kills
        self.deletes = deletes
        self.memory_bytes = memory_bytes
        self.under_way: list[bytes] = []
        #: Sent values, and number of kills by switch point.
        self.sent: list[Any] = []
        self.killed: Counter[str] = Counter()
        #: Running replica by name. At the end all run, and have caught up.
        self.running: dict[str, Task | None] = dict.fromkeys(names)
        self.over = False
        self.claims = 0  # of tasks that another replica has decided
        self.states_at_the_end: list[dict[str, Any]] = []
        scheduler.start("sender", partial(self._send, given))
        scheduler.start("network", self._deliver)
        for name in names:
            scheduler.start(name, partial(self._live, name))

    def _send(self, given: Iterator[tuple[str, Any]]) -> None:
        while self.killed.total() < self.kills:
            topic, value = next(given)
            self.driver.send(topic, value)
            self.sent.append(value)
            self.scheduler.pause(EVENT_S)
        self.scheduler.wait(self._is_at_the_end)
        self.states_at_the_end = [one.store.snapshot() for one in self.running.values() if one is not None]
        self.over = True

    def _is_at_the_end(self) -> bool:
        found = [value for key, value, _ in self.driver.records(self.topology.changelog) if key == PROGRESS_KEY]
        progress = TaskProgress.decode(found[-1]) if found and found[-1] else TaskProgress()
        return (
            not self.under_way
            and all(
                progress.offsets_next.get(topic) == self.log.identity(topic, 0).end for topic in self.topology.inputs
            )
            and all(
                one is not None and one.progress.transactions == progress.transactions for one in self.running.values()
            )
        )

    def _deliver(self) -> None:
        """Deliver delayed appends in any order."""
        dice = self.scheduler.dice
        while not self.over:
            self.scheduler.pause(LATE_S)
            if self.under_way:
                value = dice.choice(self.under_way)
                if dice.random() >= TWICE_CHANCE:
                    self.under_way.remove(value)
                self.log.append(self.topology.decisions, None, value, partition=0)

    def _live(self, name: str) -> None:
        files = SimulatedFiles()
        while not self.over:
            _Process(self, name, files).live()
            files.kill()
            self.scheduler.pause(RESTART_S * self.scheduler.dice.random())


class _Busy(TaskShares):
    """Shares of a process whose peers decide one more task each, so that a replica sometimes claims this task."""

    world: Interleaved

    def claim(self, task: int) -> bool:
        found = super().claim(task)
        self.world.claims += found
        return found

    def decided(self, task: int, author: str) -> None:
        super().decided(task, author)
        super().decided(task + 1, author)


class _Process:
    """One life of a replica process."""

    def __init__(self, world: Interleaved, name: str, files: SimulatedFiles) -> None:
        self.world = world
        self.name = name
        self._files = files
        self._dead = False

    def live(self) -> None:
        world = self.world
        loop = TaskLoop(0, self._replica, clock=world.scheduler.monotonic)
        try:
            for wait_s in loop.life():
                self.pause(wait_s)
                if world.over:
                    loop.stop()
        except Killed:
            world.running[self.name] = None
        if loop.failure is not None:
            raise loop.failure

    def at(self, label: str) -> None:
        """Switch point: other processes may run, or this one is killed."""
        self.world.scheduler.switch(label)
        self._go_on(label)

    def pause(self, duration_s: float) -> None:
        if duration_s:
            self.world.scheduler.pause(duration_s)
            self._go_on("pause")

    def _go_on(self, label: str) -> None:
        world = self.world
        chance = KILL_CHANCE if world.killed[label] else FIRST_KILL_CHANCE
        if not self._dead and world.killed.total() < world.kills and world.scheduler.dice.random() < chance:
            world.killed[label] += 1
            self._dead = True
        if self._dead:
            raise Killed(label)

    def _replica(self, beat: Callable[[], None]) -> Task:
        world = self.world
        clock = world.scheduler.monotonic
        proposals = MsgpackProposals()
        shares = _Busy(self.name, clock)
        shares.world = world
        timeout_s = TAKEOVER_S * (1 + world.scheduler.dice.random())

        def publisher() -> Publisher:
            retention = Retention(0 if world.deletes else None, step=self.at, clock=clock)
            return Publisher(world.topology, 0, self.name, _Session(self), _Log(self), proposals, self.at, retention)

        def thread(life: Callable[[], Iterator[float]], name: str) -> LifeThread:
            return _Beside(self, life)

        inputs = _Inputs(self)
        decider = LogDecider(
            world.topology,
            self.name,
            inputs,
            _Log(self),
            _Session(self),
            proposals,
            self.at,
            shares,
            lambda decider: Publishing(decider, publisher, timeout_s, clock=clock, thread=thread),
            clock=clock,
        )
        replica = Task(
            world.topology,
            inputs,
            world.driver.codec,
            decider,
            self.at,
            beat,
            check_every_s=0,
            keeping=self._keeping(beat),
            clock=clock,
        )
        world.running[self.name] = replica
        return replica

    def _keeping(self, beat: Callable[[], None]) -> StateManager | None:
        world = self.world
        if world.memory_bytes is None:
            return None
        disk = SimulatedDisk(self._files, "0")
        more: dict[str, Any] = {"memory_bytes": world.memory_bytes, "step": self.at, "beat": beat, "replicas": True}
        return StateManager(world.topology, world.driver.codec, 0, kind=AUTO, disk=disk, **more)


class _Beside(LifeThread):
    """The publisher's life in a separate actor."""

    def __init__(self, process: _Process, life: Callable[[], Iterator[float]]) -> None:
        super().__init__(life, process.name)
        self._process = process
        self._ended = False

    def start(self) -> None:
        self._process.world.scheduler.start(f"{self._process.name} publishes", self._drive)

    def wake(self) -> None:
        """Not needed: a pause of virtual seconds ends by itself."""

    def join(self, timeout_s: float) -> bool:
        self._process.world.scheduler.wait(lambda: self._ended)
        return True

    def _drive(self) -> None:
        try:
            for wait_s in self._life():
                self._process.pause(wait_s)
        except Killed:
            pass
        finally:
            self._ended = True


class _Log(SimulatedDecisionLog):
    def __init__(self, process: _Process) -> None:
        super().__init__(process.world.log, process.world.topology.decisions, 0)
        self.young = YOUNG
        self._process = process

    def append(self, value: bytes) -> None:
        self._process.at("append")
        world = self._process.world
        if world.scheduler.dice.random() < LATE_CHANCE:
            world.under_way.append(value)
        else:
            super().append(value)

    def read(self, timeout_s: float) -> Sequence[tuple[int, bytes | None]]:
        self._process.at("read")
        found = super().read(0)
        if found or not timeout_s:
            return found
        self._process.pause(timeout_s)
        return super().read(0)


class _Inputs(SimulatedInputs):
    def __init__(self, process: _Process) -> None:
        super().__init__(process.world.log, process.world.topology, 0)
        self._process = process

    def poll(self, count_max: int, timeout_s: float) -> Sequence[Record]:
        self._process.at("poll")
        found = super().poll(count_max, 0)
        if found or not timeout_s:
            return found
        self._process.pause(timeout_s)
        return super().poll(count_max, 0)

    def ask_topic_ids(self) -> Callable[[], Mapping[str, str]]:
        self._process.at("topic ids")
        return super().ask_topic_ids()


class _Session(SimulatedSession):
    def __init__(self, process: _Process) -> None:
        super().__init__(process.world.log, process.world.topology, 0)
        self._process = process

    def open(self) -> None:
        self._process.at("open")
        super().open()

    def restore(self, *, stable: bool = False, start: int | None = None) -> Iterator[tuple[bytes, bytes | None]]:
        self._process.at("restore")
        return super().restore(stable=stable, start=start)
