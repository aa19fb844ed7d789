"""Replicas of one task on the simulated log, stepped by hand or by a seed."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import count, islice
from typing import Any

from onefold.processor.core.decision_log import Proposals
from onefold.processor.core.errors import Abortable, Corrupted, Fenced, ProcessorError
from onefold.processor.core.steps import DISK_STEPS, REPLICA_STEPS
from onefold.processor.core.topology import Topology
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.loading import topology_of
from onefold.processor.runtime.log_decider import LogDecider
from onefold.processor.runtime.publisher import Publisher
from onefold.processor.runtime.publishing import Publishing
from onefold.processor.runtime.retention import Retention
from onefold.processor.runtime.state_manager import AUTO, StateManager
from onefold.processor.runtime.task import Task
from onefold.processor.testing import SimulatedSession, TopologyDriver
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from onefold.processor.testing.log import SimulatedLog
from onefold.processor.testing.session import SimulatedInputs
from onefold.verify.expect import Expected
from onefold.verify.loading import workload
from onefold.verify.order import Order
from onefold.verify.outputs import judge_copies
from onefold.verify.record import ReadRecord
from onefold.verify.state import begin
from onefold.verify.verdict import Finding
from tests.support.simulated_disk import SimulatedDisk, SimulatedFiles
from tests.support.simulated_stage import JudgesLog

RUNNER, AVERAGES, BANK = topology_of("runner"), topology_of("averages"), topology_of("bank")
#: Number of kills in each run of `killed_25_times`.
KILLS = 25
RESTORED = "after_restore"
# Memory for one state of the runner, but not for two.
SMALL = 600


def update(user: int, number: int) -> dict[str, int]:
    """A value of runner.updates."""
    return {"user_id": user, "distance_meters": 10, "timestamp_utc": number, "sequence_id": number, "run_id": 1}


def outcome(driver: TopologyDriver) -> dict[str, Any]:
    """All observable output, in order."""
    topology = driver.topology
    seen: dict[str, Any] = {
        topic: driver.table(topic) if rows else driver.read(topic) for topic, rows in topology.outputs.items()
    }
    return seen | {topic: driver.records(topic) for topic in topology.dead.values()} | {"states": driver.states()}


def elastic(sent: list[Any]) -> dict[str, Any]:
    driver = TopologyDriver(RUNNER)
    for value in sent:
        driver.send("runner.updates", value)
    driver.run()
    return outcome(driver)


def elastic_in_the_order_of(driver: TopologyDriver) -> dict[str, Any]:
    """Outcome of a single task that processes the records of several inputs in the recorded merge order."""
    topology = driver.topology
    alone = TopologyDriver(topology)

    def take(record: ReadRecord) -> None:
        alone.log.append(record.topic, record.key, record.value, partition=0)
        alone.run()

    assert topology.order is not None
    order = Order(topology.inputs, take)
    for topic, hand_in in (*((topic, order.feed) for topic in topology.inputs), (topology.order, order.add)):
        for offset, entry in driver.log.read(topic, 0, 0)[0]:
            hand_in(ReadRecord(topic, 0, offset, entry.key, entry.value, list(entry.headers), entry.timestamp_ms))
    assert order.left_over() == ""
    return outcome(alone)


def updates() -> Iterator[tuple[str, Any]]:
    """Endless updates of the runner."""
    dice = random.Random(7)
    for number in count(1):
        yield "runner.updates", b"no event" if number % 17 == 0 else update(dice.randrange(5), number)


def values(number: int) -> list[Any]:
    return [value for _, value in islice(updates(), number - 1)]


def numbers() -> Iterator[tuple[str, Any]]:
    """Endless numbers for both inputs of averages. Some are late by a minute, so that the merge order matters."""
    dice = random.Random(7)
    for second in count(100):
        at_ms = 1_000 * (second - 60 * (dice.random() < 0.1))
        number = {"name": f"n{dice.randrange(3)}", "value": Decimal(dice.randrange(1_000)), "at_ms": at_ms}
        yield dice.choice(AVERAGES.inputs), b"no number" if second % 17 == 0 else number


def transfers() -> Iterator[tuple[str, Any]]:
    """Endless transfers of the bank between four accounts, one of which is closed later, so that payments to it fail."""
    dice = random.Random(7)
    for account in range(1, 5):
        yield "bank.accounts", {"account": account, "change": "open", "balance": Decimal("100.00")}
    for number in count(1):
        payer, payee = dice.sample(range(1, 6), 2)  # the fifth account does not exist
        if number == 40:
            yield "bank.accounts", {"account": 4, "change": "close", "balance": Decimal(0)}
        elif number % 17 == 0:
            yield "bank.transfers", b"no transfer"
        else:
            amount = Decimal(dice.randrange(1, 4_000)).scaleb(-2)
            yield "bank.transfers", {"payer": payer, "transfer": number, "payee": payee, "amount": amount}


def judged(driver: TopologyDriver) -> tuple[Expected, list[Finding]]:
    """Expected records of task 0 by the verification model, and the mismatches."""
    topology, work = driver.topology, workload(driver.topology.name)
    assert topology.order is not None
    topics = [*work.reads, *work.outputs, *work.queues, topology.changelog]
    state = begin(work, JudgesLog(driver.log, topics), None, {})
    oracle, outputs, order = state.oracle, state.outputs, state.order
    assert order is not None
    hand_in: dict[str, Callable[[ReadRecord], object]] = dict.fromkeys(outputs.records, outputs.feed)
    hand_in |= dict.fromkeys(work.reads, order.feed) | {topology.order: order.add}
    for topic, take in hand_in.items():
        for offset, entry in driver.log.read(topic, 0, 0)[0]:
            take(ReadRecord(topic, 0, offset, entry.key, entry.value, list(entry.headers), entry.timestamp_ms))
    assert order.left_over() == ""
    expected = oracle.settled()
    findings = [*outputs.judge(expected), *judge_copies(expected), *expected.fed.findings()]
    return expected, [*findings, *state.matching.findings, *state.matching.left()]


class Killed(BaseException):
    """Raised where the process ends."""


class Member:
    """A replica process: its replica of task 0, and at times its publisher."""

    def __init__(self, world: "Replicas", name: str, topology: Topology) -> None:
        self.world = world
        self.name = name
        self.topology = topology
        self.replica: Task | None = None
        self.publisher: Publisher | None = None
        self.proposals: Proposals = MsgpackProposals()
        self.dies_at: tuple[str, int] | None = None
        #: Disk of the replica's machine, for state on disk.
        self.files = SimulatedFiles()

    def step(self, name: str) -> None:
        if self.dies_at is None or self.dies_at[0] != name:
            return
        self.dies_at = (name, self.dies_at[1] - 1)
        if not self.dies_at[1]:
            self.dies_at = None
            self.world.killed[name] += 1
            raise Killed(name)

    def is_to_die(self, step: str, times: int) -> None:
        """Kill at the n-th hit of a step.

        A replica restores once in a life, and rebuilds files on disk only if they are corrupted. For such steps, first end
        the present life.
        """
        self.dies_at = (step, times)
        if step == RESTORED or step in DISK_STEPS:
            self.kill()
        if step in DISK_STEPS:
            self.files.torn |= set(self.files.writes)

    def kill(self) -> None:
        self.end()
        self.publisher = None

    def end(self) -> None:
        """End the replica without a shutdown. The disk files are closed, as at the end of a process."""
        if self.replica is not None:
            self.replica._keeping.close()
        self.replica = None

    def go_on(self) -> None:
        """Run one step of the replica, which is opened first if necessary."""
        try:
            if self.replica is None:
                self.replica = self.world.replica(self)
                self.replica.open()
            else:
                self.replica.turn()
        except Killed:
            self.kill()
        except (Fenced, Abortable, Corrupted):
            self.end()

    def publish(self) -> None:
        """Run one step of the publisher, which is created first if necessary."""
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
    """Task 0 of a pipeline with several replicas over one simulated log."""

    def __init__(
        self,
        topology: Topology,
        names: str = "ab",
        versions: dict[str, Topology] | None = None,
        driver: TopologyDriver | None = None,
        memory_bytes: int | None = None,
        log: SimulatedLog | None = None,
    ) -> None:
        """`memory_bytes`: memory limit of states before they go to disk; None: no limit. `log`: a log with all topics; None: a
        new log."""
        self.topology = topology
        self.memory_bytes = memory_bytes
        self.driver = driver or TopologyDriver(topology, log=log)
        self.log = self.driver.log
        if log is None:
            self.log.create(topology.decisions, 1)
        self.now = 0.0
        #: Number of records at the end of the decision log that are too young for deletion; None: no deletion.
        self.young: int | None = None
        #: Number of kills at each step, because a planned kill may never happen.
        self.killed: Counter[str] = Counter()
        self.members = {name: Member(self, name, (versions or {}).get(name, topology)) for name in names}

    def clock(self) -> float:
        """Advance a little with each call."""
        self.now += 0.001
        return self.now

    def decision_log(self) -> SimulatedDecisionLog:
        log = SimulatedDecisionLog(self.log, self.topology.decisions, 0)
        log.young = self.young or 0
        return log

    def replica(
        self,
        member: Member,
        beat: Callable[[], None] = lambda: None,
        step: Callable[[str], None] | None = None,
        publishing: Callable[[LogDecider], Publishing] | None = None,
    ) -> Task:
        inputs = SimulatedInputs(self.log, self.topology, 0)
        decider = LogDecider(
            member.topology,
            member.name,
            inputs,
            self.decision_log(),
            SimulatedSession(self.log, self.topology, 0),
            member.proposals,
            step or member.step,
            publishing=publishing,
            clock=self.clock,
        )
        return Task(
            member.topology,
            inputs,
            self.driver.codec,
            decider,
            step or member.step,
            beat,
            check_every_s=0,
            keeping=self.keeping(member),
            clock=self.clock,
        )

    def keeping(self, member: Member) -> StateManager | None:
        if self.memory_bytes is None:
            return None
        disk = SimulatedDisk(member.files, f"{self.topology.name}/0")
        more: dict[str, Any] = {"step": member.step, "memory_bytes": self.memory_bytes, "replicas": True}
        return StateManager(member.topology, self.driver.codec, 0, kind=AUTO, disk=disk, **more)

    def publisher(self, member: Member) -> Publisher:
        session = SimulatedSession(self.log, self.topology, 0)
        kept_s = None if self.young is None else 0
        retention = Retention(kept_s, step=member.step, clock=self.clock)
        log = self.decision_log()
        return Publisher(self.topology, 0, member.name, session, log, member.proposals, member.step, retention)

    def run(self, seed: int, turns: int, act: Callable[[random.Random], None] = lambda dice: None) -> None:
        """Run `turns` steps of members chosen by the seed."""
        dice = random.Random(seed)
        for _ in range(turns):
            act(dice)
            member = dice.choice(list(self.members.values()))
            member.publish() if dice.random() < 0.25 else member.go_on()

    def drain(self) -> None:
        """Run until everything is decided and published, with all members alive."""
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
                and not replica.decider.pending
                and all(at >= self.log.identity(topic, 0).end for topic, at in replica.progress.offsets_next.items())
                for replica in replicas
            )
            and len({replica.progress.transactions for replica in replicas if replica}) == 1
        )


def killed_25_times(world: Replicas, seed: int, given: Iterator[tuple[str, Any]]) -> list[Any]:
    """Run with 25 kills, spread over the steps, then drain. Returns the sent values.

    Args:
        given: endless topics and values, because at most steps a member is killed only while there is work.
    """
    sent = []
    members = list(world.members.values())
    # Without retention no replica reaches the steps of deletion.
    steps = [step for step in REPLICA_STEPS if world.young is not None or not step.endswith("_delete")]
    # Replicas have no checkpoints of files.
    steps += [step for step in DISK_STEPS if world.memory_bytes is not None and not step.endswith("_checkpoint")]
    plan = [steps[number % len(steps)] for number in range(KILLS)]
    to_come = list(plan)
    random.Random(seed).shuffle(to_come)

    def act(dice: random.Random) -> None:
        if dice.random() < 0.2:
            topic, value = next(given)
            world.driver.send(topic, value)
            sent.append(value)
        member = dice.choice(members)
        if to_come and member.dies_at is None and dice.random() < 0.3:
            step = to_come.pop()
            member.is_to_die(step, 1 if step in (RESTORED, *DISK_STEPS) else dice.randint(1, 3))

    for part in range(30):
        world.run(1000 * seed + part, 100, act)
        if world.killed.total() == KILLS:
            break
        # A replica that leaves all decisions to its peers does not reach the steps of a proposal, so rotate the planned kills.
        waiting = [member.dies_at for member in members]
        for member, dies_at in zip(members, waiting[1:] + waiting[:1], strict=True):
            member.dies_at = None
            if dies_at:
                member.is_to_die(*dies_at)
    assert world.killed == Counter(plan), "a kill that does not happen proves nothing"
    world.drain()
    return sent
