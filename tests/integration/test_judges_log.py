"""What the judge reads of a real broker: every record once, whatever its client does."""

from contextlib import closing

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.error_codes import Code
from onefold.verify.log import Log
from onefold.verify.record import ReadRecord
from onefold.verify.verdict import CannotTell
from tests.support.infrastructure import delete_topics
from tests.support.processes import produce
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.promise("verify-once")]
TOPIC = "judges.log"


def test_a_record_is_handed_over_once_where_the_client_goes_back(client: dict[str, str]) -> None:
    """From the position of a verdict on; a client that begins at the beginning all the same makes no record a doubled one."""
    admin = AdminClient({**client})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    found: list[ReadRecord] = []
    try:
        produce(client, TOPIC, [(b"key", b"%d" % number) for number in range(10)])
        with closing(Log(client, [TOPIC])) as log:
            log.go_on({(TOPIC, 0): 5})
            eventually(lambda: log.stable_ends()[TOPIC, 0] == 11, 10, "they and a marker are there")
            log.read(log.stable_ends(), found.append)
            assert [record.value for record in found] == [b"%d" % number for number in range(5, 10)]
            log._consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
            produce(client, TOPIC, [(b"key", b"last")])
            eventually(lambda: log.stable_ends()[TOPIC, 0] == 13, 10, "the last one and its marker are there")
            log.read(log.stable_ends(), found.append)
            assert [record.value for record in found[5:]] == [b"last"]
            assert log.records == len(found)
    finally:
        delete_topics(admin, (TOPIC,))


def test_what_came_with_a_record_that_failed_is_read_as_well(client: dict[str, str]) -> None:
    """The client hands over many at once, and goes on behind them."""
    admin = AdminClient({**client})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    found: list[bytes | None] = []
    failing = [b"3"]

    def take(record: ReadRecord) -> None:
        if record.value in failing:
            failing.clear()
            raise CannotTell(Code.KAFKA_SILENT, "somebody does not answer")
        found.append(record.value)

    try:
        produce(client, TOPIC, [(b"key", b"%d" % number) for number in range(10)])
        with closing(Log(client, [TOPIC])) as log:
            eventually(lambda: log.stable_ends()[TOPIC, 0] == 11, 10, "they and a marker are there")
            with pytest.raises(CannotTell):
                log.read(log.stable_ends(), take)
            log.read(log.stable_ends(), take)
        assert found == [b"%d" % number for number in range(10)]
    finally:
        delete_topics(admin, (TOPIC,))


def test_an_input_that_is_compacted_is_known(client: dict[str, str]) -> None:
    """Also beside a time of retention."""
    admin, kept = AdminClient({**client}), f"{TOPIC}.kept"
    made = [NewTopic(TOPIC, 1, 1, config={"cleanup.policy": "compact,delete"}), NewTopic(kept, 1, 1)]
    for future in admin.create_topics(made).values():
        future.result()
    try:
        eventually(lambda: {TOPIC, kept} <= admin.list_topics(timeout=10).topics.keys(), 10, "the topics are there")
        with closing(Log(client, [TOPIC, kept])) as log:
            assert log.compacted([TOPIC, kept]) == [TOPIC]
            assert log.compacted([kept]) == []
    finally:
        delete_topics(admin, (TOPIC, kept))
