"""The group on a real broker: who is given which tasks, and what it says of them."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from threading import Event
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions

from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured, Refused, Retriable
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import connect, create_topics, group_of
from onefold.processor.io.all_tasks import EveryTask
from onefold.processor.io.group_membership import Membership
from tests.support.coded import raises
from tests.support.proxy import HEARTBEAT, JOIN_GROUP, KafkaProxy
from tests.support.waiting import eventually

PARTITIONS = 6


@pytest.fixture
def topology(client: dict[str, str]) -> Topology:
    """Two inputs, whose order in the group would not be that of the topology."""
    name = f"group-{uuid.uuid4().hex[:8]}"
    made = Topology(name, (f"{name}.second", f"{name}.first"), str, object, lambda state, event: (state, ()), {})
    create_topics(made, PARTITIONS, client)
    admin = connect(client)
    eventually(lambda: set(made.inputs) <= admin.list_topics().topics.keys(), 20, "the broker knows the inputs")
    return made


class Member:
    """A member that notes what it was given, and what was taken away."""

    def __init__(self, topology: Topology, client: dict[str, str], name: str) -> None:
        self.has: set[int] = set()
        self.given: list[int] = []
        self.taken: list[int] = []
        self.said = ""
        self.rounds = 0
        self._input = topology.inputs[0]
        self.membership = Membership(topology, client, name, self._assigned, self._revoked, 2000)

    def _assigned(self, partitions: list[int]) -> None:
        assert not self.has & set(partitions)
        self.has |= set(partitions)
        self.given += partitions

    def _revoked(self, partitions: list[int]) -> None:
        self.has -= set(partitions)
        self.taken += partitions

    def stay(self, stop: Event) -> None:
        """Until told."""
        with closing(self.membership):
            while not stop.is_set():
                self.round()

    def round(self) -> None:
        """As the main thread of a processor has them: it polls, and publishes how far it is."""
        self.rounds += 1
        try:
            self.membership.poll(0.1)
        except Retriable as error:
            self.said = str(error)
        positions = {(self._input, partition): self.rounds for partition in self.has or range(PARTITIONS)}
        self.membership.publish(positions)


@contextmanager
def joined(member: Member) -> Iterator[Member]:
    """In the group, in a thread of its own."""
    stop = Event()
    with ThreadPoolExecutor(1) as thread:
        staying = thread.submit(member.stay, stop)
        try:
            yield member
        finally:
            stop.set()
            staying.result(20)


def test_who_joins_takes_a_share_and_nothing_else_moves(topology: Topology, client: dict[str, str]) -> None:
    """A task is one partition number of all inputs, in one hand; what stays is not mentioned again."""
    with ExitStack() as group:
        members = [group.enter_context(joined(Member(topology, client, "b")))]
        first = members[0]
        eventually(lambda: first.has == set(range(PARTITIONS)), 20, "the first has all")
        for name, share in (("c", 3), ("a", 2)):
            members.append(group.enter_context(joined(Member(topology, client, name))))
            eventually(lambda: [len(member.has) for member in members] == [share] * len(members), 20, "shared")  # noqa: B023

        assert sorted(partition for member in members for partition in member.has) == list(range(PARTITIONS))
        assert [len(member.given) for member in members] == [6, 3, 2], "nobody was given the same twice"
        assert [len(member.taken) for member in members] == [4, 1, 0], "and only what moved was taken"


def test_positions_of_all_inputs_are_published(topology: Topology, client: dict[str, str]) -> None:
    """For Kafka's own tools: of topics to which the group is not subscribed as well."""
    positions = {(topic, partition): 10 + partition for topic in topology.inputs for partition in range(PARTITIONS)}
    member = Member(topology, client, "a")
    admin, group = connect(client), ConsumerGroupTopicPartitions(group_of(topology))

    def published() -> dict[tuple[str, int], int]:
        found: Any = admin.list_consumer_group_offsets([group])[group.group_id].result(20)
        return {(at.topic, at.partition): at.offset for at in found.topic_partitions}

    def committed() -> bool:
        member.membership.poll(0.1)
        if member.has:  # before that it is nobody's group, and anybody may commit
            member.membership.publish(positions)
        return published() == positions

    with closing(member.membership):
        eventually(committed, 20, "all of them are there")


def test_a_processor_of_an_older_version_is_waited_for(topology: Topology, client: dict[str, str]) -> None:
    """It shares the tasks in another way; it goes on, the new one says why it waits, and begins when the old one ends."""
    eager = {"group.id": group_of(topology), "partition.assignment.strategy": "range", "session.timeout.ms": 6000}
    old = Consumer({**client, **eager, "log_level": 0})
    old.subscribe(list(topology.inputs))

    def has_all() -> bool:
        old.poll(0.1)
        return len(old.assignment()) == 2 * PARTITIONS

    with closing(old):
        eventually(has_all, 20, "the old one has all")
        new = Member(topology, client, "a")
        with joined(new):
            eventually(lambda: has_all() and "a processor of another version" in new.said, 20, "the new one says so")
            assert new.given == []
            old.close()
            eventually(lambda: new.has == set(range(PARTITIONS)), 20, "the new one begins")


@pytest.mark.promise("fenced-instances")
@pytest.mark.long  # 8 s
def test_a_member_without_its_id_commits_nothing(
    topology: Topology, kafka_proxy: KafkaProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its session is over for the client, and not for the group: so it is when a coordinator died. A commit would be fenced."""
    member = Member(topology, {"bootstrap.servers": kafka_proxy.bootstrap_servers}, "a")
    with closing(member.membership):
        stay_until(member, lambda: len(member.has) == PARTITIONS, "it has all")
        kafka_proxy.lose(JOIN_GROUP)
        kafka_proxy.lose_answers(HEARTBEAT)
        stay_until(member, lambda: not member.has, "the client gives up its session")
        since = member.rounds
        stay_until(member, lambda: member.rounds > since + 20, "it goes on")
        kafka_proxy.lose()
        kafka_proxy.lose_answers()
        stay_until(member, lambda: len(member.has) == PARTITIONS, "it has all again")
    assert "fenced" not in member.said
    assert "FATAL" not in capfd.readouterr().err


@pytest.mark.promise("fenced-instances")
def test_a_member_that_was_fenced_by_a_dead_one_joins_again(
    topology: Topology, client: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A namesake that ends within a session leaves the place to the first member."""
    member = Member(topology, client, "a")
    with closing(member.membership):
        stay_until(member, lambda: len(member.has) == PARTITIONS, "it has all")
        with closing(Member(topology, client, "a").membership):
            stay_until(member, lambda: "fenced" in member.said, "it is fenced")
        assert member.has == set(), "and has nothing then"
        stay_until(member, lambda: len(member.has) == PARTITIONS, "it has all again")
    assert "FATAL" not in capfd.readouterr().err, "and the client's own lines stay out of the log"


@pytest.mark.promise("fenced-instances")
def test_of_two_live_members_of_one_name_the_first_is_refused(topology: Topology, client: dict[str, str]) -> None:
    """With the name, and what to do. The second one is left alone."""
    first = Member(topology, client, "a")
    with closing(first.membership):
        stay_until(first, lambda: len(first.has) == PARTITIONS, "the first has all")
        with joined(Member(topology, client, "a")) as second:
            with raises(Refused, Code.INSTANCE_TAKEN, "'a'"):
                stay_until(first, lambda: False, "it is refused")
            eventually(lambda: len(second.has) == PARTITIONS, 20, "the second has all")
            assert second.said == ""


def ignored(partitions: list[int]) -> None:
    """Partitions that come and go."""


def test_a_session_that_the_brokers_do_not_allow_is_refused(topology: Topology, client: dict[str, str]) -> None:
    with closing(Membership(topology, client, "a", ignored, ignored, session_timeout_ms=500)) as membership:

        def polls() -> bool:
            membership.poll(0.1)
            return False

        with raises(Misconfigured, Code.SESSION_LIMIT, "0.5 s"):
            eventually(polls, 20, "it is refused")


@pytest.mark.promise("fenced-instances")
def test_the_presence_of_a_replica_is_refused_likewise(topology: Topology, client: dict[str, str]) -> None:
    """It would never be seen, and a reset would delete its topics."""
    with closing(EveryTask(topology, client, "a", 1, ignored, bool, session_timeout_ms=500)) as presence:

        def beats() -> bool:
            presence.poll(0.1)
            return False

        with raises(Misconfigured, Code.SESSION_LIMIT, "0.5 s"):
            eventually(beats, 20, "it is refused")


def stay_until(member: Member, holds: Callable[[], bool], why: str) -> None:
    """In this thread."""

    def looked() -> bool:
        member.round()
        return holds()

    eventually(looked, 20, why)
