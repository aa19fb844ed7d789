"""The load of a chaos run, where there is nobody to take it."""

import pytest

from onefold.chaos import load
from onefold.chaos.load import Load
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE
from tests.support.coded import raises

NOBODY = Settings(bootstrap_servers="127.0.0.1:9")


def test_a_kafka_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far the topics are, says where the events go on."""
    monkeypatch.setattr(load, "CALL_S", 0.2)
    with raises(UserError, Code.KAFKA_SILENT, "127.0.0.1:9") as caught:
        Load("runner", NOBODY, seed=1)
    assert caught.value.exit_code == UNAVAILABLE
