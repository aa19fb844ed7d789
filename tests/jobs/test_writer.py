"""What a worker's writer makes of Kafka's errors, without a broker."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onefold import kafka_client
from onefold.jobs.writer import RecordWriter
from onefold.processor.core.errors import Forbidden, ProcessorError, Retriable

CALLS = ("init_transactions", "begin_transaction", "produce", "commit_transaction")


class Failing:
    """A producer one of whose calls fails; of `produce` it is the record that fails, on its way."""

    def __init__(self, call: str, code: int) -> None:
        self.call, self.error, self.aborted = call, KafkaError(code), 0

    def _called(self, call: str) -> None:
        if call == self.call:
            raise KafkaException(self.error)

    def init_transactions(self, timeout_s: float) -> None:
        self._called("init_transactions")

    def begin_transaction(self) -> None:
        self._called("begin_transaction")

    def produce(self, *record: Any, on_delivery: Any, **more: Any) -> None:
        on_delivery(self.error if self.call == "produce" else None, None)

    def flush(self, timeout_s: float) -> int:
        return 0

    def commit_transaction(self, timeout_s: float) -> None:
        self._called("commit_transaction")

    def abort_transaction(self, timeout_s: float) -> None:
        self.aborted += 1


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Forbidden),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Forbidden),
        (KafkaError.PRODUCER_FENCED, Retriable),
        (KafkaError._TIMED_OUT, Retriable),
    ],
)
def test_a_right_that_is_missing_is_not_waited_for(
    call: str, code: int, kind: type[ProcessorError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes by no waiting. Whatever else fails is tried again."""
    failing = Failing(call, code)
    monkeypatch.setattr(kafka_client, "_Producer", lambda settings: failing)
    told = r"orders\.sent cannot be written to: |no right to write with the transactional ids onefold-work-\*"
    with pytest.raises(ProcessorError, match=told) as raised:
        RecordWriter({}, lambda: None).write("orders.sent", b"k", b"v", [])
    assert type(raised.value) is kind
    assert failing.aborted == 1
