"""A changelog that the release before wrote is gone on with, and one of this version can be read by that release.

That release's code is not here. What its readers accept is: tables of fields below, and how strict it was with them.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from onefold.error_codes import Code
from onefold.processor.core.abc import Codec
from onefold.processor.core.errors import Corrupted, Refused
from onefold.processor.core.stored import ELASTIC, FORMAT
from onefold.processor.core.topology import PROGRESS_KEY, Topology
from onefold.processor.core.values import SOURCE_HEADER, Counts
from onefold.processor.loading import topology_of
from onefold.processor.runtime.batch_limit import Quarantine
from onefold.processor.runtime.changelog import QUARANTINE_KEY, STATE, Progress
from onefold.processor.runtime.keeping import Found, Keeping
from onefold.processor.testing import SimulatedLog, TopologyDriver
from tests.support import previous
from tests.support.coded import raises
from tests.support.disk_driver import DiskDriver

# 0.1.0 needed all of these of a progress record and of its inputs, and left out what else there was; of its counts it
# took some or all of these, and failed at any other; so it did with the whole crash quarantine record.
PROGRESS_NEEDS = {"inputs", "counts", "transactions"}
INPUT_NEEDS = {"topic_id", "next_offset"}
COUNTS_MAY = {"accepted", "ignored", "forwarded", "dead"}
QUARANTINE_MAY = {"level", "calm", "topic", "offset", "tries"}
# It failed at a record of any other kind.
KINDS = {b"s", b"p", b"c"}
# New input, for a user that 0.1.0 knew: all other runner updates after its crash are repeats.
NEW = {
    "runner": (
        {
            "user_id": 3000,
            "run_id": 1000001,
            "sequence_id": 60,
            "timestamp_utc": 1_639_096_200_000,
            "distance_meters": 7,
        },
    )
}
# The one record at which 0.1.0 had crashed three times; three times it had tried two others, and was not yet sure.
POISONOUS = {"campaigns": b"campaigns.sends/1/91"}


def went_on(domain: str) -> TopologyDriver:
    """This version, after it has read to the end of what there was."""
    log = previous.topics(domain).as_log()
    return read_to_the_end(TopologyDriver(topology_of(domain), partitions=previous.PARTITIONS, log=log))


def read_to_the_end(driver: TopologyDriver) -> TopologyDriver:
    """With the new input."""
    for value in NEW.get(driver.topology.name, ()):
        driver.send(driver.topology.inputs[0], value)
    driver.run()
    return driver


def from_the_start(domain: str) -> TopologyDriver:
    """This version alone, on the same input, without what it would forward itself and what was set aside."""
    driver = TopologyDriver(topology_of(domain), partitions=previous.PARTITIONS)
    (topic,) = driver.topology.inputs
    for record in previous.topics(domain).of(topic):
        name = b"%b/%d/%d" % (topic.encode(), record.partition, record.offset)
        if SOURCE_HEADER not in dict(record.headers) and name != POISONOUS.get(domain):
            driver.log.append(topic, record.key, record.value, partition=record.partition)
    return read_to_the_end(driver)


def changelog(log: SimulatedLog, domain: str, since: dict[tuple[str, int], int]) -> list[tuple[bytes, bytes | None]]:
    """What was committed to the changelog from those ends on."""
    topic = f"{domain}.changelog"
    return [
        (entry.key or b"", entry.value)
        for partition in range(previous.PARTITIONS)
        for _, entry in log.read(topic, partition, since.get((topic, partition), 0))[0]
    ]


def paths(value: Any, at: str = "") -> set[str]:
    """The fields of a JSON value, by where they are; keys that begin with a digit, as those of a map do, stand for one."""
    if isinstance(value, dict):
        named = {f"{at}.{'*' if name[:1].isdigit() else name}": inner for name, inner in value.items()}
        return set(named).union(*(paths(inner, name) for name, inner in named.items()))
    if isinstance(value, list):
        return set().union(*(paths(inner, f"{at}[]") for inner in value))
    return set()


@pytest.mark.parametrize("domain", previous.DOMAINS)
def test_what_was_restored_is_what_was_written(domain: str) -> None:
    """Offsets, counts and states, and how careful the next owner has to be."""
    kept, topology = previous.topics(domain), topology_of(domain)
    for partition in range(previous.PARTITIONS):
        records = [(r.key or b"", r.value) for r in kept.of(topology.changelog) if r.partition == partition]
        last = {key: json.loads(value) for key, value in records if value is not None}
        driver = TopologyDriver(topology, partitions=previous.PARTITIONS, log=kept.as_log())
        restored = restored_from(topology, driver.codec, records)

        (topic,) = topology.inputs
        assert restored.progress.offsets_next[topic] == last[PROGRESS_KEY]["inputs"][topic]["next_offset"]
        assert restored.progress.topic_ids == {topic: kept.ids[topic]}
        assert restored.progress.counts == Counts(
            *map(last[PROGRESS_KEY]["counts"].get, ("accepted", "ignored", "forwarded", "dead"))
        )
        assert restored.progress.transactions == last[PROGRESS_KEY]["transactions"] > 0
        assert restored.quarantine == Quarantine(
            *map(last[QUARANTINE_KEY].get, ("level", "calm", "topic", "offset", "tries"))
        )
        states = restored.store.snapshot()
        assert {key: json.loads(driver.codec.encode_state(state)) for key, state in states.items()} == {
            key[1:].decode(): value for key, value in last.items() if key[:1] == STATE and value is not None
        }


def test_the_data_has_what_a_migration_can_get_wrong() -> None:
    """Dead letters, repartitioned records, and tasks whose owners crashed at one record alone: or the other tests show little."""
    kept = [previous.topics(domain) for domain in previous.DOMAINS]
    quarantines = [
        Quarantine.decode(r.value) for found in kept for r in found.records if r.key == QUARANTINE_KEY and r.value
    ]

    assert max(quarantine.tries for quarantine in quarantines) == 3
    assert {quarantine.level for quarantine in quarantines} == {0, 1, 2}
    for found in kept:
        assert any(record.topic.endswith(".dead") for record in found.records)
    assert any(SOURCE_HEADER in dict(r.headers) for found in kept for r in found.records if r.topic == "trades.trades")


@pytest.mark.parametrize("domain", previous.DOMAINS)
def test_a_quarantine_record_is_written_as_before(domain: str) -> None:
    """Byte for byte."""
    values = [r.value for r in previous.topics(domain).records if r.key == QUARANTINE_KEY and r.value]

    assert values
    assert [Quarantine.decode(value).encode() for value in values] == values


@pytest.mark.parametrize("domain", previous.DOMAINS)
def test_folding_goes_on_where_it_was_left(domain: str) -> None:
    """The states are those of a version that has read everything by itself; the log's crashes are remembered."""
    ours, alone = went_on(domain), from_the_start(domain)

    before = len([r for r in previous.topics(domain).records if r.topic.endswith(".dead")])
    (dead,) = ours.topology.dead.values()
    new = ours.records(dead)[before:]
    reasons = {headers["onefold-source"]: headers["onefold-reason"] for _, _, headers in new}
    assert reasons == (
        {POISONOUS[domain]: b"the processor crashed 3 times at this record"} if domain in POISONOUS else {}
    )
    for topic, fields in ours.topology.outputs.items():
        if fields:
            assert ours.table(topic) == alone.table(topic)
    states = ours.states()
    assert states == alone.states()
    assert states


@pytest.mark.parametrize("domain", previous.DOMAINS)
def test_the_release_before_can_read_what_this_one_writes(domain: str) -> None:
    """Kinds of records and their fields, as the release before took them."""
    kept = previous.topics(domain)
    written = changelog(went_on(domain).log, domain, kept.ends)
    assert {key[:1] for key, _ in written} == KINDS
    known: set[str] = set()
    for record in kept.of(f"{domain}.changelog"):
        if (record.key or b"")[:1] == STATE and record.value is not None:
            known |= paths(json.loads(record.value))

    for key, value in written:
        if key[:1] == STATE:
            assert value is None or paths(json.loads(value)) <= known
            continue
        assert value is not None
        body = json.loads(value)
        if key == QUARANTINE_KEY:
            assert set(body) <= QUARANTINE_MAY
        else:
            assert set(body) >= PROGRESS_NEEDS
            assert set(body["counts"]) <= COUNTS_MAY
            assert all(set(at) >= INPUT_NEEDS for at in body["inputs"].values())


def test_every_transaction_says_its_format() -> None:
    """In the progress, which every transaction writes."""
    written = changelog(went_on("runner").log, "runner", previous.topics("runner").ends)

    assert {json.loads(value or b"")["version"] for key, value in written if key == PROGRESS_KEY} == {ELASTIC}


def progress(**changes: Any) -> bytes:
    return json.dumps({**json.loads(Progress().encode()), **changes}).encode()


def restored_from(topology: Topology, codec: Codec, records: Sequence[tuple[bytes, bytes | None]]) -> Found:
    changelog: Any = SimpleNamespace(restore=lambda *, stable: iter(records))
    return Keeping(topology, codec, 0).restore(changelog)


def restored(*records: tuple[bytes, bytes | None]) -> Found:
    topology = topology_of("runner")
    return restored_from(topology, TopologyDriver(topology).codec, records)


@pytest.mark.parametrize("other", [b"c", b"sX", b"z"])
def test_a_newer_changelog_is_refused_whatever_it_holds(other: bytes) -> None:
    """Before anything of it is understood: its records may be of other kinds and have other values."""
    with pytest.raises(Refused) as refusal:
        restored((other, b"\x00"), (PROGRESS_KEY, progress(version=FORMAT + 1, inputs=None, counts=7)))

    assert str(refusal.value) == (
        f"the changelog was written by a newer Onefold, in format {FORMAT + 1}, and this one knows formats up to {FORMAT}: "
        "start the newer one again. See `onefold docs upgrade`"
    )


def test_a_task_refuses_a_newer_changelog_and_writes_nothing() -> None:
    """Above all it does not restore again and again, as after damage."""
    driver = TopologyDriver(topology_of("runner"))
    driver.log.append("runner.changelog", PROGRESS_KEY, progress(version=FORMAT + 1), partition=0)
    with raises(Refused, Code.NEWER_VERSION):
        driver.run()

    assert len(driver.records("runner.changelog")) == 1


def test_fields_that_a_later_release_adds_are_left_out() -> None:
    """Or it could not be gone back from."""
    at = {"runner.updates": {"topic_id": "x", "next_offset": 5, "order": [1]}}
    quarantine = {"level": 2, "calm": False, "why": "the power"}
    found = restored(
        (QUARANTINE_KEY, json.dumps(quarantine).encode()),
        (PROGRESS_KEY, progress(inputs=at, counts={"accepted": 3, "late": 1}, host="a")),
    )

    assert found.progress == Progress({"runner.updates": "x"}, {"runner.updates": 5}, Counts(accepted=3), 0)
    assert found.quarantine == Quarantine(2, False)


@pytest.mark.parametrize("version", [0, -1, "2", None, True, 1.5])
def test_a_version_that_is_none_is_damage(version: Any) -> None:
    """Not a newer release."""
    with raises(Corrupted, Code.CHANGELOG_WRONG):
        restored((PROGRESS_KEY, progress(version=version)))


@pytest.mark.parametrize(
    "value", [b"[]", b'"calm"', b"7", b"{", b"\xff", b'{"level": 3}', b'{"level": -1}', b'{"tries": true}']
)
def test_a_quarantine_record_that_is_none_is_damage(value: bytes) -> None:
    """It must not be taken for a clean one."""
    with raises(Corrupted, Code.CHANGELOG_WRONG):
        restored((QUARANTINE_KEY, value))


@pytest.mark.parametrize("key", [PROGRESS_KEY, QUARANTINE_KEY, b"z"])
def test_a_record_that_no_task_writes_is_damage(key: bytes) -> None:
    """A deleted one, or one of a kind that this format does not have."""
    with pytest.raises(Corrupted):
        restored((key, None if key != b"z" else b"{}"))


class Renamed(msgspec.Struct):
    """What is known of a runner, as a later version has it that has renamed a field."""

    sequence_id_latest: int
    tendency: str
    runs: list[Any]


@pytest.mark.promise("earlier-contracts")
@pytest.mark.parametrize("memory_bytes", [None, 0], ids=["in memory", "on disk"])
def test_a_state_that_this_version_cannot_read_is_refused(memory_bytes: int | None) -> None:
    """Before anything is folded, with the field: no new beginning helps."""

    def driver(topology: Topology, log: SimulatedLog | None = None) -> TopologyDriver:
        if memory_bytes is None:
            return TopologyDriver(topology, log=log)
        return DiskDriver(topology, memory_bytes=memory_bytes, log=log)

    before = driver(topology_of("runner"))
    for value in NEW["runner"]:
        before.send("runner.updates", value)
    before.run()
    later = driver(replace(topology_of("runner"), state=Renamed), before.log)
    with raises(Refused, Code.STATE_UNREADABLE, "sequence_id_latest"):
        later.task()
