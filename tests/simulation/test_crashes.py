"""The real loop on the simulated log, stopped at every step there is."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.error_codes import Code
from onefold.processor.core.abc import transactional_id
from onefold.processor.core.errors import Corrupted, Fenced, Refused
from onefold.processor.core.steps import STEPS
from onefold.processor.core.topology import Topology
from onefold.processor.loading import topology_of
from onefold.processor.testing import SimulatedLog, SimulatedSession, TopologyDriver
from tests.support.clock import Clock
from tests.support.coded import raises
from tests.support.crashes import crashed_at_every_hit
from tests.support.tasks import elastic_task

pytestmark = pytest.mark.promise("crash-at-any-step")

RUNNER = topology_of("runner")
CAMPAIGNS = topology_of("campaigns")
TRADES = topology_of("trades")
SEED_TIME = 1_509_559_388_000


def update(user: int, sequence: int, meters: int, timestamp: int, run: int = 1000) -> dict[str, int]:
    return {
        "user_id": user,
        "distance_meters": meters,
        "timestamp_utc": timestamp,
        "sequence_id": sequence,
        "run_id": run,
    }


RUNNER_INPUT = [update(user, n, 10 * n + user, 30_000 * n, run=n // 5) for n in range(1, 9) for user in range(3)]
CAMPAIGNS_INPUT = [
    {"id": campaign, "email": "A", "subject": "A", "sent": 100 * n, "date": f"2021-12-01 {10 + n}:00:00"}
    for n in range(1, 5)
    for campaign in range(3)
]

LEAVES = [{"RiskType": "Delta", "Region": region, "TradeDesk": "FXSpot"} for region in ("AMER", "EMEA")]
TRADES_INPUT = [
    {"TradeID": f"t{trade}", "Value": n + trade / 4, "Version": n, "Timestamp": n, "Hierarchy": LEAVES[n // 2 % 2]}
    for n in range(4)
    for trade in range(3)
]


def feed(driver: TopologyDriver, inputs: list[dict[str, Any]]) -> None:
    """Three waves, with repeats of the wave before, records misrouted, and bad ones."""
    topic = driver.topology.inputs[0]
    third = len(inputs) // 3
    for wave in range(3):
        for value in inputs[max(0, wave - 1) * third : (wave + 1) * third]:
            driver.send(topic, value)
        for value in inputs[wave * third : wave * third + 2]:
            for partition in range(driver.partitions):
                driver.send(topic, value, partition=partition)
        driver.send(topic, b"not json")
        driver.run()
    driver.stop()


def outcome(driver: TopologyDriver) -> dict[str, Any]:
    """All that can be seen from outside, with how often each record is there.

    Offsets may differ: what a crashed transaction wrote takes offsets for ever, also in the input when it forwarded.
    """
    outputs = {topic: sorted(map(str, driver.read(topic))) for topic in driver.topology.outputs}
    topic = driver.topology.inputs[0]
    dead = sorted((value, headers["onefold-reason"]) for _, value, headers in driver.records(f"{topic}.dead"))
    inputs = sorted((value, sorted(headers)) for _, value, headers in driver.records(topic))
    counts = [driver.task(partition).progress.counts for partition in range(driver.partitions)]
    return {**outputs, "dead": dead, "inputs": inputs, "states": driver.states(), "counts": counts}


@pytest.mark.parametrize(
    ("topology", "inputs"),
    [(RUNNER, RUNNER_INPUT), (CAMPAIGNS, CAMPAIGNS_INPUT), (TRADES, TRADES_INPUT)],
    ids=lambda given: getattr(given, "name", ""),
)
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_no_trace(topology: Topology, inputs: list[dict[str, Any]], step: str) -> None:
    """Every hit of every step: tables, records, dead letters, states and counts are those of a run without a crash."""
    make, feed_it = partial(TopologyDriver, topology, partitions=2), partial(feed, inputs=inputs)
    undisturbed = make()
    feed_it(undisturbed)
    expected = outcome(undisturbed)
    for where, driver in crashed_at_every_hit(step, make, feed_it):
        assert expected == outcome(driver), where


@settings(max_examples=3 * settings().max_examples // 2)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 6)), max_size=6))
def test_any_sequence_of_crashes_leaves_no_trace(crashes: list[tuple[str, int]]) -> None:
    """One crash after another, also while recovering from the one before."""
    expected = TopologyDriver(RUNNER)
    disturbed = TopologyDriver(RUNNER)
    for number, value in enumerate(RUNNER_INPUT):
        for driver in (expected, disturbed):
            driver.send("runner.updates", value)
        if number < len(crashes):
            disturbed.crash_at(*crashes[number])
        disturbed.run()
    expected.run()

    assert expected.states() == disturbed.states()
    assert expected.table("runner.stats") == disturbed.table("runner.stats")
    assert sorted(map(str, expected.read("runner.messages"))) == sorted(map(str, disturbed.read("runner.messages")))


def test_the_seeds_crash_in_the_middle() -> None:
    """270 m, ten minutes, and 'well done' before it, after a crash between the outputs and the state."""
    start = SEED_TIME - 600_000
    driver = TopologyDriver(RUNNER)
    for value in (update(1, 1, 30, start), update(1, 2, 40, start + 150_000), update(1, 3, 80, start + 330_000)):
        driver.send("runner.updates", value)
    driver.run()
    driver.send("runner.updates", update(1, 4, 120, SEED_TIME))
    driver.crash_at("before_commit")
    driver.run()

    assert driver.restarts == 1
    assert tuple(driver.table("runner.stats")[1000, 1][name] for name in ("total_meters", "total_time_ms")) == (
        270,
        600_000,
    )
    assert tuple(driver.table("runner.tendency")[1,][name] for name in ("timestamp_utc", "current", "previous")) == (
        SEED_TIME,
        "good job",
        "well done",
    )
    assert len([message for message in driver.read("runner.messages") if message["sequence_id"] == 4]) == 1


def test_a_zombie_that_wakes_up_commits_nothing() -> None:
    """It was stopped in the middle of a transaction; its successor has done the same work."""
    driver = TopologyDriver(RUNNER)
    driver.send("runner.updates", update(1, 1, 10, 0))
    zombie = driver.task()
    session = zombie._inputs
    assert isinstance(session, SimulatedSession)
    prepared = zombie._compute.prepare(zombie.store, zombie.progress, session.poll(10, 0), {})
    zombie.decider.propose(prepared, session.ask_topic_ids())
    driver.kill()
    driver.run()

    with pytest.raises(Fenced):
        zombie.turn()
    assert len(driver.read("runner.messages")) == 1


@pytest.mark.parametrize("aborted", [True, False], ids=["aborted", "ambiguous"])
def test_a_zombie_that_reinitialises_its_producer_commits_nothing(aborted: bool) -> None:
    """Re-initialising fences the successor, which is not wrong yet; folding on from old states would be."""
    driver = TopologyDriver(RUNNER)
    for sequence in range(1, 4):
        driver.send("runner.updates", update(1, sequence, 10, sequence))
    driver.run()
    zombie = driver.task()
    driver.kill()
    driver.send("runner.updates", update(1, 4, 10, 4))
    driver.run()
    session = zombie._inputs
    assert isinstance(session, SimulatedSession)
    if aborted:
        session.abort()
    session.ambiguous = True
    driver.send("runner.updates", update(1, 5, 10, 5))

    with raises(Corrupted, Code.FENCED):
        zombie.turn()
    driver.kill()
    driver.run()
    assert [message["sequence_id"] for message in driver.read("runner.messages")] == [1, 2, 3, 4, 5]


def test_a_topic_that_is_recreated_while_it_is_read_is_refused() -> None:
    """The consumer itself would go on at its old offset, in the middle of other records."""
    driver = TopologyDriver(RUNNER)
    driver.send("runner.updates", update(1, 1, 10, 0))
    driver.run()
    driver.log.create("runner.updates", 1)
    for sequence in range(2, 6):
        driver.send("runner.updates", update(1, sequence, 10, 0))

    with raises(Refused, Code.TOPIC_RECREATED):
        driver.run()


def test_a_late_request_cannot_end_the_next_transaction() -> None:
    """R1 on the simulated log: a request to abort that was under way while the next transaction began."""
    for ambiguous, taken in ((False, True), (True, False)):
        driver = TopologyDriver(RUNNER)
        session = driver.task()._inputs
        assert isinstance(session, SimulatedSession)
        late = session.epoch
        session.ambiguous = ambiguous
        session.begin()
        session.produce([("runner.messages", 0, b"k", b"v", [])])
        assert taken == driver.log.late_end(transactional_id("runner", 0), late, commit=False)
        session.commit()

        assert taken == (driver.records("runner.messages") == [])


@pytest.mark.parametrize(
    ("disturb", "code"),
    [
        (lambda log: log.create("runner.updates", 1), Code.TOPIC_RECREATED),
        (lambda log: log._topics["runner.updates"].partitions[0].clear(), Code.RECORDS_LOST),
    ],
)
def test_another_log_under_the_same_name_is_refused(disturb: Any, code: Code) -> None:
    """Going on would skip or repeat records without a word."""
    log = SimulatedLog()
    for topic in (*RUNNER.inputs, *RUNNER.outputs, "runner.updates.dead", "runner.changelog"):
        log.create(topic, 1)
    driver = TopologyDriver(RUNNER, log=log)
    driver.send("runner.updates", update(1, 1, 10, 0))
    driver.run()
    disturb(log)
    task = elastic_task(RUNNER, SimulatedSession(log, RUNNER, 0), driver.codec, clock=Clock())

    with raises(Refused, code):
        task.open()
