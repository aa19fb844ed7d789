"""Which records `onefold consume` prints, and how, over a topic in memory; test_consume.py has a broker."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from onefold.cli.main import run
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, INTERRUPTED, OK, UNAVAILABLE, USAGE
from onefold.operate import consuming
from onefold.operate.reading import Bounds, LogReader, Place, Silent, Stored
from tests.support.coded import code_of

TOPIC = "campaigns.sends"


class Topic(LogReader):
    """Committed records by partition, each with the least offset that retention has left."""

    records_of: dict[int, list[Stored]]
    starts: dict[int, int]
    come: list[Stored]

    def __init__(self, client: Any, patience_s: float) -> None:
        super().__init__({}, patience_s)

    def partitions(self, topic: str) -> int:
        return len(self.records_of) if topic == TOPIC else 0

    def bounds(self, topic: str, partition: int, again: bool = False) -> Bounds:
        if again:
            if not self.come:
                raise KeyboardInterrupt
            self.records_of[0].append(self.come.pop(0))
        # A transaction's marker lies behind its record.
        ends = [record.place.offset + 2 for record in self.records_of[partition]]
        return Bounds(self.starts.get(partition, 0), max(ends, default=0))

    def offset_at(self, topic: str, partition: int, at_ms: int) -> int | None:
        return next((one.place.offset for one in self.records_of[partition] if one.at_ms >= at_ms), None)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Stored]:
        assert start >= self.starts.get(partition, 0)
        yield from (one for one in self.records_of[partition] if start <= one.place.offset < end)


def sent(partition: int, offset: int, at_ms: int, campaign: int = 1, **more: Any) -> Stored:
    value = {"id": campaign, "email": "A", "subject": "é", "sent": at_ms, "date": "2021-12-01 12:00:00", **more}
    return Stored(Place(TOPIC, partition, offset), at_ms, b"k%d" % campaign, json.dumps(value).encode(), ())


@pytest.fixture(autouse=True)
def topic(monkeypatch: pytest.MonkeyPatch) -> type[Topic]:
    """Two partitions, whose records came by turns."""
    Topic.records_of = {
        0: [sent(0, 2 * number, 20 * number, campaign=number % 2) for number in range(200)],
        1: [sent(1, 2 * number, 20 * number + 10, campaign=2) for number in range(5, 100)],
    }
    Topic.starts, Topic.come = {1: 10}, []
    monkeypatch.setattr(consuming, "LogReader", Topic)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    return Topic


def consumed(capsys: pytest.CaptureFixture[str], *words: str, code: int = OK) -> list[dict[str, Any]]:
    assert run(["consume", TOPIC, *words]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def times(records: list[dict[str, Any]]) -> list[int]:
    return [record["at_ms"] for record in records]


def test_a_record_is_a_line_with_its_place_and_its_decoded_value(capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = consumed(capsys, "--limit", "1")
    value = record.pop("value")
    assert record == {"topic": TOPIC, "partition": 0, "offset": 398, "at_ms": 3980, "key": "k1"}
    assert (value["id"], value["subject"], value["sent"]) == (1, "é", 3980)


def test_the_newest_of_all_partitions_come_in_the_order_of_their_times(capsys: pytest.CaptureFixture[str]) -> None:
    Topic.records_of[0] = Topic.records_of[0][:100]
    assert times(consumed(capsys, "--limit", "4")) == [1960, 1970, 1980, 1990]
    assert len(consumed(capsys)) == 50


def test_without_a_limit_all_records_come(capsys: pytest.CaptureFixture[str]) -> None:
    """One partition after the other; what retention has removed is not asked for."""
    found = consumed(capsys, "--limit", "0")
    assert [record["partition"] for record in found] == [0] * 200 + [1] * 95


def test_a_key_is_that_of_the_record_or_of_the_state(capsys: pytest.CaptureFixture[str]) -> None:
    """However far back its last records lie."""
    Topic.records_of[0] += [sent(0, 400 + 2 * number, 4000, campaign=7) for number in range(20_000)]
    by_record = consumed(capsys, "--key", "k0", "--limit", "2")
    assert times(by_record) == [3920, 3960]
    assert consumed(capsys, "--key", "0", "--limit", "2") == by_record
    assert consumed(capsys, "--key", "nobody") == []


def test_since_a_time_nothing_older_comes(capsys: pytest.CaptureFixture[str]) -> None:
    """Also a record behind it with an older time, as a producer may set it."""
    Topic.records_of[0].append(sent(0, 400, 15))
    assert times(consumed(capsys, "--since", "1970-01-01T00:00:03.950", "--limit", "0")) == [3960, 3980]
    assert times(consumed(capsys, "--since", "1970-01-01T00:00:03.950")) == [3960, 3980]


def test_what_comes_is_followed_until_the_user_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    Topic.come = [sent(0, 400, 5000, campaign=1), sent(0, 402, 5010, campaign=4)]
    Topic.records_of = {0: Topic.records_of[0]}
    words = ("--follow", "--limit", "1", "--key", "k1")
    assert times(consumed(capsys, *words, code=INTERRUPTED)) == [3980, 5000]


def test_a_record_that_cannot_be_decoded_has_its_bytes_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in it moves a terminal's cursor, and the line is JSON all the same."""
    strange = Stored(
        Place(TOPIC, 0, 400),
        9000,
        None,
        "\x1b[A\x7f\x9b \U000e0001\N{RIGHT-TO-LEFT OVERRIDE}".encode(),
        (("h", b"\xff"),),
    )
    Topic.records_of[0].append(strange)
    assert run(["consume", TOPIC, "--limit", "1"]) == OK
    told = capsys.readouterr().out
    assert told.rstrip("\n").isprintable()
    record = json.loads(told)
    assert (record["key"], record["value"], record["headers"]) == (None, None, {"h": "\\xff"})
    assert record["raw"] == strange.value.decode() if strange.value else False
    assert "not JSON" in record["problem"]


def test_a_topic_of_no_pipeline_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", "nobodys.topic"]) == USAGE
    assert code_of(capsys.readouterr().err, "nobodys.topic", "onefold ls") is Code.PIPELINE_UNKNOWN


def test_a_topic_that_kafka_lacks_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that Onefold keeps for a pipeline can be read too."""
    assert run(["consume", "campaigns.changelog"]) == FAILED
    assert code_of(capsys.readouterr().err, "campaigns.changelog") is Code.TOPIC_MISSING


def test_a_silent_kafka_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def silent(*asked: Any) -> int:
        raise Silent("Kafka does not answer: it is away")

    monkeypatch.setattr(Topic, "partitions", silent)
    assert run(["consume", TOPIC]) == UNAVAILABLE
    assert code_of(capsys.readouterr().err, "it is away") is Code.KAFKA_SILENT
