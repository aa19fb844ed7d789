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
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from onefold.error_codes import Code
from onefold.operate import positions
from onefold.processor.core.errors import Retriable
from onefold.processor.core.topology import Topology
from onefold.processor.io import admin
from onefold.proof.log import Log
from onefold.proof.verdict import CannotTell
from onefold.spark_sink.errors import Waiting
from onefold.spark_sink.kafka.topics import Ends, Topics
from tests.support.coded import raises

MakeDomain = Callable[..., Topology]
Client = dict[str, str]
UPDATES = "runner.updates"

ASKS: dict[str, tuple[Callable[[Client], object], type[Exception]]] = {
    "which topic it is": (lambda client: admin.identity(AdminClient({**client}), UPDATES, 0), Retriable),
    "an offset of a time": (lambda client: admin.offset_at(AdminClient({**client}), UPDATES, 0, 0), Retriable),
    "a stable end": (lambda client: admin.stable_end(AdminClient({**client}), UPDATES, 0), Retriable),
    "how far all is": (lambda client: positions.stable_ends(AdminClient({**client}), [UPDATES]), KafkaException),
    "the sink": (lambda client: Ends(client["bootstrap.servers"], {}).of([UPDATES]), Waiting),
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


def test_bounds_that_nobody_told_in_time_are_waited_for(
    fresh_domain: MakeDomain, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_domain("runner")
    with closing(Topics(client["bootstrap.servers"], {})) as topics:
        assert topics.reach([UPDATES])
        monkeypatch.setattr(topics, "_consumer", Untold(topics._consumer))
        with raises(Waiting, Code.TOPIC_UNREADABLE, f"{UPDATES}/0"):
            topics.reach([UPDATES])


class Untold:
    """A consumer that takes too long to say where a partition begins and ends, which it tells by None."""

    def __init__(self, consumer: Consumer) -> None:
        self.close = consumer.close

    def get_watermark_offsets(self, place: object, timeout: float) -> None:
        return None
