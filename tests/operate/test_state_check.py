"""`verify --states`: real handlers on a simulated log, and states in their changelog that are none of theirs."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import Struct

from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.operate import state_check
from onefold.operate.state_check import Compared, add_to, compare, is_same
from onefold.processor.core.errors import Rejected
from onefold.processor.core.topology import Topology
from onefold.processor.io.serde import AvroCodec
from onefold.processor.runtime.changelog import Progress
from onefold.testing import STEPS, TopologyDriver
from onefold.verify.log import Place
from onefold.verify.placement import partition_of
from onefold.verify.record import Record
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, CannotTell, Check, Finding, Verdict
from onefold.workloads import averages, bank, campaigns, runner
from tests.simulation.test_ticks import METERS, beat, feed
from tests.simulation.test_ticks import contracts as contracts
from tests.support.coded import raises
from tests.support.followed import PARTITIONS, Followed
from tests.support.replicas import Replicas, updates
from tests.support.simulated_stage import JudgesLog, kafka_of
from tests.verify.test_agreement_bounds import APPS
from tests.verify.test_following import inputs

DOMAINS = pytest.mark.parametrize("domain", APPS, ids=lambda domain: domain.WORKLOAD.name)


class Compacted(JudgesLog):
    """A log of which compaction has left the last record of each key in the changelog."""

    def read(
        self, ends: dict[Place, int], take: Callable[[Record], None], alive: Callable[[], object] = lambda: None
    ) -> None:
        found = list[Record]()
        super().read(ends, found.append, alive)
        last = {(one.topic, one.partition, one.key): one.offset for one in found if one.topic.endswith(".changelog")}
        for one in found:
            if last.get((one.topic, one.partition, one.key), one.offset) == one.offset:
                take(one)


def compared(driver: TopologyDriver, topology: Topology | None = None, opened: type[JudgesLog] = JudgesLog) -> Compared:
    topology = topology or driver.topology
    return compare(topology, driver.codec, {}, lambda what, records: None, kafka_of(driver.log, opened))


def assert_right(driver: TopologyDriver, opened: type[JudgesLog] = JudgesLog) -> None:
    found, check, unknown = compared(driver, opened=opened)
    assert found == []
    assert unknown is None
    assert check.expected == check.found == len(driver.states()) > 0


@pytest.mark.promise("verify-states")
@pytest.mark.parametrize("opened", [JudgesLog, Compacted])
@DOMAINS
def test_states_of_a_right_pipeline_are_right(domain: ModuleType, opened: type[JudgesLog]) -> None:
    """With windows, several inputs, feedback, dead letters, copies and crashes at each step."""
    made, followed = inputs(domain), Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    for at, step in enumerate(STEPS):
        followed.driver.crash_at(step)
        followed.send(made[at :: len(STEPS)])
    assert_right(followed.driver, opened)


@pytest.mark.promise("verify-states")
def test_states_of_timers_and_of_forgotten_keys_are_right(contracts: Path) -> None:
    """Some ticks and some events are dead letters, since the handler fails at them or their output is too long."""
    driver = TopologyDriver(METERS, contracts=contracts, partitions=PARTITIONS)
    beat(driver, ("bug", 666), ("long", 777))
    feed(driver)
    for second in range(10, 15):
        beat(driver, (f"m{second}", second))
        driver.tick(1000 * second)
        driver.run()
    assert len(driver.records("meters.ticks.dead")) > 4
    assert_right(driver)


@pytest.mark.promise("verify-states")
@pytest.mark.parametrize("seed", range(5))
def test_states_of_replicas_are_right_and_a_wrong_one_is_found(seed: int) -> None:
    """Their changelog has what they decided."""
    world, sent = Replicas(APPS[runner].TOPOLOGY), updates()

    def act(dice: Any) -> None:
        world.driver.send(*next(sent), partition=0)

    world.run(seed, 100, act)
    world.drain()
    assert_right(world.driver)
    world.log.append("runner.changelog", b"s1", b"{}", partition=0)
    assert [one.key for one in compared(world.driver).findings] == [{"key": "1", "partition": 0}]


def quiet(followed: Followed) -> tuple[str, int, dict[str, Any], int]:
    """A key that gets no more events, its partition, its state, and where that lies."""
    changelog = followed.driver.topology.changelog
    entries = followed.driver.log.read(changelog, 1, 0)[0]
    offset, entry = next((at, entry) for at, entry in reversed(entries) if (entry.key or b"").startswith(b"s"))
    return (entry.key or b"")[1:].decode(), 1, json.loads(entry.value or b""), offset


def put(followed: Followed, key: str, partition: int, value: bytes | None) -> str:
    """A state that no processor has written; where it lies."""
    changelog = followed.driver.topology.changelog
    return followed.append(Record(changelog, partition, 0, b"s" + key.encode(), value))


@pytest.mark.promise("verify-states")
@DOMAINS
def test_a_wrong_state_of_a_quiet_key_is_found(domain: ModuleType) -> None:
    """No output record and no row shows it. The finding has the pipeline, the key, the partition and both states."""
    followed = Followed(APPS[domain].TOPOLOGY, domain.WORKLOAD)
    followed.send(inputs(domain))
    key, partition, state, _ = quiet(followed)
    field = next(name for name, value in state.items() if isinstance(value, int))
    place = put(followed, key, partition, json.dumps(state | {field: state[field] + 1}).encode())
    followed.begin()
    assert followed.found() == [], "nothing else finds it"
    (wrong,) = compared(followed.driver).findings
    assert (wrong.kind, wrong.where, wrong.output) == ("wrong state", f"{domain.WORKLOAD.name}.changelog", place)
    assert wrong.key == {"key": key, "partition": partition}
    assert wrong.columns == {field: (state[field], state[field] + 1)}


@pytest.mark.promise("verify-states")
def test_a_state_that_is_lost_made_up_or_unreadable_is_found() -> None:
    followed = Followed(APPS[campaigns].TOPOLOGY, campaigns.WORKLOAD)
    followed.send(inputs(campaigns))
    key, partition, state, _ = quiet(followed)
    put(followed, key, partition, None)
    put(followed, "none", partition, json.dumps(state).encode())
    found, check, _ = compared(followed.driver)
    texts = [[text and json.loads(text) for text in one.columns["state"]] for one in found]
    assert [one.key["key"] for one in found] == [key, "none"]
    assert texts == [[state, None], [None, state]]
    assert check.expected == check.found
    put(followed, key, partition, b"junk")
    unreadable, _ = compared(followed.driver).findings
    assert unreadable.columns["state"][1] == "junk"
    assert "holds a state that is none of" in unreadable.text


def test_what_comes_after_the_progress_is_not_asked_for() -> None:
    followed = Followed(APPS[averages].TOPOLOGY, averages.WORKLOAD)
    made = inputs(averages)
    followed.send(made[:800])
    for given in made[800:]:
        followed.driver.send(given.topic, given.value, key=given.key)
    assert_right(followed.driver)


class Old(Struct):
    """A state of an earlier version."""

    seen: list[int]


class New(Struct):
    """The same with a field more, and with a set."""

    seen: set[int]
    more: int = 0


def test_a_state_of_an_earlier_version_is_the_same_with_the_defaults_of_its_new_fields() -> None:
    right = APPS[runner].TOPOLOGY

    def handle_old(state: Old | None, event: Any) -> tuple[Old, tuple[()]]:
        return Old([*(state.seen if state else ()), event.value.sequence_id]), ()

    def handle(state: New | None, event: Any) -> tuple[New, tuple[()]]:
        return New({*(state.seen if state else ()), event.value.sequence_id}), ()

    driver = TopologyDriver(replace(right, state=Old, handle=handle_old))
    for number in (900, 7, 30):
        update = {"user_id": 1, "distance_meters": 1, "timestamp_utc": 1, "sequence_id": number, "run_id": 1}
        driver.send("runner.updates", update)
    driver.run()
    topology = replace(right, state=New, handle=handle)
    codec = AvroCodec(topology, driver._contracts)
    found, _, unknown = compare(topology, codec, {}, lambda what, records: None, kafka_of(driver.log))
    assert (found, unknown) == ([], None)


def followed_campaigns() -> Followed:
    followed = Followed(APPS[campaigns].TOPOLOGY, campaigns.WORKLOAD)
    followed.send(inputs(campaigns))
    return followed


def test_a_state_that_retention_may_have_deleted_is_unknown_and_a_wrong_one_is_found() -> None:
    followed = followed_campaigns()
    key, partition, state, offset = quiet(followed)
    followed.driver.log.truncate("campaigns.changelog", partition, offset + 1)
    found, check, unknown = compared(followed.driver)
    assert found == []
    assert check.found < check.expected
    assert unknown is not None
    assert unknown.code == Code.RECORDS_DELETED
    assert "has deleted the beginning of campaigns.changelog" in str(unknown)
    put(followed, key, partition, json.dumps(state | {"changes": -1}).encode())
    assert [one.key["key"] for one in compared(followed.driver).findings] == [key]


@pytest.mark.parametrize("topic", [campaigns.TOPIC, f"{campaigns.TOPIC}.dead"])
def test_records_that_are_gone_leave_states_that_cannot_be_compared(topic: str) -> None:
    followed = followed_campaigns()
    followed.driver.log.truncate(topic, 1, 2)
    with raises(CannotTell, Code.RECORDS_DELETED, f"{topic}/1 starts at offset 2"):
        compared(followed.driver)


def test_of_a_compacted_input_a_difference_proves_nothing() -> None:
    followed = followed_campaigns()
    followed.driver.log.compacted.add(campaigns.TOPIC)
    assert_right(followed.driver)
    key, partition, state, _ = quiet(followed)
    put(followed, key, partition, json.dumps(state | {"changes": -1}).encode())
    found, _, unknown = compared(followed.driver)
    assert found == []
    assert f"states differ, but {campaigns.TOPIC} is compacted" in str(unknown)


def test_states_of_an_input_that_is_read_no_more_cannot_be_compared() -> None:
    followed = followed_campaigns()
    told = Progress({"campaigns.other": "id"}, {"campaigns.other": 3})
    followed.append(Record("campaigns.changelog", 0, 0, b"p", told.encode()))
    with raises(
        CannotTell, Code.PROGRESS_UNKNOWN, "hold records of campaigns.other, which campaigns does not read any more"
    ):
        compared(followed.driver)


def test_without_an_order_of_several_inputs_states_cannot_be_compared() -> None:
    followed = Followed(APPS[bank].TOPOLOGY, bank.WORKLOAD)
    followed.send(inputs(bank))

    class Unordered(JudgesLog):
        def read(self, ends: dict[Place, int], take: Callable[[Record], None], *more: Any) -> None:
            super().read(ends, lambda one: None if one[::2][:2] == ("bank.order", 0) else take(one), *more)

    with raises(CannotTell, Code.PROGRESS_UNKNOWN, "the recorded merge order of bank"):
        compared(followed.driver, opened=Unordered)


def test_a_handler_that_fails_at_what_is_no_dead_letter_has_no_states_to_compare() -> None:
    followed = followed_campaigns()

    def fails(state: Any, event: Any) -> Any:
        raise ZeroDivisionError

    with raises(CannotTell, Code.NO_VERDICT, "the handler raises ZeroDivisionError", "that is no dead letter"):
        compared(followed.driver, replace(followed.driver.topology, handle=fails))


WRONG, ROW = Finding("wrong state", "runner.changelog"), Finding("extra row", "runner.stats")
GONE = CannotTell(Code.RECORDS_DELETED, "it is gone")
NOT_ALL = "; not every state could be compared: it is gone"


@pytest.mark.parametrize(
    ("before", "findings", "unknown", "after", "names", "reason"),
    [
        (VALID, [], None, VALID, [], "so far, and so is every state"),
        (VALID, [], GONE, UNKNOWN, [], "not every state could be compared: it is gone"),
        (VALID, [WRONG], GONE, INVALID, [WRONG], f"1 differences from what follows from the input log{NOT_ALL}"),
        (UNKNOWN, [], None, UNKNOWN, [ROW], "so far"),
        (UNKNOWN, [WRONG], None, INVALID, [WRONG], "1 differences from what follows from the input log"),
        (INVALID, [], GONE, INVALID, [ROW], f"so far{NOT_ALL}"),
        (UNKNOWN, [], GONE, UNKNOWN, [ROW], f"so far{NOT_ALL}"),
        (INVALID, [WRONG], None, INVALID, [ROW, WRONG], "2 differences from what follows from the input log"),
    ],
)
def test_what_comes_of_it_for_the_verdict(
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    findings: list[Finding],
    unknown: CannotTell | None,
    after: str,
    names: list[Finding],
    reason: str,
) -> None:
    """A wrong state is wrong, whatever else could not be seen; differences of an unknown verdict prove nothing."""
    check = Check("states", 3, 3)
    monkeypatch.setattr(state_check, "compare", lambda *given: Compared(findings, check, unknown))
    verdict = Verdict("runner", before, "so far", findings=[] if before == VALID else [ROW])
    add_to(verdict, Settings(bootstrap_servers="nowhere:1"), lambda what, records: None)
    assert (verdict.outcome, verdict.findings, verdict.reason) == (after, names, reason)
    assert verdict.checks == [check]
    assert verdict.states == (None if unknown else 3)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (GONE, Code.RECORDS_DELETED, "it is gone"),
        (ValueError("no number"), Code.NO_VERDICT, "the comparison itself failed: ValueError: no number"),
    ],
)
def test_a_comparison_that_fails_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: Code, text: str
) -> None:
    def fail(*given: Any) -> Compared:
        raise error

    monkeypatch.setattr(state_check, "compare", fail)
    verdict = Verdict("runner", VALID, "so far")
    add_to(verdict, Settings(bootstrap_servers="nowhere:1"), lambda what, records: None)
    assert (verdict.outcome, verdict.code) == (UNKNOWN, str(code))
    assert text in verdict.reason
    unknown = Verdict("nowhere", UNKNOWN, "so far")
    add_to(unknown, Settings(bootstrap_servers="nowhere:1"), lambda what, records: None)
    assert unknown.outcome == UNKNOWN
    assert unknown.reason.startswith("so far; not every state could be compared: ")


def test_a_rule_of_today_that_rejects_an_accepted_record_has_no_states_to_compare() -> None:
    followed = followed_campaigns()
    right = followed.driver.topology

    def rejects(state: Any, event: Any) -> Any:
        if state is not None:
            raise Rejected("too late", Code.REJECTED)
        return right.handle(state, event)

    with raises(CannotTell, Code.NO_VERDICT, "which is no dead letter: too late"):
        compared(followed.driver, replace(right, handle=rejects))


def test_a_state_under_a_key_that_is_no_text_is_wrong() -> None:
    followed = followed_campaigns()
    followed.append(Record("campaigns.changelog", 0, 0, b"s\xff", b"{}"))
    (found,) = compared(followed.driver).findings
    assert (found.kind, found.key["key"]) == ("wrong state", r"\xff")


def test_a_changelog_that_is_compacted_while_it_is_read_holds_no_wrong_state() -> None:
    """The pipeline runs: what was last before the end that was asked for has a successor behind it, and is gone."""
    made, followed = inputs(campaigns), Followed(APPS[campaigns].TOPOLOGY, campaigns.WORKLOAD)
    changelog = followed.driver.topology.changelog
    followed.send(made[: len(made) // 2])
    asked = {(changelog, at): followed.driver.log.stable(changelog, at) for at in range(PARTITIONS)}
    followed.send(made[len(made) // 2 :])
    reads = list[str]()

    class Cleaned(JudgesLog):
        """The first time that the changelog is read, its end is that of before."""

        def stable_ends(self) -> dict[Place, int]:
            reads.extend(self.topics if [*self.topics] == [changelog] else ())
            return asked if reads == [changelog] and [*self.topics] == [changelog] else super().stable_ends()

        def read(self, ends: dict[Place, int], take: Callable[[Record], None], *more: Any) -> None:
            if [*self.topics] != [changelog]:
                super().read(ends, take, *more)
                return
            found = list[Record]()
            super().read(super().stable_ends(), found.append)
            last = {(one.partition, one.key): one.offset for one in found}
            for one in found:
                if last[one.partition, one.key] == one.offset:
                    take(one)

    assert_right(followed.driver, Cleaned)
    assert reads == [changelog, changelog]


class Mixed(Struct):
    """A state with a set that has no order."""

    seen: set[int | str]


def test_sets_without_an_order_are_the_same_in_any() -> None:
    right = APPS[runner].TOPOLOGY

    def handle(state: Mixed | None, event: Any) -> tuple[Mixed, tuple[()]]:
        number = event.value.sequence_id
        return Mixed({*(state.seen if state else ()), number, str(number)}), ()

    topology = replace(right, state=Mixed, handle=handle)
    driver = TopologyDriver(topology)
    update = {"user_id": 1, "distance_meters": 1, "timestamp_utc": 1, "sequence_id": 900, "run_id": 1}
    driver.send("runner.updates", update)
    driver.run()
    ((partition, state),) = [
        (at, json.loads(entry.value or b""))
        for at in range(driver.log.partitions("runner.changelog"))
        for _, entry in driver.log.read("runner.changelog", at, 0)[0]
        if entry.key == b"s1"
    ]
    state["seen"].reverse()
    driver.log.append("runner.changelog", b"s1", json.dumps(state).encode(), partition=partition)
    assert compared(driver, topology)[::2] == ([], None)


@dataclass
class Visits:
    """A state whose handler can see in which order places came, and what their comparison leaves out."""

    places: dict[int, int]
    seen: int = field(default=0, compare=False)


@pytest.mark.promise("verify-states")
@pytest.mark.parametrize(
    ("places", "seen", "columns"),
    [
        ('{"7":1,"900":1}', 3, {"places": ('{"900":1,"7":1}', '{"7":1,"900":1}')}),
        ('{"900":1,"7":1}', 4, {"seen": (2, 4)}),
    ],
)
def test_what_the_handler_can_tell_apart_is_another_state(
    places: str, seen: int, columns: dict[str, tuple[Any, Any]]
) -> None:
    """The order of a dict, for the handler may take the first key, and a field that `==` does not compare."""

    def handle(state: Visits | None, event: Any) -> tuple[Visits, tuple[()]]:
        before = state or Visits({})
        return Visits(before.places | {event.value.sequence_id: 1}, before.seen + 1), ()

    topology = replace(APPS[runner].TOPOLOGY, state=Visits, handle=handle)
    driver = TopologyDriver(topology)
    for number in (900, 7):
        update = {"user_id": 1, "distance_meters": 1, "timestamp_utc": 1, "sequence_id": number, "run_id": 1}
        driver.send("runner.updates", update)
    driver.run()
    assert compared(driver)[::2] == ([], None)
    value = f'{{"places":{places},"seen":{seen if "seen" in columns else 2}}}'.encode()
    partition = partition_of("1", driver.log.partitions("runner.changelog"))
    driver.log.append("runner.changelog", b"s1", value, partition=partition)
    (wrong,) = compared(driver).findings
    assert (wrong.key, wrong.columns) == ({"key": "1", "partition": partition}, columns)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({1: 2, 3: 4}, {3: 4, 1: 2}, False),
        ([{1: {2, 3}}], [{1: {3, 2}}], True),
        ((1, [2]), (1, [2]), True),
        ([1], [1, 2], False),
        (1, True, False),
        (1, 1.0, False),
        (math.nan, math.nan, True),
        (0.0, -0.0, False),
        (Decimal("1.0"), Decimal("1.0"), True),
        (Visits({}, 1), Visits({}, 1), True),
        (Visits({}, 1), Visits({}, 2), False),
        (New(set(), 1), New(set(), 2), False),
    ],
)
def test_two_values_are_the_same_if_no_handler_tells_them_apart(one: Any, other: Any, same: bool) -> None:
    assert is_same(one, other) is same


@pytest.mark.promise("verify-states")
@pytest.mark.parametrize("more_ms", [-1, 1])
def test_another_time_of_the_last_tick_is_a_wrong_state(contracts: Path, more_ms: int) -> None:
    """Later ticks would be ignored, or an earlier one would be processed again."""
    driver = TopologyDriver(METERS, contracts=contracts, partitions=PARTITIONS)
    feed(driver)
    beat(driver, ("m", 1))
    driver.tick(60_000)
    driver.run()
    assert_right(driver)
    entries = driver.log.read("meters.changelog", 1, 0)[0]
    said = json.loads(next(entry.value or b"" for _, entry in reversed(entries) if entry.key == b"p"))
    told = said | {"ticked_ms": said["ticked_ms"] + more_ms}
    offset = driver.log.append("meters.changelog", b"p", json.dumps(told).encode(), partition=1)
    (wrong,) = compared(driver).findings
    assert (wrong.key, wrong.output) == ({"partition": 1}, f"meters.changelog/1/{offset}")
    assert wrong.columns == {"ticked_ms": (said["ticked_ms"], told["ticked_ms"])}


@pytest.mark.promise("verify-states")
def test_states_since_a_reset_are_compared_though_the_input_had_lost_its_beginning_by_then() -> None:
    """The processor has counted as many records as there are. When more are gone, the states cannot be made again."""
    followed = Followed(APPS[campaigns].TOPOLOGY, campaigns.WORKLOAD)
    for given in inputs(campaigns):
        followed.driver.send(given.topic, given.value, key=given.key)
    for partition in range(PARTITIONS):
        followed.driver.log.truncate(campaigns.TOPIC, partition, 20)
    followed.driver.run()
    assert_right(followed.driver)

    class Less(JudgesLog):
        """Without a record: as if aborted ones lay where those are that the processor has counted."""

        def read(self, ends: dict[Place, int], take: Callable[[Record], None], *more: Any) -> None:
            super().read(ends, lambda one: None if one[:3] == (campaigns.TOPIC, 1, 30) else take(one), *more)

    with raises(CannotTell, Code.RECORDS_DELETED, f"{campaigns.TOPIC}/0 starts at offset 20"):
        compared(followed.driver, opened=Less)
    key, partition, state, _ = quiet(followed)
    put(followed, key, partition, json.dumps(state | {"changes": -1}).encode())
    assert [one.key["key"] for one in compared(followed.driver).findings] == [key]
    followed.driver.log.truncate(campaigns.TOPIC, 1, 21)
    with raises(CannotTell, Code.RECORDS_DELETED, f"{campaigns.TOPIC}/0 starts at offset 20"):
        compared(followed.driver)
