"""The load of a chaos run, where there is nobody to take it."""

from types import SimpleNamespace

import pytest

from onefold import kafka_client
from onefold.chaos import load
from onefold.chaos.load import Load
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE
from onefold.operate.errors import UserError
from onefold.operate.settings import Settings
from tests.support.coded import raises

NOBODY = Settings(bootstrap_servers="127.0.0.1:9")


class Slow:
    """A client that has not heard of the ends in time, and says so in its own way."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=[0], error=None)})

    def get_watermark_offsets(self, *_: object) -> None:
        return None

    def close(self) -> None:
        pass


@pytest.mark.parametrize("slow", [False, True], ids=["nobody is there", "it takes too long"])
def test_a_kafka_that_does_not_answer_is_one_sentence(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far the topics are, says where the events go on."""
    monkeypatch.setattr(load, "CALL_S", 0.2)
    if slow:
        monkeypatch.setattr(kafka_client, "consumer", Slow)
    with raises(UserError, Code.KAFKA_SILENT, "127.0.0.1:9") as caught:
        Load("runner", NOBODY, seed=1)
    assert caught.value.exit_code == UNAVAILABLE
