"""While the leader of a partition changes, librdkafka may answer with no error and no offset: nobody takes that for a number.

A broker that was killed and started again did it once in some hundred questions. The clients ask a real broker here, and its
answer is taken from them.
"""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaException
from confluent_kafka.admin import AdminClient

from onefold import kafka_client, kafka_offsets
from onefold.operate import positions
from onefold.processor.core.errors import Retriable
from onefold.processor.core.topology import Topology
from onefold.processor.io import admin
from onefold.proof.log import Log
from onefold.proof.verdict import CannotTell
from onefold.spark_sink.errors import Waiting
from onefold.spark_sink.kafka.topics import Ends, Topics

MakeDomain = Callable[..., Topology]
Client = dict[str, str]
UPDATES = "runner.updates"

ASKS: dict[str, tuple[Callable[[Client], object], type[Exception]]] = {
    "which topic it is": (lambda client: admin.identity(AdminClient({**client}), UPDATES, 0), Retriable),
    "an offset of a time": (lambda client: admin.offset_at(AdminClient({**client}), UPDATES, 0, 0), Retriable),
    "a stable end": (lambda client: admin.stable_end(AdminClient({**client}), UPDATES, 0), Retriable),
    "how far all is": (lambda client: positions.stable_ends(AdminClient({**client}), [UPDATES]), KafkaException),
    "the sink": (lambda client: Ends(client["bootstrap.servers"], {}).of([UPDATES]), Waiting),
    "what a topic of the sink holds": (
        lambda client: Topics(client["bootstrap.servers"], {}).reach([UPDATES]),
        Waiting,
    ),
    "the judge": (lambda client: Log(client, [UPDATES]).stable_ends(), CannotTell),
}


@pytest.mark.parametrize(("ask", "raised"), ASKS.values(), ids=ASKS)
def test_an_offset_that_nobody_told_is_asked_for_again(
    ask: Callable[[Client], object],
    raised: type[Exception],
    fresh_domain: MakeDomain,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh_domain("runner")
    ask(client)
    told = AdminClient.list_offsets

    def untold(self: AdminClient, asked: Any, **options: Any) -> dict[Any, "Future[Any]"]:
        answers = told(self, asked, **options)
        for place, answer in answers.items():
            answer.result()
            answers[place] = Future()
            answers[place].set_result(SimpleNamespace(offset=OFFSET_INVALID))
        return answers

    monkeypatch.setattr(AdminClient, "list_offsets", untold)
    with pytest.raises(raised, match=r"[Ll]eader"):
        ask(client)


def test_a_consumer_that_is_too_slow_for_the_bounds_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client returns None then."""
    with closing(kafka_client.consumer({"bootstrap.servers": "127.0.0.1:9"})) as consumer:
        monkeypatch.setattr(consumer, "get_watermark_offsets", lambda *_, **__: None)
        with pytest.raises(KafkaException, match="_TIMED_OUT"):
            kafka_offsets.bounds(consumer, (UPDATES, 0), 1.0)
