"""Replicas whose states are on disk: killed at every step, gone on from where the decision log was, and never believed when that
is not what comes next.
"""

from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.decision_log import Note
from onefold.processor.core.errors import Corrupted, Damaged, Retriable
from onefold.processor.core.topology import PROGRESS_KEY
from onefold.processor.io.proposals import MsgpackProposals
from onefold.processor.runtime.batch_limit import Quarantine
from onefold.processor.runtime.publishing import LOOK_S, Publishing
from onefold.processor.runtime.replica import Replica
from onefold.processor.runtime.standing import read_on
from onefold.processor.runtime.store import CHECKPOINT, STATE, DiskStore
from tests.support.coded import raises
from tests.support.disk_driver import DiskDriver
from tests.support.replicas import (
    RUNNER,
    SMALL,
    Member,
    Replicas,
    elastic,
    killed_25_times,
    outcome,
    update,
    updates,
)
from tests.support.versions import other_rule

CAME_BACK, ANEW = "gone on from their checkpoint", "restored from the changelog"


def send(world: Replicas, *users: int, number: int = 1) -> None:
    for user in users:
        world.driver.send("runner.updates", update(user, number))
    world.drain()


def reopened(member: Member) -> Replica:
    """In another life."""
    member.kill()
    return opened(member)


def opened(member: Member) -> Replica:
    while member.replica is None:
        member.go_on()
    return member.replica


def why(replica: Replica) -> str:
    return replica.kept.why.partition(", ")[2]


def on_disk(users: int = 5) -> Replicas:
    world = Replicas(RUNNER, memory_bytes=0)
    send(world, *range(users))
    return world


@pytest.mark.parametrize("memory_bytes", [0, SMALL], ids=["disk", "outgrown"])
@pytest.mark.parametrize("seed", range(4))
def test_kills_change_nothing(seed: int, memory_bytes: int) -> None:
    """At each step of a replica, of a publisher and of what is on disk; also when the log forgets what the changelog has."""
    world = Replicas(RUNNER, "abc" if seed % 2 else "ab", memory_bytes=memory_bytes)
    world.young = 3 if seed > 1 else None
    sent = killed_25_times(world, seed, updates())

    assert outcome(world.driver) == elastic(sent)
    for member in world.members.values():
        assert member.replica is not None
        assert isinstance(member.replica.store, DiskStore)
        assert member.replica.store.snapshot() == world.driver.states()
        assert reopened(member).store.snapshot() == world.driver.states()


def test_what_the_changelog_has_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is why a start takes seconds. What was decided since is in the log, published or not."""
    world = on_disk(50)
    a, b = world.members.values()
    b.kill()
    world.driver.send("runner.updates", update(7, 2))
    for _ in range(20):
        a.go_on()
    published = RUNNER.changelog, world.log.identity(RUNNER.changelog, 0).end
    read: list[bytes] = []
    for member in (a, b):
        member.kill()
        replica = world.replica(member)
        restore = type(replica._changelog).restore

        def watched(self: Any, *, restore: Any = restore, **more: Any) -> Any:
            for key, value in restore(self, **more):
                read.append(key)
                yield key, value

        with monkeypatch.context() as patch:
            patch.setattr(type(replica._changelog), "last_progress", lambda self, stable: last_progress(world))
            patch.setattr(type(replica._changelog), "restore", watched)
            replica.open()
        assert why(replica) == CAME_BACK
        assert replica.progress.transactions > replica.published, "it is ahead of what is published, and knows it"
        assert len(replica.store.snapshot()) == 50
        replica._keeping.close()
    assert read == []
    assert published == (RUNNER.changelog, world.log.identity(RUNNER.changelog, 0).end)


def last_progress(world: Replicas) -> bytes | None:
    return [value for key, value, _ in world.driver.records(RUNNER.changelog) if key == PROGRESS_KEY][-1]


def test_a_power_cut_takes_it_back_to_an_earlier_decision() -> None:
    """From which the log goes on."""
    world = on_disk()
    member = world.members["a"]
    world.members["b"].kill()
    for number in range(2, 10):
        send_to(world, member, number)
    expected = opened(member).store.snapshot()
    member.kill()
    member.files.cut_power(writes=4)

    replica = opened(member)
    assert why(replica) == CAME_BACK
    assert replica.store.snapshot() == expected


def send_to(world: Replicas, member: Member, number: int) -> None:
    """Decided by that one, and published by nobody."""
    world.driver.send("runner.updates", update(1, number))
    for _ in range(20):
        member.go_on()


def test_what_is_from_before_the_task_was_taken_back_is_not_gone_on_from() -> None:
    """Kafka transactions have changed the states since, and the log knows nothing of that."""
    world = on_disk()
    for member in world.members.values():
        member.kill()
    world.driver.send("runner.updates", update(1, 2))
    world.driver.run()
    world.driver.stop()

    send(world, 1, number=3)
    assert (
        outcome(world.driver)["runner.messages"]
        == elastic([*(update(user, 1) for user in range(5)), update(1, 2), update(1, 3)])["runner.messages"]
    )
    for member in world.members.values():
        assert opened(member).store.snapshot() == world.driver.states()


def test_files_of_a_log_that_was_made_again_are_not_gone_on_from() -> None:
    """As after a reset; the changelog alone may be the same topic, where somebody has deleted the log."""
    world = on_disk()
    for member in world.members.values():
        member.kill()
    for topic in (*RUNNER.outputs, *RUNNER.dead.values(), RUNNER.changelog, RUNNER.decisions, "runner.updates"):
        world.log.create(topic, 1)

    send(world, 1)
    for member in world.members.values():
        assert opened(member).store.snapshot() == world.driver.states()
        assert set(world.driver.states()) == {"1"}


def test_who_was_away_until_its_decisions_were_deleted_begins_with_the_changelog() -> None:
    """They are in there."""
    world = on_disk()
    away, other = world.members.values()
    away.kill()
    world.young = 0
    for number in range(2, 6):
        send_to(world, other, number)
        for _ in range(5):
            other.publish()
    start = world.decision_log().identity().start

    replica = opened(away)
    assert start > 5
    assert why(replica) == ANEW
    assert replica.store.snapshot() == opened(other).store.snapshot()


@pytest.mark.parametrize(
    ("known", "other"),
    [
        (rb"\"offset\": ", rb"\"offset\": 9"),
        (rb"\"accepted\": 5", rb"\"accepted\": 6"),
        (rb"\"log_id\": \"", rb"\"log_id\": \"x"),
    ],
    ids=["decisions", "transactions", "log"],
)
def test_what_the_logs_do_not_have_is_not_believed(known: bytes, other: bytes) -> None:
    """Decisions, or a transaction, that were lost since, and a log that is another one by now."""
    world = on_disk()
    member = world.members["a"]
    checkpoint = dict(member.files.writes["runner/0"][-1])[CHECKPOINT]
    assert checkpoint is not None
    assert known in checkpoint
    member.files.writes["runner/0"].append([(STATE + b"999", b"{"), (CHECKPOINT, checkpoint.replace(known, other))])

    replica = reopened(member)
    assert why(replica) == ANEW
    assert replica.store.snapshot() == world.driver.states()


def test_a_log_that_lost_its_end_and_goes_on_is_noticed() -> None:
    """By what was decided last: the offset is there again, with another decision."""
    world = on_disk()
    a, b = world.members.values()
    b.kill()
    end = world.decision_log().identity().end
    for number in range(2, 6):
        send_to(world, a, number)
    a.kill()
    del world.log._topics[RUNNER.decisions].partitions[0][end:]
    for _ in range(60):
        b.go_on()
    send_to(world, b, 6)

    with raises(Corrupted, Code.DECISIONS_LOST):
        world.replica(a).open()
    a.files.kill()
    replica = opened(a)
    assert why(replica) == ANEW
    assert replica.store.snapshot() == opened(b).store.snapshot()


def test_a_decision_that_was_lost_and_made_again_is_another_one() -> None:
    """Of the same version, at a later offset, and published: that somebody has passed something over looks the same."""
    world = on_disk()
    a, b = world.members.values()
    b.kill()
    end = world.decision_log().identity().end
    send_to(world, a, 2)
    version = opened(a).progress.transactions
    a.kill()
    del world.log._topics[RUNNER.decisions].partitions[0][end:]
    for _ in range(3):
        world.decision_log().append(MsgpackProposals().encode_note(Note(0, "b", {})))
    b.topology = other_rule(RUNNER)
    while opened(b).progress.transactions < version:
        b.go_on()
    for _ in range(5):
        b.publish()
    b.kill()

    replica = opened(a)
    assert why(replica) == ANEW
    assert replica.store.snapshot() == world.driver.states()


def test_a_log_that_gives_nothing_of_what_it_holds_is_not_waited_for_for_ever() -> None:
    """As while its partition has no leader: whoever restores says that it waits, and begins anew."""
    world = on_disk()
    silent = world.decision_log()
    silent.seek(silent.identity().end)
    with raises(Retriable, Code.TOPIC_UNREADABLE):
        read_on(silent)


def test_who_fails_while_it_opens_leaves_what_the_life_before_had_said() -> None:
    """It was as careful as it was for a reason."""
    world = on_disk()
    member = world.members["a"]
    opened(member)._limit.quarantine = Quarantine().successor().successor()
    member.is_to_die("after_apply", 1)
    opened(member)._limit._ends = {"runner.updates": 1_000}
    world.driver.send("runner.updates", update(1, 2))
    while member.replica is not None:
        member.go_on()
    end = world.decision_log().identity().end

    fails = world.replica(member)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fails, "_catch_up", trouble)
        with pytest.raises(Retriable):
            fails.open()
    fails.retreat()
    assert world.decision_log().identity().end == end


def trouble() -> None:
    raise Retriable(Code.KAFKA_SILENT, "no leader")


def test_what_all_have_decided_and_nobody_published_is_published() -> None:
    """When all die and come back, and nothing more happens: no decision is taken over from then on."""
    world = on_disk()
    a, b = world.members.values()
    b.kill()
    send_to(world, a, 2)
    replica = reopened(a)
    assert why(replica) == CAME_BACK
    assert len(world.driver.read("runner.messages")) == 5
    life = Publishing(replica, lambda: world.publisher(a), clock=world.clock).life()
    for _ in range(30):
        world.now += next(life) + LOOK_S

    assert len(world.driver.read("runner.messages")) == 6


def test_how_careful_the_life_before_had_to_be_is_not_forgotten_with_what_it_decided() -> None:
    """Its notes are before that."""
    world = on_disk()
    member = world.members["a"]
    assert member.replica is not None
    careful = Quarantine().successor().successor()
    member.replica._limit.quarantine = careful
    member.replica._limit._ends = {"runner.updates": 1_000}  # the life before may have ended at any of them
    member.is_to_die("after_apply", 1)
    world.driver.send("runner.updates", update(1, 2))
    while member.replica is not None:
        member.go_on()

    assert opened(member).quarantine.level > careful.level > 0


def test_a_state_that_cannot_be_read_is_not_met_again() -> None:
    """Torn where it was not looked at before: the files go, and the next life begins with the changelog."""
    world = on_disk()
    member = world.members["a"]
    replica = reopened(member)
    assert isinstance(replica.store, DiskStore)

    def torn(key: bytes) -> bytes:
        raise Damaged(Code.STATES_DAMAGED, "a block is torn")

    replica.store._read = torn
    world.members["b"].kill()
    send_to(world, member, 2)

    assert why(opened(member)) == ANEW
    world.drain()
    assert opened(member).store.snapshot() == world.driver.states()


def test_who_has_the_files_may_change_with_the_mode(capsys: pytest.CaptureFixture[str]) -> None:
    """A replica goes on from what an elastic task had on disk; the other way round they are made anew."""
    driver = DiskDriver(RUNNER)
    for user in range(5):
        driver.send("runner.updates", update(user, 1))
    driver.run()
    driver.stop()
    driver.kill()
    world = Replicas(RUNNER, "a", driver=driver, memory_bytes=0)
    member = world.members["a"]
    member.files = driver.files
    assert why(opened(member)) == CAME_BACK
    send(world, 1, number=2)
    expected = opened(member).store.snapshot()
    member.kill()
    capsys.readouterr()

    assert driver.states() == expected
    assert "rebuilt from the changelog" in (said := capsys.readouterr().out)
    assert "the task had replicas" in said
