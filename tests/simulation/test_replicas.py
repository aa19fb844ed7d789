"""Hot-hot on the simulated log: the real replica loop and the real publisher, interleaved and killed by a seed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.decision import Proposal, ProposalKind
from onefold.processor.core.decision_log import StatusRecord
from onefold.processor.core.errors import Refused
from onefold.processor.core.topology import Tick
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.runtime.input_buffer import SKIP_MAX
from onefold.processor.testing import TopologyDriver
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from tests.support.coded import raises
from tests.support.decisions import status_note
from tests.support.replicas import (
    AVERAGES,
    RUNNER,
    Replicas,
    elastic,
    elastic_in_the_order_of,
    killed_25_times,
    numbers,
    outcome,
    update,
    updates,
    values,
)
from tests.support.tasks import log_decider
from tests.support.versions import longer, other_rule


def test_two_replicas_give_what_one_task_gives() -> None:
    """Outputs, states, dead letters, each once and in the same order."""
    world = Replicas(RUNNER)
    sent = values(60)
    for value in sent:
        world.driver.send("runner.updates", value)
        world.run(seed=len(str(value)), turns=2)
    world.drain()

    assert outcome(world.driver) == elastic(sent)


@pytest.mark.parametrize("seed", range(10))
def test_kills_at_each_step_change_nothing(seed: int) -> None:
    """Replicas and publishers die at each of their steps, in an order that the seed chooses, 25 times in each of these lives. A
    thousand kills, also within a turn: `test_replicas_interleaved.py`.
    """
    world = Replicas(RUNNER, "abc" if seed % 2 else "ab")
    sent = killed_25_times(world, seed, updates())

    assert outcome(world.driver) == elastic(sent)


@pytest.mark.parametrize("seed", range(8))
def test_kills_change_nothing_where_two_inputs_are_folded(seed: int) -> None:
    """In which order is for the replicas to decide; so it is theirs that a task without replicas is given."""
    world = Replicas(AVERAGES, "abc" if seed % 2 else "ab")
    killed_25_times(world, seed, numbers())

    expected = elastic_in_the_order_of(world.driver)
    assert outcome(world.driver) == expected
    assert len(expected["averages.averages"]) > 20


@pytest.mark.parametrize("seed", range(10))
def test_replicas_of_two_versions_never_diverge(seed: int) -> None:
    """Whoever decided a step, all have its bytes; a wrong replica may win, and every input is taken once."""
    world = Replicas(RUNNER, "ab", {"b": other_rule(RUNNER)})
    for number in range(1, 60):
        world.driver.send("runner.updates", update(number % 3, number))
        world.run(1000 * seed + number, 4)
        if number % 20 == 0:  # the one that wins has a pause
            pauses = world.members["ab"[number // 20 % 2]]
            others = [member for member in world.members.values() if member is not pauses]
            world.driver.send("runner.updates", update(7, number))
            for _ in range(40):
                others[0].go_on()
    world.drain()
    a, b = (member.replica for member in world.members.values())

    assert a is not None
    assert b is not None
    assert log_decider(a).score[0] > 0
    assert log_decider(b).score[0] > 0
    assert a.store.snapshot() == b.store.snapshot() == world.driver.states()
    assert sum(a.progress.counts) == 61
    meters = [message["distance_meters"] for message in world.driver.read("runner.messages")]
    assert len(meters) == 61
    assert set(meters) == {10, 100}


def test_what_comes_late_changes_nothing() -> None:
    """A replica hung with its proposal under way; others decided. It arrives twice."""
    world = Replicas(RUNNER)
    slow = world.members["a"]
    world.driver.send("runner.updates", update(1, 1))
    for _ in range(4):
        slow.go_on()
    late: list[bytes] = []
    assert slow.replica is not None
    decision_log = log_decider(slow.replica)._log
    assert isinstance(decision_log, SimulatedDecisionLog)
    decision_log.late = late
    world.driver.send("runner.updates", update(1, 2))
    while not late:
        slow.go_on()
    other = world.members["b"]
    for _ in range(50):
        other.go_on()
    decision_log.late = None
    for value in [*late, *late]:
        decision_log.append(value)
    world.driver.send("runner.updates", update(1, 3))
    world.drain()

    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == [1, 2, 3]
    assert slow.replica.store.snapshot() == world.driver.states()


@pytest.mark.promise("replicas-that-slept")
def test_a_replica_that_sleeps_through_a_reset_mixes_nothing() -> None:
    """When it wakes the new run, with another rule, is at the very version and offsets at which it fell asleep: what it would
    propose from its old states would be decided.
    """
    old = other_rule(RUNNER)
    world = Replicas(RUNNER, "ab", {"a": old, "b": old})
    asleep, other = world.members.values()
    sent = [update(1, 1), update(1, 2)]
    for value in sent:
        world.driver.send("runner.updates", value)
    world.drain()
    assert asleep.replica is not None
    fell_asleep_at = asleep.replica.progress.transactions
    started_over(world)
    other.kill()
    for member in world.members.values():
        member.topology = RUNNER
    while other.replica is None or other.replica.progress.transactions < fell_asleep_at:
        other.go_on()
    other.publish()
    other.publish()

    world.driver.send("runner.updates", update(1, 3))
    for _ in range(20):
        asleep.go_on()
    world.drain()
    assert outcome(world.driver) == elastic([*sent, update(1, 3)])
    assert asleep.replica.store.snapshot() == world.driver.states()


@pytest.mark.promise("nothing-under-way-counts")
def test_what_is_under_way_during_a_reset_changes_nothing() -> None:
    """It fits in the new log by its version and its offsets; what it says is what the old run would have done. And its publisher
    was far ahead.
    """
    old = other_rule(RUNNER)
    world = Replicas(RUNNER, "ab", {"a": old})
    frozen, other = world.members.values()
    world.drain()
    assert frozen.replica is not None
    decision_log = log_decider(frozen.replica)._log
    assert isinstance(decision_log, SimulatedDecisionLog)
    under_way: list[bytes] = []
    decision_log.late = under_way
    world.driver.send("runner.updates", update(1, 1))
    while not proposals(under_way):
        frozen.go_on()
    far_ahead = StatusRecord(0, "a", {"published": 1_000}, frozen.replica.progress.log_id)
    frozen.kill()
    other.kill()
    frozen.topology = RUNNER
    started_over(world)

    while not (opening := proposals([value for _, value in world.decision_log().read(0)])):
        other.go_on()
    assert [one.kind for one in opening] == [ProposalKind.OPEN]
    for value in [*under_way, MsgpackProposals().encode_note(far_ahead)]:
        world.decision_log().append(value)
    world.drain()
    assert outcome(world.driver) == elastic([update(1, 1)])
    assert log_decider(other.replica).published <= log_decider(other.replica).progress.transactions


def proposals(values: Sequence[bytes | None]) -> list[Proposal]:
    records = map(MsgpackProposals().decode, values)
    return [record for record in records if isinstance(record, Proposal)]


def started_over(world: Replicas) -> None:
    """As `onefold reset` does it."""
    for topic in (*RUNNER.outputs, *RUNNER.dead.values(), RUNNER.changelog, RUNNER.decisions):
        world.log.create(topic, 1)


def test_an_input_that_was_made_again_is_refused() -> None:
    """By a replica that runs, and by one that starts."""
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    world.log.create("runner.updates", 1)
    world.driver.send("runner.updates", update(1, 1))

    for member in world.members.values():
        with raises(Refused, Code.TOPIC_RECREATED):
            member.go_on()
        member.kill()
        with raises(Refused, Code.TOPIC_RECREATED):
            member.go_on()


def test_a_decision_log_that_lost_what_comes_next_is_refused() -> None:
    """What was decided cannot be known then; a person is asked."""
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    world.log.create(RUNNER.decisions, 1)
    for member in world.members.values():
        member.kill()
        with raises(Refused, Code.DECISIONS_LOST):
            member.go_on()


def test_a_replica_that_comes_back_after_the_task_was_taken_back_is_told_so() -> None:
    """It ends with a sentence, and the task that decides by Kafka transactions goes on."""
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    world.driver.send("runner.updates", update(1, 2))
    world.driver.run()

    with raises(Refused, Code.REPLICAS_CHANGED):
        world.members["a"].go_on()
    world.driver.send("runner.updates", update(1, 3))
    world.driver.run()
    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == [1, 2, 3]


@pytest.mark.promise("other-inputs-of-replicas")
def test_other_inputs_are_for_a_task_without_replicas_to_begin_with() -> None:
    """Also a tick is an input. Who proposed to read it would win alone: publisher, sink and judge would stand where they were."""
    ticking = replace(RUNNER, tick=Tick(every_s=1, handle=lambda key, state, tick: (state, ()), due=lambda state: None))
    world = Replicas(RUNNER)
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    assert ticking.order is not None
    for topic in {ticking.order, *ticking.reads, *ticking.dead.values()} - {*RUNNER.reads, *RUNNER.dead.values()}:
        world.log.create(topic, 1)
    later, earlier = Replicas(ticking, log=world.log), world.members["a"]
    with raises(Refused, Code.INPUTS_CHANGED, "runner.ticks"):
        later.members["a"].go_on()
    later.members["a"].kill()

    alone = TopologyDriver(ticking, log=world.log)
    alone.send("runner.updates", update(1, 2))
    alone.run()
    with raises(Refused, Code.REPLICAS_CHANGED):
        earlier.go_on()
    alone.stop()
    alone.send("runner.updates", update(1, 3))
    later.drain()
    assert [message["sequence_id"] for message in later.driver.read("runner.messages")] == [1, 2, 3]
    earlier.kill()
    with raises(Refused, Code.INPUTS_CHANGED, "runner.ticks"):
        earlier.go_on()


def test_what_an_earlier_life_proposed_is_not_our_own() -> None:
    """It has the same name, and the version that we propose for; what is decided is what it computed."""
    world = Replicas(RUNNER, "a")
    member = world.members["a"]
    world.driver.send("runner.updates", update(1, 1))
    world.drain()

    def proposed() -> bytes:
        """By a life that has read the second record, and whose append is long under way."""
        decision_log = log_decider(member.replica)._log
        assert isinstance(decision_log, SimulatedDecisionLog)
        decision_log.late = []
        while not decision_log.late:
            member.go_on()
        return decision_log.late[0]

    world.driver.send("runner.updates", update(1, 2))
    earlier = proposed()
    member.kill()
    member.topology = replace(RUNNER, handle=longer)
    member.go_on()
    own = proposed()
    assert own != earlier
    assert member.replica is not None
    world.decision_log().append(earlier)
    world.decision_log().append(own)
    world.drain()

    assert [message["distance_meters"] for message in world.driver.read("runner.messages")] == [10, 10]
    assert member.replica.store.snapshot() == world.driver.states()


def test_an_opening_of_an_earlier_time_opens_nothing() -> None:
    """It was under way when the task was taken back, and comes when it is about to be opened again."""
    world = Replicas(RUNNER, "a")
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    openings = [
        value
        for _, value in world.decision_log().read(0)
        if (record := MsgpackProposals().decode(value))
        and isinstance(record, Proposal)
        and record.kind is ProposalKind.OPEN
    ]
    world.members["a"].kill()
    world.driver.send("runner.updates", update(1, 2))
    world.driver.run()
    world.driver.stop()

    world.members["a"].go_on()
    replica = world.members["a"].replica
    assert replica is not None
    version = replica.progress.transactions
    world.decision_log().append(openings[0] or b"")
    world.driver.send("runner.updates", update(1, 3))
    world.drain()
    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == [1, 2, 3]
    assert replica.progress.counts.accepted == 3
    assert replica.progress.transactions > version, "a version that was given once is not given again"


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
def test_who_is_behind_does_not_need_the_inputs_that_others_have_decided(far: bool) -> None:
    """They are gone by retention when it wakes. And it does not propose again what it reads of them."""
    sent = SKIP_MAX + 30 if far else 30
    world = Replicas(RUNNER, "ab")
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    for number in range(2, sent):
        world.driver.send("runner.updates", update(1, number))
    for _ in range(60):
        world.members["a"].go_on()
    world.log.truncate("runner.updates", 0, sent - 10)
    world.driver.send("runner.updates", update(1, sent))
    for _ in range(60):
        world.members["b"].go_on()
    b = world.members["b"].replica
    world.drain()

    assert log_decider(b).score[0] > 0
    assert [message["sequence_id"] for message in world.driver.read("runner.messages")] == list(range(1, sent + 1))


@pytest.mark.parametrize(
    "body", [{"published": "x"}, {"published": None}, {"quarantine": 5}, {"quarantine": {"level": "x"}}, {"replica": 1}]
)
def test_a_note_that_says_nothing_is_passed_over(body: dict[str, Any]) -> None:
    """Whoever may write to the log may write such a thing, in anybody's name; it must not come again after each restart."""
    world = Replicas(RUNNER, "a")
    world.driver.send("runner.updates", update(1, 1))
    world.drain()
    world.decision_log().append(MsgpackProposals().encode_note(StatusRecord(0, "a", body)))
    world.driver.send("runner.updates", update(1, 2))
    world.drain()
    world.members["a"].kill()
    world.drain()

    assert len(world.driver.read("runner.messages")) == 2


def test_a_replica_notes_once_that_it_began_and_once_that_it_has_nothing_to_do() -> None:
    """A note is a record of the decision log that each replica reads."""
    world = Replicas(RUNNER, "a")
    for number in (1, 2):
        world.driver.send("runner.updates", update(1, number))
        world.drain()
        world.members["a"].kill()
    records = [MsgpackProposals().decode(entry.value) for _, entry in world.log.read(RUNNER.decisions, 0, 0)[0]]
    bodies = [record.body for record in records if isinstance(record, StatusRecord)]
    assert [body["quarantine"]["calm"] for body in bodies if "quarantine" in body] == [False, True] * 2


def test_the_replica_that_did_not_decide_last_leaves_the_next_decision_to_the_other() -> None:
    """Both compute it; two proposals of one version cost both of them."""
    world = Replicas(RUNNER)
    first, second = world.members.values()
    world.driver.send("runner.updates", update(1, 1))
    while first.replica is None or log_decider(first.replica).score[0] == 0:
        first.go_on()
    while second.replica is None or log_decider(second.replica).score[1] == 0:
        second.go_on()
    world.driver.send("runner.updates", update(1, 2))
    assert log_decider(second.replica).holds_off()
    assert not log_decider(first.replica).holds_off()


def test_notes_of_older_versions_change_nothing() -> None:
    """In an existing log, and in a rolling upgrade: status notes, also with a version far ahead, and tasks left by a note."""
    world = Replicas(RUNNER)
    sent = values(40)
    for value in sent:
        world.driver.send("runner.updates", value)
        for name in ("a", "c"):
            for body in (status_note(name, 10**9).body, {"left": {"version": len(sent), "to": "b"}}):
                world.decision_log().append(MsgpackProposals().encode_note(StatusRecord(0, name, body)))
        world.run(seed=len(str(value)), turns=2)
    world.drain()

    assert outcome(world.driver) == elastic(sent)
    for member in world.members.values():
        assert log_decider(member.replica).published <= log_decider(member.replica).progress.transactions
