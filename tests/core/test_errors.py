"""Errors with codes: what handlers may make of `Rejected`, and what a pickle keeps."""

import copy
import pickle
from collections.abc import Iterator

import pytest

from onefold import Rejected
from onefold.config.errors import UserError
from onefold.error_codes import Code, CodedError
from onefold.processor.core.errors import Refused, Retriable
from onefold.spark_sink.errors import Overlap
from onefold.verify.loading import UnknownDomain
from onefold.verify.verdict import CannotTell


class NoFunds(Rejected):
    """As a pipeline may have it, with facts of its own and no call of `Rejected.__init__`."""

    def __init__(self, account: str, missing: int) -> None:
        self.account, self.missing = account, missing


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Rejected("no funds"), "no funds"),
        (Rejected(ValueError("no funds")), "no funds"),
        (Rejected(5), "5"),
        (Rejected(), ""),
        (NoFunds("a", 7), "('a', 7)"),
    ],
)
def test_a_handler_may_reject_with_anything(error: Rejected, reason: str) -> None:
    assert str(error) == reason
    assert error.code is Code.REJECTED


def errors() -> Iterator[CodedError]:
    yield Rejected("a reason", Code.VALUE_UNREADABLE)
    yield UserError(Code.TOPIC_MISSING, "no topic", "Make it.", 3)
    yield Overlap({("t", 0): 7})
    for kind in (Retriable, Refused, CannotTell, UnknownDomain, Retriable):
        yield kind(Code.KAFKA_SILENT, "Kafka does not answer")


@pytest.mark.parametrize("error", [*errors()], ids=lambda error: type(error).__name__)
def test_a_pickle_and_a_copy_keep_code_and_sentence(error: CodedError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (again.code, str(again), vars(again)) == (error.code, str(error), vars(error))
    assert str(error.code) in repr(error)
