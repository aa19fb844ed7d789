"""Replicas whose states are on disk: killed at every step, and rebuilt from the changelog at every start."""

import pytest

from onefold.error_codes import Code
from onefold.processor.core.errors import Damaged, Retriable
from onefold.processor.runtime.batch_limit import Quarantine
from onefold.processor.runtime.log_decider import read_on
from onefold.processor.runtime.publishing import LOOK_S, Publishing
from onefold.processor.runtime.state_store import CHECKPOINT, STATE, DiskStateStore
from onefold.processor.runtime.task import Task
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
from tests.support.tasks import log_decider

ANEW = "restored from the changelog"


def send(world: Replicas, *users: int, number: int = 1) -> None:
    for user in users:
        world.driver.send("runner.updates", update(user, number))
    world.drain()


def reopened(member: Member) -> Task:
    """In another life."""
    member.kill()
    return opened(member)


def opened(member: Member) -> Task:
    while member.replica is None:
        member.go_on()
    return member.replica


def why(replica: Task) -> str:
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
        assert isinstance(member.replica.store, DiskStateStore)
        assert member.replica.store.snapshot() == world.driver.states()
        assert reopened(member).store.snapshot() == world.driver.states()


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
        patch.setattr(fails.decider, "decisions", trouble)
        with pytest.raises(Retriable):
            fails.open()
    fails.close()
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
    assert len(world.driver.read("runner.messages")) == 5
    life = Publishing(log_decider(replica), lambda: world.publisher(a), clock=world.clock).life()
    for _ in range(30):
        world.now += next(life) + LOOK_S

    assert len(world.driver.read("runner.messages")) == 6


def test_a_state_that_cannot_be_read_is_not_met_again() -> None:
    """Torn where it was not looked at before: the files go, and the next life begins with the changelog."""
    world = on_disk()
    member = world.members["a"]
    replica = reopened(member)
    assert isinstance(replica.store, DiskStateStore)

    def torn(key: bytes) -> bytes:
        raise Damaged(Code.STATES_DAMAGED, "a block is torn")

    replica.store._read = torn
    world.members["b"].kill()
    send_to(world, member, 2)

    assert why(opened(member)) == ANEW
    world.drain()
    assert opened(member).store.snapshot() == world.driver.states()


def test_files_are_rebuilt_at_each_start(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those of an elastic task, which have a checkpoint; and an elastic task rebuilds those of a replica."""
    driver = DiskDriver(RUNNER)
    for user in range(5):
        driver.send("runner.updates", update(user, 1))
    driver.run()
    driver.stop()
    driver.kill()
    world = Replicas(RUNNER, "a", driver=driver, memory_bytes=0)
    member = world.members["a"]
    member.files = driver.files
    assert CHECKPOINT in on_files(member)
    for number in (2, 3):
        send(world, 1, number=number)
        assert why(reopened(member)) == ANEW
        assert CHECKPOINT not in on_files(member)
        member.files.writes["runner/0"].append([(STATE + b"999", b"{")])  # as if it had been ahead of the log
    expected = reopened(member).store.snapshot()
    assert "999" not in expected
    member.kill()
    capsys.readouterr()

    assert driver.states() == expected
    assert "they have no checkpoint" in capsys.readouterr().out


def on_files(member: Member) -> dict[bytes, bytes | None]:
    return {key: value for write in member.files.writes["runner/0"] for key, value in write}
