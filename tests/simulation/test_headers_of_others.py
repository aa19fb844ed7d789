"""`onefold-` headers that others wrote: another pipeline, another cluster, a release before, any program. The numbers are right,
and the judge, which shares no code with the processor, says so.
"""

import itertools
from collections.abc import Iterable
from types import MappingProxyType

import pytest

from onefold import Event, Outputs, Topology
from onefold.processor.core.owner import Owner
from onefold.processor.core.values import Headers, Record
from onefold.processor.loading import topology_of
from onefold.processor.testing import SimulatedLog, TopologyDriver
from onefold.processor.testing.log import Entry, SimulatedEnvelope
from onefold.processor.testing.partition import partition_of
from onefold.verify.loading import workload
from onefold.verify.record import ReadRecord as Judged
from onefold.verify.record import Source
from onefold.verify.replays import Receipts
from onefold.verify.writer_identity import WriterIdentity as JudgesOwner
from tests.support.judged import judged

pytestmark = pytest.mark.promise("headers-of-others")

RUNNER = topology_of("runner")
UPDATES = "runner.updates"
PARTITIONS = 2
SENT_MS = 1_700_000_000_000
SIGNED = "onefold-pipeline"


def update(user: int, sequence: int) -> bytes:
    return b'{"user_id": %d, "distance_meters": 1, "timestamp_utc": %d, "sequence_id": %d, "run_id": 1}' % (
        user,
        sequence,
        sequence,
    )


def runner_on(log: SimulatedLog | None = None) -> TopologyDriver:
    """The pipeline on a log, whose topics are made when there is none yet."""
    driver = TopologyDriver(RUNNER, partitions=PARTITIONS, log=log)
    if log is not None:
        for topic in (*RUNNER.reads, *RUNNER.outputs, *RUNNER.dead.values(), RUNNER.changelog):
            log.create(topic, PARTITIONS)
    return driver


def assert_valid(driver: TopologyDriver, receipts: Receipts = MappingProxyType({}), **counts: int) -> None:
    """The judge has nothing to say, and counts the same records as the processor does."""
    findings, expected = judged(workload("runner"), driver, receipts=receipts)
    assert findings == []
    found = [driver.task(partition).progress.counts for partition in range(PARTITIONS)]
    counted = found[0].plus(found[1])._asdict()
    assert vars(expected.counts) == counted
    assert counts.items() <= counted.items()


OTHERS: dict[str, Headers] = {
    "an output of the pipeline before": [("onefold-source", b"orders.orders/0/0")],
    "an output, and the place is one here": [("onefold-source", b"runner.updates/0/0")],
    "garbage": [("onefold-source", b"\xff//"), ("onefold-timestamp", b"-1"), ("onefold-replays", b"")],
    "no values": [("onefold-source", None), ("onefold-timestamp", None), ("onefold-replays", None), (SIGNED, None)],
    "only a time": [("onefold-timestamp", b"5")],
    "only a replay": [("onefold-replays", b"runner.updates/0/0")],
    "only a signature": [(SIGNED, b"/runner/x")],
    "ours, twice, and then another's": [(SIGNED, b"/runner/x"), (SIGNED, b"/orders/x"), ("onefold-timestamp", b"5")],
    "a copy of another topic": [("onefold-source", b"a/0/0"), ("onefold-timestamp", b"5"), (SIGNED, b"/orders/x")],
    "a copy of a mirrored cluster": [
        ("onefold-source", b"runner.updates/0/0"), ("onefold-timestamp", b"5"), (SIGNED, b"staging/runner/x")
    ],
    "a replay of a mirrored cluster": [("onefold-replays", b"runner.updates/0/0"), (SIGNED, b"staging/runner/x")],
    "a pipeline of a longer name": [
        ("onefold-source", b"a/0/0"), ("onefold-timestamp", b"5"), (SIGNED, b"/runner.updates/x")
    ],
}  # fmt: skip


@pytest.mark.parametrize("at", range(PARTITIONS), ids=["one partition", "the other"])
@pytest.mark.parametrize("headers", OTHERS.values(), ids=OTHERS.keys())
def test_headers_of_others_mean_nothing(headers: Headers, at: int) -> None:
    """The record counts once, wherever it lies."""
    driver = runner_on()
    driver.send(UPDATES, update(1, 1), partition=at, timestamp_ms=SENT_MS)
    driver.send(UPDATES, update(1, 2), partition=at, timestamp_ms=SENT_MS, headers=headers)
    driver.send(UPDATES, update(2, 1), partition=at, timestamp_ms=SENT_MS, headers=headers)
    driver.run()

    assert_valid(driver, accepted=3, dead=0, ignored=0)
    times = {record.envelope and record.timestamp_ms for record in _polled(driver, at)}
    assert times == {SENT_MS}, "what a handler is told is when it was sent"


def _polled(driver: TopologyDriver, partition: int) -> Iterable[Record]:
    inputs = driver.task(partition)._inputs
    inputs.seek({UPDATES: 0})
    return inputs.poll(1_000, 0)


class Seen:
    """The state of the second pipeline."""

    def __init__(self, records: int = 0) -> None:
        self.records = records


def test_two_pipelines_share_an_input() -> None:
    """Records lie in wrong partitions for both, and some are dead letters of both. Each counts what was sent, once."""

    def count(seen: int | None, event: Event) -> tuple[int, Outputs]:
        return (seen or 0) + 1, ()

    second = Topology("second", (UPDATES,), lambda value: f"run {value.sequence_id}", int, count, {})
    log = SimulatedLog("here")
    runner = runner_on(log)
    log.create("second.changelog", PARTITIONS)
    other = TopologyDriver(second, contracts=runner._contracts, partitions=PARTITIONS, log=log)
    for number in range(12):
        runner.send(UPDATES, update(number, number), partition=number % PARTITIONS)
        runner.send(UPDATES, b"no update", partition=number % PARTITIONS)
    for _ in range(3):
        runner.run()
        other.run()

    assert_valid(runner, accepted=12, dead=12)
    assert other.states() == {f"run {number}": 1 for number in range(12)}


def test_the_next_pipeline_has_another_key() -> None:
    """It puts copies into the output that it reads: these are no outputs of the first one, which stays *valid*."""

    def count(seen: int | None, event: Event) -> tuple[int, Outputs]:
        return (seen or 0) + 1, ()

    second = Topology("second", ("runner.messages",), lambda value: f"by {value.sequence_id}", int, count, {})
    runner = runner_on(SimulatedLog("here"))
    for topic in ("runner.messages.dead", "second.changelog"):
        runner.log.create(topic, PARTITIONS)
    other = TopologyDriver(second, contracts=runner._contracts, partitions=PARTITIONS, log=runner.log)
    for number in range(12):
        runner.send(UPDATES, update(number, number), partition=partition_of(str(number), PARTITIONS))
    runner.run()
    other.run()

    copies = [headers for _, _, headers in runner.records("runner.messages") if SIGNED in headers]
    assert copies
    assert other.states() == {f"by {number}": 1 for number in range(12)}
    assert_valid(runner, accepted=12)


def test_a_mirrored_cluster_has_the_same_pipeline() -> None:
    """Staging's records come with their headers, copies too: what a mirror brings is an event. Both sides are *valid*."""
    staging = runner_on(SimulatedLog("staging"))
    for number in range(10):
        staging.send(UPDATES, update(number, 1), partition=number % PARTITIONS, timestamp_ms=SENT_MS)
    staging.run()
    assert_valid(staging, accepted=10)
    mirrored = [
        (partition, entry) for partition in range(PARTITIONS) for _, entry in staging.log.read(UPDATES, partition, 0)[0]
    ]
    production = runner_on(SimulatedLog("production"))
    for partition, entry in mirrored:
        production.log.append(UPDATES, entry.key, entry.value, partition=partition, headers=entry.headers)
    production.run()

    copies = sum(SIGNED in dict(entry.headers) for _, entry in mirrored)
    assert copies > 0
    assert_valid(production, accepted=10, ignored=copies)


def test_copies_of_before_a_reset_count_no_more() -> None:
    """Their originals are there, and are copied anew. What was put back by then still counts."""
    driver = runner_on()
    for number in range(10):
        driver.send(UPDATES, update(number, 1), partition=number % PARTITIONS)
    driver.run()
    before = [driver.task(partition).progress.counts for partition in range(PARTITIONS)]
    copies = before[0].plus(before[1]).repartitioned
    assert copies > 0
    partition = partition_of("1", PARTITIONS)
    replayed = Source(UPDATES, partition, 99)
    replay = [("onefold-replays", str(replayed).encode()), (SIGNED, b"/runner/then")]
    driver.log.append(UPDATES, b"1", update(1, 2), partition=partition, headers=replay)
    driver.kill()
    for topic in (*RUNNER.outputs, *RUNNER.dead.values(), RUNNER.changelog):
        driver.log.create(topic, PARTITIONS)
    driver.run()
    assert_valid(driver, {replayed: False}, accepted=11, ignored=0, repartitioned=copies)


def test_copies_of_a_release_that_signed_none() -> None:
    """They are what they were; and one that comes twice is found."""
    driver = runner_on()
    away = 1 - partition_of("1", PARTITIONS)
    driver.send(UPDATES, update(1, 1), partition=away)
    driver.run()
    (original,), (copy,) = (driver.log.read(UPDATES, at, 0)[0] for at in (away, 1 - away))
    before = runner_on()
    before.log.append(UPDATES, None, original[1].value, partition=away)
    before.run()
    unsigned = [header for header in copy[1].headers if header[0] == "onefold-source"]
    entries = before.log._topics[UPDATES].partitions[1 - away]
    entries[0] = entries[0]._replace(headers=tuple(unsigned))
    assert_valid(before, accepted=1, repartitioned=1)

    before.log.append(UPDATES, b"1", original[1].value, partition=1 - away, headers=unsigned)
    before.run()
    findings, _ = judged(workload("runner"), before)
    told = [(finding.kind, finding.text) for finding in findings]
    assert told == [("doubled copy", "that input record has its copy already")]


@pytest.mark.parametrize("of_a_replay", [False, True])
@pytest.mark.parametrize("claimed", [b"7", b"6", b"0", b"x", b"1" * 16])
def test_a_copy_has_the_time_of_its_original(claimed: bytes, of_a_replay: bool) -> None:
    """The processor gives it, and another one is found. A replay has the time of the record that it replays."""
    driver = runner_on()
    here = partition_of("1", PARTITIONS)
    headers = [("onefold-replays", b"runner.updates/%d/9" % (1 - here)), ("onefold-timestamp", b"7")]
    sent_ms, more = (8, headers) if of_a_replay else (7, [])
    driver.send(UPDATES, update(1, 1), partition=1 - here, timestamp_ms=sent_ms, headers=more)
    driver.run()
    assert_valid(driver, accepted=1, repartitioned=1)

    entries = driver.log._topics[UPDATES].partitions[here]
    ((offset, copy),) = driver.log.read(UPDATES, here, 0)[0]
    claims = [(name, claimed if name == "onefold-timestamp" else value) for name, value in copy.headers]
    entries[offset] = copy._replace(headers=tuple(claims))
    findings, _ = judged(workload("runner"), driver)
    assert [finding.kind for finding in findings] == ["wrong output"] * (claimed != b"7")


def test_the_processor_and_the_judge_mean_the_same_records() -> None:
    """Both of them by their own rules, over every mixture of headers."""
    owner, judges = Owner("here", "runner", "now"), JudgesOwner("here", "runner", "now")
    places = (None, b"runner.updates/1/0", b"orders.orders/1/0", b"x")
    signatures = (None, b"here/runner/now", b"here/runner/then", b"here/orders/now", b"there/runner/now", b"x")
    seen = set[tuple[bool, bool]]()
    times = ("", None, b"7", b"-7", b"x", b"1" * 16)
    for source, time, replays, signed in itertools.product(places, times, places, ("", *signatures)):
        given = {"onefold-source": source, "onefold-timestamp": time, "onefold-replays": replays, SIGNED: signed}
        # None: the header is there, without a value.
        headers = [(name, value) for name, value in given.items() if not isinstance(value, str)]
        envelope = SimulatedEnvelope(Entry(0, False, b"k", b"v", tuple(headers), SENT_MS))
        taken = owner.of([Record(UPDATES, 0, 0, b"k", b"v", envelope)])
        record = Judged(UPDATES, 0, 0, b"k", b"v", [*headers], SENT_MS)
        assert (taken == []) == judges.is_of_another(record), headers
        ours = judges.copied(record) is not None or judges.replayed(record) is not None
        if taken:
            assert taken[0].timestamp_ms == judges.as_sent(record).timestamp_ms, headers
        if taken and time == b"7":
            assert (taken[0].timestamp_ms == 7) == ours, headers
        seen.add((taken == [], ours))
    assert seen == {(True, False), (False, True), (False, False)}


@pytest.mark.parametrize("others", [(), (("traceparent", b"1"), ("x", None))])
def test_of_a_record_of_others_a_handler_sees_the_headers_that_are_not_ours(others: Headers) -> None:
    """The others all, with or without a value; none at all where each of them is ours."""
    owner = Owner("here", "runner", "now")
    headers = (("onefold-replays", b"orders.orders/1/0"), *others, (SIGNED, b"there/runner/now"))
    (taken,) = owner.of(
        [Record(UPDATES, 0, 0, b"k", b"v", SimulatedEnvelope(Entry(0, False, b"k", b"v", headers, SENT_MS)))]
    )
    assert taken.envelope is not None
    assert taken.envelope.headers() == ([*others] or None)
