"""Replicas as real processes on a real broker: killed, frozen, and judged by what they leave in Kafka."""

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.config.settings import Settings
from onefold.exit_codes import REFUSED
from onefold.operate import pipelines
from onefold.operate.replicas import ReplicasNow, replicas_of_all
from onefold.processor.core.steps import REPLICA_STEPS
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.io.admin import connect, existing, identity, lag
from onefold.processor.runtime.changelog import DecidedIn, Progress
from onefold.stack.embedded import Infrastructure
from onefold.workloads import campaigns, runner, trades
from tests.support.decided_history import (
    Author,
    decided_and_published,
    published_states,
    total_and_sum_of_steps,
    winners,
)
from tests.support.needs import first_of
from tests.support.processes import drained, instance, judge, opened, produce, send
from tests.support.waiting import eventually

MakeDomain = Callable[..., Topology]
# A million by hand, for docs/performance.md: AWAY_DECISIONS=1000000 pytest -s --timeout 0 -k away_for_long
AWAY_DECISIONS = int(os.environ.get("AWAY_DECISIONS", "5_000"))
# As many as a producer takes without a pause.
PRODUCED_AT_ONCE = 50_000
# Deciding them, one by one and alone, and taking them over: by far the slowest machine that was seen.
A_SECOND = 500
# A process that is frozen for longer than its watchdog's patience ends when it wakes; here it is to go on.
FROZEN_S = 60 + 2 * AWAY_DECISIONS / A_SECOND
# Longer than any wait for the end of the work: whoever goes on by then has not waited until the group missed somebody.
LONG_SESSION_MS = 200_000
# A killed replica stays in its group for the session. A reset waits for such members, and the tests of resets reset the runner.
UNRESET = "campaigns"
WORKLOADS = {"runner": runner, "campaigns": campaigns, "trades": trades}


def wave(domain: str, seed: int, count: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(made.key, made.value) for made in WORKLOADS[domain].generate(seed, count)]


@pytest.mark.parametrize("domain", first_of(WORKLOADS))
def test_two_replicas_leave_what_one_task_leaves(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path, domain: str
) -> None:
    """From nothing, both at once; one is killed at every step in turn while the other goes on. What the changelog has is deleted
    meanwhile. The steps that one of two does not come to, because the other publishes, it comes to while that one is frozen.
    """
    topology = fresh_domain(domain)
    options: dict[str, Any] = {"replicas": 2, "decisions_kept_s": 0}
    seeds = itertools.count(1_000)

    def dies(b: "subprocess.Popen[bytes]") -> bool:
        if b.poll() is None:
            produce(client, topology.inputs[0], wave(domain, next(seeds), 20))
        return b.poll() is not None

    def is_over(b: "subprocess.Popen[bytes]") -> bool:
        return b.poll() is not None or lag(topology, client) == 0

    with instance(topology, client, tmp_path / "a", name="a", **options) as a:
        for number, step in enumerate(REPLICA_STEPS):
            produce(client, topology.inputs[0], wave(domain, number, 200))
            with instance(topology, client, tmp_path / "b", name="b", failpoint=f"{step}:2", **options) as b:
                produce(client, topology.inputs[0], wave(domain, 100 + number, 200))
                eventually(partial(is_over, b), 30, "it is killed, or all is drained")
                if b.poll() is None:
                    a.send_signal(signal.SIGSTOP)
                    eventually(partial(dies, b), 60, f"it comes to {step}")
                    a.send_signal(signal.SIGCONT)
                assert b.wait(0) == -signal.SIGKILL, step
                drained(topology, client)
    expected = judge(topology, client)

    assert expected.counts.accepted > 100


@pytest.mark.parametrize("domain", first_of(("sheets", "campaigns", "bank")))
def test_any_pipeline_has_replicas(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path, domain: str
) -> None:
    """With queues, or fed by itself: by the setting alone, and one is killed. Ticks have a test of their own."""
    topology = fresh_domain(domain)
    made = iter(list(pipelines.workload(domain).generate(5, 900)))
    with instance(topology, client, tmp_path / "a", name="a", replicas=2):
        with instance(topology, client, tmp_path / "b", name="b", replicas=2) as b:
            for name in "ab":
                eventually(partial(has_opened, tmp_path / name), 30, f"{name} has its tasks")
            send(client, list(itertools.islice(made, 600)))
            b.kill()
        send(client, list(made))
        drained(topology, client, 60)
    assert judge(topology, client).counts.accepted > 300


@pytest.mark.parametrize("replicas", [2, 1], ids=["replicas", "taken back"])
def test_a_log_that_tasks_shared_is_refused(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path, replicas: int
) -> None:
    """An earlier version has made it, with two partitions for four tasks, and the changelog says that it has the tasks. A topic
    with a partition for each task is used.
    """
    topology = fresh_domain("runner", 4)
    admin = connect(client)
    admin.create_topics([NewTopic(topology.decisions, 2, 1)])[topology.decisions].result(30)
    eventually(lambda: existing(admin).get(topology.decisions) == 2, 30, "it is there")
    inputs = {topology.inputs[0]: identity(admin, topology.inputs[0], 0).topic_id}
    log_id = identity(admin, topology.decisions, 0).topic_id
    progress = Progress(inputs, dict.fromkeys(inputs, 0), transactions=1, decided_in=DecidedIn(log_id, 0, opened=True))
    produce(client, topology.changelog, [(PROGRESS_KEY, progress.encode(4))], partition=0)
    with instance(topology, client, tmp_path / "a", name="a", replicas=replicas) as refused:
        assert refused.wait(60) == REFUSED
    said = (tmp_path / "a").read_text(encoding="utf-8")
    assert "runner.decisions has 2 partitions, and each of the 4 tasks of runner needs one of its own" in said
    assert "onefold reset runner" in said


@pytest.mark.promise("replicas-in-time")
def test_a_frozen_replica_wakes_and_changes_nothing(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """The others go on while it is frozen, and whatever it had under way is decided once, or not at all."""
    topology = fresh_domain(UNRESET)
    options: dict[str, Any] = {"replicas": 2, "session_timeout_ms": LONG_SESSION_MS}
    with ExitStack() as stack:
        a = stack.enter_context(instance(topology, client, tmp_path / "a", name="a", **options))
        b = stack.enter_context(instance(topology, client, tmp_path / "b", name="b", **options))
        for number, frozen in enumerate((a, b, a, b)):
            produce(client, topology.inputs[0], wave(UNRESET, number, 300))
            frozen.send_signal(signal.SIGSTOP)
            produce(client, topology.inputs[0], wave(UNRESET, 50 + number, 300))
            drained(topology, client)
            frozen.send_signal(signal.SIGCONT)
        produce(client, topology.inputs[0], wave(UNRESET, 99, 300))
        drained(topology, client)
    judge(topology, client)


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.matrix)])
def test_kills(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path, kills: int) -> None:
    """At any moment of its life; the other one has opened its tasks by then, and goes on."""
    topology = fresh_domain("runner")
    lives = itertools.count()
    with ExitStack() as stack:

        def start(name: str) -> tuple["subprocess.Popen[bytes]", Path]:
            log = tmp_path / f"{name}{next(lives)}"
            options: dict[str, Any] = {"replicas": 2, "publishes_after_s": 0.1}
            return stack.enter_context(instance(topology, client, log, name=name, **options)), log

        running = {name: start(name) for name in "ab"}
        for kill in range(kills):
            killed, other = ("a", "b") if kill % 2 else ("b", "a")
            eventually(partial(has_opened, running[other][1]), 30, f"{other} has its tasks")
            # More or less work, so that the kill falls into another moment each time.
            produce(client, topology.inputs[0], wave("runner", kill, 1 + 37 * kill % 400))
            running[killed][0].kill()
            running[killed][0].wait(10)
            running[killed] = start(killed)
        drained(topology, client, 60)
    judge(topology, client)


@pytest.mark.promise("replicas-in-time")
def test_nobody_waits_until_the_group_misses_a_killed_replica(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """Elastic, that is what tasks wait for. The one that decides most is killed: the other one had lost to it."""
    topology = fresh_domain(UNRESET)
    options: dict[str, Any] = {"replicas": 2, "publishes_after_s": 0.1, "session_timeout_ms": LONG_SESSION_MS}
    running: dict[str, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        for name in "ab":
            running[name] = stack.enter_context(instance(topology, client, tmp_path / name, name=name, **options))
            eventually(partial(has_opened, tmp_path / name), 60, f"{name} has its tasks")
        produce(client, topology.inputs[0], wave(UNRESET, 1, 300))
        drained(topology, client)
        ((decides, _),) = winners(topology, client).most_common(1)
        running[decides[-1]].kill()
        running[decides[-1]].wait(10)
        produce(client, topology.inputs[0], wave(UNRESET, 2, 300))
        drained(topology, client, 60)
    judge(topology, client)


def has_opened(log: Path) -> bool:
    """Whether the instance has opened both tasks."""
    return len(opened(log)) == 2


def test_a_restart_of_the_broker_costs_nothing(
    fresh_domain: MakeDomain, client: dict[str, str], infrastructure: Infrastructure, tmp_path: Path
) -> None:
    """It is killed under both replicas, with decisions and a transaction under way, and they go on when it is there again."""
    topology = fresh_domain("runner")
    options: dict[str, Any] = {"replicas": 2, "publishes_after_s": 0.1, "decisions_kept_s": 0}
    with ExitStack() as stack:
        running = [
            stack.enter_context(instance(topology, client, tmp_path / name, name=name, **options)) for name in "ab"
        ]
        for number in range(2):
            for name in "ab":
                eventually(partial(has_opened, tmp_path / name), 60, f"{name} has its tasks")
            produce(client, topology.inputs[0], wave("runner", number, 500))
            infrastructure.kafka.kill()
            infrastructure.kafka.start()
            infrastructure.kafka.wait_ready()
            produce(client, topology.inputs[0], wave("runner", 50 + number, 500))
            drained(topology, client, 120)
        assert [process.poll() for process in running] == [None, None]
    judge(topology, client)


def test_a_wrong_replica_may_win_and_never_diverges(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """Two versions of the program side by side, of which one has another rule. Whichever decided a step, all have its bytes.

    None leaves a decision to the other: both compute each of them.
    """
    topology = fresh_domain("runner")
    rules: dict[str, dict[str, Any]] = {"right": {}, "wrong": {"version": "other_rule"}}
    with ExitStack() as stack:
        right, wrong = (
            stack.enter_context(
                instance(topology, client, tmp_path / name, name=name, replicas=2, backoff_max_s=0, **rule)
            )
            for name, rule in rules.items()
        )
        for name in rules:
            eventually(partial(has_opened, tmp_path / name), 30, f"{name} has its tasks")
        for number, frozen in enumerate((right, wrong) * 2):
            frozen.send_signal(signal.SIGSTOP)
            produce(client, topology.inputs[0], wave("runner", number, 200))
            drained(topology, client)
            frozen.send_signal(signal.SIGCONT)
            produce(client, topology.inputs[0], wave("runner", 50 + number, 200))
            drained(topology, client)
    assert {name[-5:] for name in winners(topology, client)} == rules.keys()
    what_was_decided_is_whole(topology, client)
    # And both versions go on from the same states.
    states = published_states(topology, client)
    for name, rule in rules.items():
        with instance(topology, client, tmp_path / f"new {name}", name="new", replicas=2, **rule):
            eventually(partial(has_opened, tmp_path / f"new {name}"), 30, "it has its tasks")
        assert published_states(topology, client) == states


def test_an_upgrade_beside_the_old_version(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path) -> None:
    """A version with another rule starts beside the old one, which is stopped while events come, and goes on from what was
    decided: it has the tasks already, and opens none for that.
    """
    topology = fresh_domain("runner")
    seeds = itertools.count()

    def decided_by(name: str) -> bool:
        produce(client, topology.inputs[0], wave("runner", next(seeds), 50))
        return any(proposer.endswith(name) for proposer in winners(topology, client))

    with ExitStack() as stack:
        old = stack.enter_context(instance(topology, client, tmp_path / "old", name="old", replicas=2))
        eventually(partial(has_opened, tmp_path / "old"), 30, "the old version has its tasks")
        eventually(partial(decided_by, "old"), 30, "it decides")
        stack.enter_context(instance(topology, client, tmp_path / "new", name="new", replicas=2, version="other_rule"))
        eventually(partial(has_opened, tmp_path / "new"), 30, "the new one has its tasks")
        assert old.poll() is None
        produce(client, topology.inputs[0], wave("runner", next(seeds), 300))
        old.send_signal(signal.SIGTERM)
        produce(client, topology.inputs[0], wave("runner", next(seeds), 300))
        assert old.wait(60) == 0
        before = winners(topology, client)
        produce(client, topology.inputs[0], wave("runner", next(seeds), 300))
        drained(topology, client)
        assert opened(tmp_path / "new") == {0: 1, 1: 1}
    after = winners(topology, client)
    assert {name[-3:] for name, won in (after - before).items() if won} == {"new"}
    what_was_decided_is_whole(topology, client)


def what_was_decided_is_whole(topology: Topology, client: dict[str, str]) -> None:
    """By whichever rule, which no judge can know: it is published, and goes on from what all had decided before."""
    for topic in topology.outputs:
        decided, published = decided_and_published(topology, client, topic)
        assert decided
        assert published == decided
    totals, steps = total_and_sum_of_steps(client)
    assert totals == steps


def test_a_replica_that_was_away_for_long_is_level_again(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """Meanwhile each record was a decision of its own. It says how long that took, where somebody looks."""
    topology = fresh_domain("runner", partitions=1)
    with instance(topology, client, tmp_path / "away", name="away", replicas=2, watchdog_s=FROZEN_S) as away:
        eventually(lambda: opened(tmp_path / "away")[0], 30, "it has the task")
        away.send_signal(signal.SIGSTOP)
        sent = wave("runner", 1, AWAY_DECISIONS)
        for start in range(0, len(sent), PRODUCED_AT_ONCE):
            produce(client, topology.inputs[0], sent[start : start + PRODUCED_AT_ONCE])
        author = Author(topology, client)
        author.open()
        author.decide(AWAY_DECISIONS)
        author.close()
        began = time.monotonic()
        away.send_signal(signal.SIGCONT)
        drained(topology, client, 60 + AWAY_DECISIONS / A_SECOND)
        took_s = time.monotonic() - began
        print(f"{AWAY_DECISIONS:,} decisions, taken over and published after {took_s:.1f} s")  # noqa: T201 - asked for
        produce(client, topology.inputs[0], wave("runner", 2, 100))
        drained(topology, client)
    judge(topology, client)


def test_from_elastic_to_replicas_and_back(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path) -> None:
    """The states stay, and nothing is lost or doubled, also when replicas are killed just before they hand over."""
    topology = fresh_domain("trades")
    for number in range(2):
        with instance(topology, client, tmp_path / f"elastic{number}", name="e"):
            produce(client, topology.inputs[0], wave("trades", number, 300))
            drained(topology, client)
        produce(client, topology.inputs[0], wave("trades", 10 + number, 300))
        with instance(topology, client, tmp_path / "a", name="a", replicas=2) as a:
            with instance(topology, client, tmp_path / "b", name="b", replicas=2):
                drained(topology, client)
            produce(client, topology.inputs[0], wave("trades", 20 + number, 300))
            a.kill()
            a.wait()
    with instance(topology, client, tmp_path / "elastic", name="e"):
        drained(topology, client)

    judge(topology, client)


def test_who_watches_sees_how_replicas_are(
    fresh_domain: MakeDomain, client: dict[str, str], bootstrap_servers: str, tmp_path: Path
) -> None:
    """Both at first; one is killed, and the other's numbers go on."""
    topology = fresh_domain("runner")
    settings = Settings(bootstrap_servers=bootstrap_servers)
    waves = iter(range(1_000))

    def seen() -> ReplicasNow | None:
        produce(client, topology.inputs[0], wave("runner", next(waves), 300))
        return replicas_of_all(settings).get("runner")

    def both_are_seen() -> bool:
        now = seen()
        return (
            now is not None
            and now.replicas.keys() == {"replica-a", "replica-b"}
            and sum(one.accepted for one in now.replicas.values()) == now.decisions > 0
            and sum(one.publishes for one in now.replicas.values()) == 2
            and now.decisions_a_second > 0
        )

    def a_does_it_alone() -> bool:
        now = seen()
        return now is not None and now.replicas["replica-a"].publishes == 2

    with instance(topology, client, tmp_path / "a", instance="replica-a", replicas=2):
        with instance(topology, client, tmp_path / "b", instance="replica-b", replicas=2):
            eventually(both_are_seen, 60, "both replicas are seen")
        eventually(a_does_it_alone, 60, "the one that is left publishes both tasks")
        now = replicas_of_all(settings)["runner"]
        drained(topology, client)

        def all_is_published() -> bool:
            return replicas_of_all(settings)["runner"].unpublished == 0

        eventually(all_is_published, 60, "all is published")
    alive, killed = now.replicas["replica-a"], now.replicas.get("replica-b")
    assert alive.accepted > 0
    assert killed is None or (killed.publishes == 0 and killed.last_s > alive.last_s)
    judge(topology, client)
