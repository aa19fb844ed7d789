"""Which record is to blame when replicas die or are refused, and that no other is."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs, to_builtins

from onefold.processor.core.decision import Proposal
from onefold.processor.core.decision_log import StatusRecord
from onefold.processor.core.errors import TooMuch
from onefold.processor.core.values import Event
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.runtime import batch_limit
from onefold.processor.runtime.batch_limit import TRIES_MAX, Quarantine
from onefold.processor.runtime.log_decider import PENDING_S
from onefold.processor.runtime.task import Task
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from tests.support.replicas import RUNNER, Killed, Replicas, update
from tests.support.tasks import log_decider


def test_a_record_that_kills_every_replica_is_set_aside() -> None:
    """After three crashes of one of them at it alone; nobody else's record is."""

    def deadly(state: Any, event: Event) -> Any:
        if event.value.sequence_id == 7:
            raise Killed("7")
        return RUNNER.handle(state, event)

    world = Replicas(replace(RUNNER, handle=deadly))
    for number in range(1, 20):
        world.driver.send("runner.updates", update(1, number))
    world.drain()

    ((_, value, headers),) = world.driver.records("runner.updates.dead")
    assert b'"sequence_id": 7' in (value or b"")
    assert headers["onefold-reason"] == b"the processor crashed 3 times at this record"
    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == [
        number for number in range(1, 20) if number != 7
    ]


def quarantined(crashes: int = 0) -> tuple[Replicas, Task]:
    """A replica that tries one record at a time, because earlier lives of it were killed: these with the first record alone."""
    world = Replicas(RUNNER, "a")
    for number in range(1, 6):
        world.driver.send("runner.updates", update(1, number))
    member = world.members["a"]
    for _ in range(3):
        member.kill()
        member.go_on()
    for _ in range(crashes):
        member.is_to_die("before_append", 1)
        while member.replica is not None:
            member.go_on()
        member.go_on()
    assert member.replica is not None
    while not (member.replica.progress.decided_in and member.replica.progress.decided_in.opened):
        member.replica.turn()
    assert member.replica.quarantine.level == 2
    assert world.killed["before_append"] == crashes
    return world, member.replica


@pytest.mark.parametrize("crashes", range(TRIES_MAX))
def test_proposals_that_come_to_nothing_are_no_crashes(crashes: int) -> None:
    """The broker does not answer for a while; the record that is tried alone has crashed the process less than three times."""
    world, replica = quarantined(crashes)
    log = log_decider(replica)._log
    assert isinstance(log, SimulatedDecisionLog)
    log.late = []
    for _ in range(4 * TRIES_MAX):
        replica.turn()
        world.now += PENDING_S + 1
    assert len(log.late) > TRIES_MAX
    assert replica.quarantine.tries == crashes + 1, "of this life, should it crash"
    log.late = None
    world.drain()

    assert world.driver.records("runner.updates.dead") == []
    assert len(world.driver.read("runner.messages")) == 5


def alone(count: int) -> tuple[Replicas, Task, SimulatedDecisionLog]:
    """One replica that has begun, and so many records for it."""
    world = Replicas(RUNNER, "a")
    world.drain()
    for number in range(1, count + 1):
        world.driver.send("runner.updates", update(1, number))
    replica = world.members["a"].replica
    assert replica is not None
    log = log_decider(replica)._log
    assert isinstance(log, SimulatedDecisionLog)
    return world, replica, log


def dead_and_written(world: Replicas) -> tuple[list[bytes], list[int]]:
    """The reasons of dead letters, and the sequence ids of messages."""
    dead = [headers["onefold-reason"] or b"" for _, _, headers in world.driver.records("runner.updates.dead")]
    return dead, [message["sequence_id"] for message in world.driver.read("runner.messages")]


def test_a_decision_has_what_was_waiting_and_the_next_one_what_has_come_meanwhile() -> None:
    """So it grows with the load."""
    world, replica, log = alone(1_000)
    log.late = []
    while not log.late:
        replica.turn()
    for number in range(1_001, 1_301):
        world.driver.send("runner.updates", update(1, number))
    before = replica.progress.transactions
    for _ in range(20):
        replica.turn()
    assert replica.progress.transactions == before, "the first one is under way"
    (proposed,), log.late = log.late, None
    log.append(proposed)
    for _ in range(20):
        replica.turn()
    assert replica.progress.offsets_next == {"runner.updates": 1_300}
    assert replica.progress.transactions == before + 2


def drained_though_refused(world: Replicas) -> None:
    """Nineteen updates are sent, and what its topic does not take is proposed until it is set aside."""
    for number in range(1, 20):
        world.driver.send("runner.updates", update(number, number))
    replicas = [member.replica for member in world.members.values() if member.replica is not None]
    for _ in range(100):
        for replica in replicas:
            with suppress(TooMuch):
                replica.turn()
    world.drain()


@pytest.mark.promise("refused-before-decided")
@pytest.mark.parametrize("raised", [False, True])
def test_what_its_topic_does_not_take_is_not_decided(raised: bool) -> None:
    """A publisher could never write it, and nothing after it. The record is set aside, unless somebody has raised the limit."""

    def wordy(state: Any, event: Event) -> Any:
        state, outputs = RUNNER.handle(state, event)
        words = "on and " * 100 if event.value.sequence_id == 7 else "fine"
        changed = [
            {**output[1], "current": words} if output[0] == "runner.tendency" else output[1] for output in outputs
        ]
        return state, [(output[0], fields) for output, fields in zip(outputs, changed, strict=True)]

    world = Replicas(replace(RUNNER, handle=wordy))
    world.log.bytes_max["runner.tendency"] = 400
    world.drain()
    if raised:
        world.log.bytes_max["runner.tendency"] = 2_000
    drained_though_refused(world)

    dead, messages = dead_and_written(world)
    if raised:
        assert (dead, messages) == ([], [*range(1, 20)])
    else:
        assert messages == [number for number in range(1, 20) if number != 7]
        (reason,) = dead
        assert b"runner.tendency takes records of 400 bytes, and one of 8" in reason


def test_a_state_that_the_changelog_does_not_take_is_seen_before_it_is_decided() -> None:
    """Not only what goes to other topics is measured."""

    def wordy(state: Any, event: Event) -> Any:
        state, outputs = RUNNER.handle(state, event)
        return (structs.replace(state, tendency="on and " * 100) if event.value.sequence_id == 7 else state), outputs

    world = Replicas(replace(RUNNER, handle=wordy))
    world.log.bytes_max[RUNNER.changelog] = 400
    world.drain()
    drained_though_refused(world)

    dead, messages = dead_and_written(world)
    assert messages == [number for number in range(1, 20) if number != 7]
    (reason,) = dead
    assert b"runner.changelog takes records of 400 bytes, and one of " in reason


@pytest.mark.parametrize("notes_too", [True, False], ids=["nothing is taken", "one record is not"])
def test_a_record_is_to_blame_only_when_the_cluster_takes_others(notes_too: bool) -> None:
    """A cluster that answers, and writes nothing for minutes, says of each proposal what it says of one that is too large."""
    world, replica, log = alone(5)
    tries: list[int] = []

    def is_refused(value: bytes) -> bool:
        proposal = MsgpackProposals().decode(value)
        if not isinstance(proposal, Proposal):
            return notes_too
        (part,) = proposal.inputs.values()
        if part.start <= 2 < part.end and b"runner.messages" in proposal.body.writes:
            tries.append(part.end - part.start)
            return True
        return notes_too

    for refuses in (is_refused, lambda value: False):
        log.refuses = refuses
        for _ in range(100):
            with suppress(TooMuch):
                replica.turn()
    world.drain()

    dead, messages = dead_and_written(world)
    if notes_too:
        assert (dead, messages, len(tries)) == ([], [1, 2, 3, 4, 5], 1)
    else:
        assert [b"could not be written, 3 times" in reason for reason in dead] == [True]
        assert messages == [1, 2, 4, 5]
        assert tries[-TRIES_MAX:] == [1] * TRIES_MAX


def test_an_attempt_that_was_too_large_is_no_crash() -> None:
    """Until the record is tried again another task may crash the process."""
    _, replica = quarantined()
    log = log_decider(replica)._log
    assert isinstance(log, SimulatedDecisionLog)
    log.refuses = lambda value: isinstance(MsgpackProposals().decode(value), Proposal)
    refused = 0
    for _ in range(10):
        try:
            replica.turn()
        except TooMuch:
            refused += 1
            ((topic, offset),) = replica.progress.offsets_next.items()
            assert (replica.quarantine.level, replica.quarantine.tries_of((topic, offset))) == (2, 0)
    assert refused > 0


def test_a_quarantine_that_an_earlier_life_wrote_late_is_not_read() -> None:
    """A replica knows by then how its last life ended."""
    world, replica, log = alone(0)
    body = {"quarantine": to_builtins(Quarantine(level=2, clean=False))}
    log.append(MsgpackProposals().encode_note(StatusRecord(0, "a", body, replica.progress.log_id)))
    replica.turn()
    for number in range(1, 6):
        world.driver.send("runner.updates", update(1, number))
    assert replica.turn() == 5, "and not one record alone"


def test_a_slow_handler_has_smaller_proposals() -> None:
    """Of so many records as it processes in time, which the wait for a decision alone does not say."""

    def slow(state: Any, event: Event) -> Any:
        world.now += 0.01
        return RUNNER.handle(state, event)

    world = Replicas(replace(RUNNER, handle=slow), "a")
    for number in range(1, 6_001):
        world.driver.send("runner.updates", update(1, number))
    world.drain()
    proposals = [MsgpackProposals().decode(value) for _, value in world.decision_log().read(0)]
    sizes = [sum(one.body.counts) for one in proposals if isinstance(one, Proposal)]
    assert sizes[:2] == [0, 5_000], "an opening, and what took 50 s"
    assert 690 < sizes[2] <= 700, "what takes 7 s"


def test_a_proposal_that_was_given_up_and_arrives_is_applied() -> None:
    """Nothing else was proposed meanwhile: the cluster was asked whether it takes anything."""
    world, replica, log = alone(3)
    log.late = []
    while not log.late:
        replica.turn()
    (value,), log.late = log.late, None
    log_decider(replica)._asking = True
    world.now += PENDING_S + 1
    replica.turn()
    log.append(value)
    assert replica.turn() == 3
    log_decider(replica)._asking = False
    world.drain()
    assert replica.store.snapshot() == world.driver.states()


def test_two_answers_to_one_attempt_count_once() -> None:
    """The note of an attempt and its proposal are two appends, which a cluster that is away refuses one after the other."""
    world, replica = quarantined()
    log, first = log_decider(replica)._log, replica.progress.offsets_next["runner.updates"]
    assert isinstance(log, SimulatedDecisionLog)
    attempts, away = 0, False

    def refuses(value: bytes) -> bool:
        nonlocal attempts, away
        record = MsgpackProposals().decode(value)
        if isinstance(record, StatusRecord):
            quarantine = record.body.get("quarantine", {})
            if attempts < TRIES_MAX - 1 and quarantine.get("tries") and quarantine["offset"] != first:
                away = True
            return away
        refused, away = away, False
        attempts += refused
        return refused

    log.refuses = refuses
    for _ in range(40):
        with suppress(TooMuch):
            replica.turn()
    world.drain()
    assert attempts == TRIES_MAX - 1
    assert dead_and_written(world) == ([], [1, 2, 3, 4, 5])


class Slow(SimulatedDecisionLog):
    """A decision log that gives nothing in the first read after an append."""

    waits = False

    def append(self, value: bytes) -> None:
        super().append(value)
        self.waits = True

    def read(self, timeout_s: float) -> Any:
        if self.waits:
            self.waits = False
            return []
        return super().read(timeout_s)


def test_a_replica_with_a_backlog_becomes_less_careful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each decision takes longer than it is waited for within a turn: there is always a proposal under way then."""
    monkeypatch.setattr(batch_limit, "WINDOW", (80_000, 300, 100))
    world = Replicas(RUNNER, "a")
    monkeypatch.setattr(world, "decision_log", lambda: Slow(world.log, RUNNER.decisions, 0))
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            sent += 1
            world.driver.send("runner.updates", update(1, sent))

    send(2_000)
    member = world.members["a"]
    for _ in range(2):
        member.kill()
        member.go_on()
    assert member.replica is not None
    assert member.replica.quarantine.level == 1
    for _ in range(100):
        send(150)  # more than a careful replica takes in a turn
        member.replica.turn()
        if member.replica.quarantine.level == 0:
            break
    assert member.replica.quarantine.level == 0
    assert member.replica.progress.offsets_next["runner.updates"] < 2_000, (
        "it is still behind what was there at its start"
    )
