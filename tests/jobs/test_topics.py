"""What is no job, by its record; and what becomes of topics that cannot be made."""

import json
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onefold.error_codes import Code
from onefold.jobs import topics
from onefold.jobs.protocols import Place
from onefold.processor.core.errors import Forbidden, ProcessorError, Rejected, Retriable
from onefold.processor.io import contracts
from tests.support.coded import raises

NOT_MADE = r"topic sheets\.jobs\.again could not be made: "


def decoded(**fields: object) -> str:
    value = json.dumps({"log_id": "a", "segment": 0, "entry": 7, **fields}).encode()
    queue = "sheets.jobs"
    job = topics.decode(queue, contracts.load()[queue], topics.again_of(queue), value)
    assert job.place == Place(0, 7)
    return job.log_id


def test_a_log_may_have_a_long_name() -> None:
    assert len(decoded(log_id="x" * topics.LOG_ID_BYTES_MAX)) == topics.LOG_ID_BYTES_MAX


def test_one_that_no_row_can_have_is_rejected() -> None:
    """Else the queue would come to it again and again, and to nothing behind it."""
    with raises(Rejected, Code.JOB_WRONG, "log_id", "1,000"):
        decoded(log_id="é" * (topics.LOG_ID_BYTES_MAX // 2 + 1))


class Refusing:
    """An administrator whose call fails."""

    def __init__(self, call: str, code: int) -> None:
        self.call, self.error = call, KafkaException(KafkaError(code))

    def list_topics(self, timeout: float) -> Any:
        if self.call == "list_topics":
            raise self.error
        return SimpleNamespace(topics={"sheets.jobs": SimpleNamespace(partitions=[0])})

    def describe_topics(self, topics: Any, request_timeout: float, **more: Any) -> dict[str, Future[None]]:
        future: Future[None] = Future()
        future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return {"sheets.jobs": future}

    def create_topics(self, missing: list[Any], request_timeout: float) -> dict[str, Future[None]]:
        futures: dict[str, Future[None]] = {topic.topic: Future() for topic in missing}
        for future in futures.values():
            future.set_exception(self.error)
        return futures


@pytest.mark.parametrize(
    ("call", "code", "kind", "said"),
    [
        ("create_topics", KafkaError.TOPIC_AUTHORIZATION_FAILED, Forbidden, NOT_MADE),
        ("create_topics", KafkaError.CLUSTER_AUTHORIZATION_FAILED, Forbidden, NOT_MADE),
        ("create_topics", KafkaError.INVALID_REPLICATION_FACTOR, Retriable, NOT_MADE),
        ("list_topics", KafkaError._TRANSPORT, Retriable, "the cluster does not answer: "),
    ],
)
def test_a_right_that_is_missing_is_not_waited_for(call: str, code: int, kind: type[ProcessorError], said: str) -> None:
    admin: Any = Refusing(call, code)
    with pytest.raises(ProcessorError, match=said) as raised:
        topics.create(admin, "sheets.jobs")
    assert type(raised.value) is kind
