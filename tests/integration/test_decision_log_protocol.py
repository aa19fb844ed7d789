"""What a decision log promises, by the simulated one and by Kafka's."""

import random
from collections.abc import Callable

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from onefold.processor.core.decision_log import DecisionLog
from onefold.processor.core.errors import TooMuch
from onefold.processor.io.admin import connect
from onefold.processor.io.decision_log import KafkaDecisionLog
from onefold.processor.testing.decision_log import SimulatedDecisionLog
from onefold.processor.testing.log import SimulatedLog
from tests.support.waiting import eventually

TOPIC = "protocol.decisions"
#: More than the topic takes, however it is compressed.
LARGE = random.Random(7).randbytes(5_000)


#: The fixture of a broker is asked for in the middle, where nobody can see it beforehand.
KAFKA = pytest.param("kafka", marks=pytest.mark.broker)


@pytest.fixture(params=["simulated", KAFKA])
def log(request: pytest.FixtureRequest) -> DecisionLog:
    if request.param == "simulated":
        logs = SimulatedLog()
        logs.create(TOPIC, 1)
        log = SimulatedDecisionLog(logs, TOPIC, 0)
        log.refuses = lambda value: len(value) >= len(LARGE)
        return log
    client = request.getfixturevalue("client")
    name = f"{TOPIC}.{request.node.name.replace('[', '.').rstrip(']')}"
    admin = connect(client)
    admin.create_topics([NewTopic(name, 1, 1, config={"max.message.bytes": "2000"})])[name].result(30)
    return KafkaDecisionLog(name, 0, client)


def reads(log: DecisionLog, *expected: bytes) -> Callable[[], bool]:
    """It comes to these values, and to nothing else."""
    left = list(expected)

    def read() -> bool:
        for _, value in log.read(0.1):
            assert value == left.pop(0)
        return not left

    return read


def test_it_reads_from_where_it_is_sought(log: DecisionLog) -> None:
    """Also what it has fetched and not given."""
    log.seek(0)
    for number in range(10):
        log.append(b"%d" % number)
    eventually(lambda: log.read(0.1), 30, "what was appended is read")
    log.append(b"10")
    log.seek(4)
    eventually(reads(log, *(b"%d" % number for number in range(4, 11))), 30, "it reads from there on")
    log.close()


def test_a_read_says_what_was_not_taken(log: DecisionLog) -> None:
    log.seek(0)
    log.append(LARGE)

    def is_refused() -> bool:
        try:
            log.read(0.1)
        except TooMuch:
            return True
        return False

    eventually(is_refused, 30, "it is told that this was not taken")
    log.append(b"2")
    eventually(reads(log, b"2"), 30, "what came after it was")
    log.close()
