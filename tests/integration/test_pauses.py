"""Pauses in a real Kafka: who follows them, since when, and what becomes of topics and records that are not as they should be."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from onefold import names, pauses
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.operate import pausing
from onefold.pauses import Pause, Pauses, Switches
from onefold.processor.core.errors import Refused
from onefold.processor.core.topology import Topology
from onefold.processor.io import admin
from onefold.replication import Replication
from onefold.telemetry import Health
from tests.support.coded import raises
from tests.support.infrastructure import delete_topics
from tests.support.processes import instance, opened, produce, records
from tests.support.told import Kept
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("one-pipeline-pauses")

PAUSE = Pause(1_764_000_000_000, "ann@here", "another rule")
NOWHERE = Settings(bootstrap_servers="127.0.0.1:9", postgres_dsn="postgresql://127.0.0.1:9/none")
SAID = "paused since 2025-11-24 16:00:00 UTC by ann@here: another rule"


class Followed:
    """What one service sees."""

    def __init__(self, client: dict[str, str], *names: str) -> None:
        self.pauses = Pauses(client, names)

    def until(self, name: str, wanted: Pause | None) -> None:
        def seen() -> bool:
            self.pauses.look(0.1)
            return self.pauses.knows(name) and self.pauses.of(name) == wanted

        eventually(seen, 30, f"{name}: {wanted}")


@pytest.fixture
def followed(client: dict[str, str], fresh_domain: Callable[..., Topology]) -> Iterator[tuple[Followed, str]]:
    name = fresh_domain("runner").name
    made = Followed(client, name)
    yield made, name
    made.pauses.close()


def test_a_pause_is_seen_and_its_end(client: dict[str, str], followed: tuple[Followed, str]) -> None:
    """By who follows already, and by who comes later; the first pause stays."""
    one, name = followed
    one.until(name, None)
    admin.write_pause(name, PAUSE, client)
    one.until(name, PAUSE)
    assert str(PAUSE) == SAID
    assert pauses.now(client, [name, "nobody"], 60) == ({name: PAUSE}, [])
    admin.write_pause(name, None, client)
    one.until(name, None)
    assert pauses.now(client, [name], 60) == ({}, [])


def test_a_topic_that_comes_later_is_followed(client: dict[str, str], fresh_domain: Callable[..., Topology]) -> None:
    """A pipeline of an older release has none. It is paused then as it was at the end of the topic, and never as before."""
    name = fresh_domain("runner").name
    topic = names.pauses_topic(name)
    delete_topics(admin.connect(client), (topic,))
    late = Followed(client, name)
    with closing(late.pauses):
        late.until(name, None)
        for pause in (PAUSE, None, PAUSE, None):
            admin.write_pause(name, pause, client)
        seen = set[Pause | None]()

        def followed() -> bool:
            late.pauses.look(0.1)
            seen.add(late.pauses.of(name))
            return topic in late.pauses._followed and late.pauses.knows(name) and name in late.pauses._read

        eventually(followed, 30, "the topic is found")
        late.until(name, None)
        admin.write_pause(name, PAUSE, client)
        late.until(name, PAUSE)


@pytest.mark.parametrize(
    "value",
    [
        b"not JSON",
        b"[]",
        b'{"version":9}',
        b'{"at_ms":"x","by":1,"reason":2}',
        b'{"at_ms":%d,"by":"a","reason":""}' % 10**20,
    ],
)
def test_a_record_that_cannot_be_read_pauses_too(
    client: dict[str, str], followed: tuple[Followed, str], value: bytes
) -> None:
    """And `onefold resume` ends it."""
    one, name = followed
    produce(client, names.pauses_topic(name), [(b"pause", value)])

    def pause() -> Pause | None:
        one.pauses.look(0.1)
        return one.pauses.of(name)

    eventually(pause, 30, "it pauses")
    assert "a record that cannot be read" in str(one.pauses.of(name))
    admin.write_pause(name, None, client)
    one.until(name, None)


def test_a_processor_halts_and_goes_on_where_it_was(
    client: dict[str, str], fresh_domain: Callable[..., Topology], tmp_path: Path
) -> None:
    """Within the same process; and one that is started meanwhile opens no task."""
    topology = fresh_domain("runner")
    first, second = tmp_path / "first", tmp_path / "second"
    value = b'{"user_id":1,"run_id":1,"timestamp_utc":%d,"sequence_id":%d,"distance_meters":1}'

    def outputs() -> int:
        return sum(len(records(client, topic)) for topic in topology.outputs)

    with instance(topology, client, first) as process:
        produce(client, topology.inputs[0], [(b"1", value % (1, 1))])
        eventually(outputs, 30, "it processes")
        admin.write_pause(topology.name, PAUSE, client)
        eventually(lambda: SAID in first.read_text(encoding="utf-8"), 30, "it halts")
        before = outputs()
        produce(client, topology.inputs[0], [(b"1", value % (2, 2))])
        with instance(topology, client, second, name="second"):
            eventually(lambda: SAID in second.read_text(encoding="utf-8"), 30, "the other one sees it too")
            assert (outputs(), opened(second).total()) == (before, 0)
        admin.write_pause(topology.name, None, client)
        eventually(lambda: outputs() > before, 60, "it goes on")
        assert process.poll() is None


def test_a_service_of_several_pipelines_is_told_what_has_changed(
    client: dict[str, str], fresh_domain: Callable[..., Topology]
) -> None:
    one, other = fresh_domain("runner").name, fresh_domain("campaigns").name
    told = Kept()
    with closing(Switches(client, [one, other], told)) as switches:
        switches.begin()
        assert switches.changed() == ([], [])
        admin.write_pause(one, PAUSE, client)
        began = eventually(lambda: [*switches.changed()[0]], 30, "the pause is seen")
        assert (began, one in switches, other in switches) == ([one], True, False)
        assert switches.sentences() == [f"{one} is {SAID}"]
        admin.write_pause(one, None, client)
        assert eventually(lambda: [*switches.changed()[1]], 30, "its end is seen") == [one]
        assert switches.sentences() == []


def test_who_is_paused_is_well_and_begins_anew_after_it() -> None:
    now = [0.0]
    health = Health(10.0, lambda: now[0])
    health.stands("runner", "", 0.0, "7 offsets wait")
    health.stands("bank", "", 0.0, "")
    now[0] = 20.0
    health.paused("runner", "runner is paused")
    assert health.trouble() == "bank: no progress for 20 s"
    assert (health.pauses(), health.quiet_s()) == (["runner is paused"], {"runner": 0.0, "bank": 20.0})
    health.stands("bank", "", 20.0, "")
    health.paused("runner", "")
    assert health.trouble() == ""
    now[0] = 31.0
    health.stands("bank", "", 31.0, "")
    assert health.trouble() == "runner: no progress for 11 s: 7 offsets wait"


def test_whether_a_pipeline_is_paused_is_unknown_while_no_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And `resume` does not say that it was not paused."""
    away = {"bootstrap.servers": "127.0.0.1:9"}
    assert pauses.now(away, ["runner"], 1) == ({}, ["runner"])
    monkeypatch.setattr(pausing, "_KNOWN_S", 1.0)
    for verb in (lambda: pausing.resume(["runner"], NOWHERE), lambda: pausing.pause(["runner"], NOWHERE, "")):
        with raises(UserError, Code.KAFKA_SILENT, "runner.pauses"):
            verb()


def test_who_may_not_make_the_topic_is_not_kept_from_its_work(
    client: dict[str, str], fresh_domain: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another team makes the topics."""
    topology = fresh_domain("runner")
    topic, make = names.pauses_topic(topology.name), admin.create_missing
    delete_topics(admin.connect(client), (topic,))

    def refused(kafka: AdminClient, missing: dict[str, Any], replication: Replication) -> list[str]:
        if list(missing) == [topic]:
            raise Refused(Code.KAFKA_RIGHT, f"topic {topic} could not be made")
        return make(kafka, missing, replication)

    monkeypatch.setattr(admin, "create_missing", refused)
    with capture_logs() as logged:
        assert admin.create_topics(topology, 2, client) == []
    assert [one["event"] for one in logged] == [f"runner cannot be paused: topic {topic} could not be made"]
