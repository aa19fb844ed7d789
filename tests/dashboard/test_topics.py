"""The topics of a pipeline: their partitions and their newest records, decoded, as a person reads them."""

import json
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from onefold.config.guarantee import Role, Topic
from onefold.dashboard import topics
from onefold.processor.core.topology import Topology
from tests.support.floor import Floor
from tests.support.processes import produce
from tests.support.site import READERS, LivePage, Site

HOSTILE = '<img src=x onerror="document.title=1">\u202e'
SHOWN = HOSTILE.replace("\u202e", "\\u202e")


@pytest.fixture
def topology(fresh_domain: Callable[..., Topology], client: dict[str, str]) -> Topology:
    """Runner with 60 updates, and one that cannot be decoded."""
    made = fresh_domain("runner", 2)
    produce(client, "runner.updates", [(b"1", b'{"run_id": 1}')] * 60, partition=0)
    producer = Producer(client)
    producer.produce(
        "runner.updates", HOSTILE.encode(), b"{", partition=1, headers={"from": HOSTILE.encode(), "none": None}
    )
    assert producer.flush(20) == 0
    return made


def test_the_topics_of_a_pipeline(page: LivePage, floor: Floor, topology: Topology) -> None:
    """From its page to the list, and from there to the records; on a phone too."""
    page.open("/pipelines/runner")
    page.soon(".way", "runner.updates")
    assert (
        page.ask("document.querySelector('.box.topic a').getAttribute('href')")
        == "/pipelines/runner/topics/runner.updates"
    )
    for scheme, width in READERS:
        page.emulate(width=width, prefers_color_scheme=scheme)
        page.open("/pipelines/runner/topics")
        page.soon("main", "runner.changelog")
        assert "input" in page.text("tbody tr")
        assert "for ever" in page.text("tbody tr")
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.barriers() == []
        page.open("/pipelines/runner/topics/runner.updates")
        page.soon("h1", "runner.updates")
        assert page.ask("document.querySelectorAll('.story tbody tr').length") == topics.RECORDS_MAX
        newest = page.text(".story tbody tr")
        assert f"{SHOWN}" in newest
        assert "It cannot be decoded" in newest
        assert page.ask("document.querySelectorAll('main img').length") == 0
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.barriers() == []


def test_a_record_of_a_table_has_a_link_to_its_row(
    site: Site, floor: Floor, fresh_domain: Callable[..., Topology], client: dict[str, str]
) -> None:
    fresh_domain("campaigns")
    value = {
        "id": 4,
        "email": "A",
        "subject": "B",
        "date_1": "2021-12-01 12:00:00",
        "sent_1": 7,
        "sends": 1,
        "changes": 1,
    }
    value |= {"date_2": None, "sent_2": None, "sent_rest": None}
    produce(client, "campaigns.totals", [(b"4", json.dumps(value).encode())], partition=0)
    status, text = site.get("/pipelines/campaigns/topics/campaigns.totals")
    assert status == 200
    assert '<a href="/explain/campaigns/totals?id=4">0/0</a>' in text


def test_what_is_not_there_is_a_sentence(site: Site) -> None:
    for path, status, said in (
        ("/pipelines/nothing/topics", 404, "There is no pipeline nothing."),
        ("/pipelines/nothing/topics/x", 404, "There is no pipeline nothing."),
        ("/pipelines/runner/topics/bank.transfers", 404, "runner has no topic bank.transfers."),
        ("/pipelines/runner/topics/%3Cb%3E", 404, "runner has no topic &lt;b&gt;."),
    ):
        found, text = site.get(path)
        assert (found, said in text) == (status, True), text
    assert "Traceback" not in site.said()


def test_a_long_value_is_cut_and_a_record_that_is_none_is_shown_as_bytes() -> None:
    found = {"partition": 0, "offset": 5, "at_ms": 7, "key": None, "value": {"id": 1, "text": "x" * 9000}}
    record = topics._record(found, ("id", "missing"))
    assert len(record.value) == topics.TEXT_MAX + 1
    assert record.row == {"id": "1"}
    spoilt = topics._record({**found, "value": None, "raw": "{", "problem": "no JSON"}, ("id",))
    assert (spoilt.value, spoilt.problem, spoilt.row) == ("{", "no JSON", None)
    assert topics._record({**found, "value": None}, ("id",)).value == "null"


@pytest.mark.slow  # Kafka is waited for
def test_a_kafka_that_does_not_answer_is_a_sentence(database: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    away = {"ONEFOLD_POSTGRES_DSN": database, "ONEFOLD_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    site = Site(tmp_path_factory.mktemp("away"), away)
    try:
        status, text = site.get("/pipelines/runner/topics")
        assert (status, "Kafka" in text) == (503, True)
        status, text = site.get("/pipelines/runner/topics/runner.updates")
        assert (status, "Kafka" in text) == (503, True)
    finally:
        site.stop()


def test_retention_is_said_as_a_person_reads_it() -> None:
    def kept(**config: str) -> str:
        given = {name.replace("_", "."): value for name, value in config.items()}
        return topics.Shown("t", "input", Topic("t", Role.INPUT, 1, given)).retention

    assert kept(cleanup_policy="compact") == "compacted"
    assert kept(retention_ms="-1") == "for ever"
    assert kept(retention_ms="3600000", retention_bytes="1000") == "1 h, at most 1,000 bytes a partition"
    assert kept() == topics.Shown("t", "input").retention == ""
