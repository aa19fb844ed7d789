"""Replicas of one task on the simulated log, stepped by hand or by a seed."""

import random
from collections.abc import Callable
from typing import Any

from onefold.processor.core.errors import Abortable, Corrupted, Fenced, ProcessorError
from onefold.processor.core.steps import REPLICA_STEPS
from onefold.processor.core.topology import Topology
from onefold.processor.io.proposals import AvroProposals
from onefold.processor.loading import topology_of
from onefold.processor.runtime.publisher import Publisher
from onefold.processor.runtime.replica import Replica
from onefold.processor.runtime.retention import Retention
from onefold.processor.testing import SimulatedSession, TopologyDriver
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from onefold.processor.testing.session import SimulatedInputs

RUNNER = topology_of("runner")


def update(user: int, number: int) -> dict[str, int]:
    """A value of runner.updates."""
    return {"user_id": user, "distance_meters": 10, "timestamp_utc": number, "sequence_id": number, "run_id": 1}


def outcome(driver: TopologyDriver) -> dict[str, Any]:
    """What anybody can see, in the order in which it came."""
    seen: dict[str, Any] = {
        topic: driver.table(topic) if rows else driver.read(topic) for topic, rows in RUNNER.outputs.items()
    }
    return seen | {"dead": driver.records("runner.updates.dead"), "states": driver.states()}


def elastic(sent: list[Any]) -> dict[str, Any]:
    driver = TopologyDriver(RUNNER)
    for value in sent:
        driver.send("runner.updates", value)
    driver.run()
    return outcome(driver)


def values(count: int) -> list[Any]:
    dice = random.Random(7)
    return [b"no event" if number % 17 == 0 else update(dice.randrange(5), number) for number in range(1, count)]


class Killed(BaseException):
    """The process ends here."""


class Member:
    """A replica process: its replica of task 0, and its publisher while it has one."""

    def __init__(self, world: "Replicas", name: str, topology: Topology) -> None:
        self.world = world
        self.name = name
        self.topology = topology
        self.replica: Replica | None = None
        self.publisher: Publisher | None = None
        self.dies_at: tuple[str, int] | None = None

    def step(self, name: str) -> None:
        if self.dies_at is None or self.dies_at[0] != name:
            return
        self.dies_at = (name, self.dies_at[1] - 1)
        if not self.dies_at[1]:
            self.dies_at = None
            raise Killed(name)

    def kill(self) -> None:
        self.replica = self.publisher = None

    def go_on(self) -> None:
        """One step of the replica: opened when it is not."""
        try:
            if self.replica is None:
                self.replica = self.world.replica(self)
                self.replica.open()
            else:
                self.replica.turn()
        except Killed:
            self.kill()
        except (Fenced, Abortable, Corrupted):
            self.replica = None

    def publish(self) -> None:
        """One step of the publisher: taken up when there is none."""
        try:
            if self.publisher is None:
                self.publisher = self.world.publisher(self)
                self.publisher.open()
            else:
                self.publisher.turn()
        except Killed:
            self.kill()
        except ProcessorError:
            self.publisher = None


class Replicas:
    """Task 0 of a pipeline, with some replicas of it over one simulated log."""

    def __init__(
        self,
        topology: Topology,
        names: str = "ab",
        versions: dict[str, Topology] | None = None,
        driver: TopologyDriver | None = None,
    ) -> None:
        self.topology = topology
        self.driver = driver or TopologyDriver(topology)
        self.log = self.driver.log
        self.log.create(topology.decisions, 1)
        self.now = 0.0
        #: So many records at the end of the decision log are too young to be deleted; None: none is ever deleted.
        self.young: int | None = None
        self.members = {name: Member(self, name, (versions or {}).get(name, topology)) for name in names}

    def clock(self) -> float:
        """Goes on a little with each look."""
        self.now += 0.001
        return self.now

    def decision_log(self) -> SimulatedDecisionLog:
        log = SimulatedDecisionLog(self.log, self.topology.decisions, 0)
        log.young = self.young or 0
        return log

    def replica(self, member: Member, **others: Any) -> Replica:
        return Replica(
            member.topology,
            member.name,
            SimulatedInputs(self.log, self.topology, 0),
            self.decision_log(),
            SimulatedSession(self.log, self.topology, 0),
            self.driver.codec,
            AvroProposals(),
            **{"step": member.step, "check_every_s": 0, "clock": self.clock, **others},
        )

    def publisher(self, member: Member, *, for_tables: bool = False) -> Publisher:
        session = SimulatedSession(self.log, self.topology, 0)
        kept_s = None if self.young is None else 0
        retention = Retention(kept_s, for_tables=for_tables, step=member.step, clock=self.clock)
        proposals = AvroProposals()
        log = self.decision_log()
        return Publisher(self.topology, 0, member.name, session, log, proposals, member.step, retention)

    def run(self, seed: int, turns: int, act: Callable[[random.Random], None] = lambda dice: None) -> None:
        """So many steps, of members chosen by the seed."""
        dice = random.Random(seed)
        for _ in range(turns):
            act(dice)
            member = dice.choice(list(self.members.values()))
            member.publish() if dice.random() < 0.25 else member.go_on()

    def drain(self) -> None:
        """Until everything is decided and published, with everybody alive."""
        for _ in range(10_000):
            before = self.log.identity(self.topology.decisions, 0).end
            for member in self.members.values():
                member.go_on()
            if self.settled() and before == self.log.identity(self.topology.decisions, 0).end:
                break
        else:
            raise AssertionError("the replicas come to no end")
        publisher = self.publisher(next(iter(self.members.values())))
        publisher.open()
        while publisher.turn():
            pass

    def settled(self) -> bool:
        replicas = [member.replica for member in self.members.values()]
        return (
            all(
                replica is not None
                and replica._pending is None
                and all(at >= self.log.identity(topic, 0).end for topic, at in replica.progress.offsets_next.items())
                for replica in replicas
            )
            and len({replica.progress.transactions for replica in replicas if replica}) == 1
        )


def killed_25_times(world: Replicas, seed: int) -> list[Any]:
    """Lives of a world, with kills at steps that the seed chooses; when all is drained, what was sent."""
    sent = values(80)
    unsent = list(sent)
    kills = 0

    def act(dice: random.Random) -> None:
        nonlocal kills
        if unsent and dice.random() < 0.2:
            world.driver.send("runner.updates", unsent.pop(0))
        if kills < 25 and dice.random() < 0.15:
            member = dice.choice(list(world.members.values()))
            member.dies_at = (dice.choice(REPLICA_STEPS), dice.randint(1, 3))
            kills += 1

    world.run(seed, 600, act)
    for value in unsent:
        world.driver.send("runner.updates", value)
    for member in world.members.values():
        member.dies_at = None
    world.drain()
    return sent
