"""What is no job, by its record."""

import json

import pytest

from onefold.jobs import topics
from onefold.jobs.protocols import Place
from onefold.processor.core.errors import Rejected
from onefold.processor.io import contracts


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
    with pytest.raises(Rejected, match="log_id has more than 1,000 bytes"):
        decoded(log_id="é" * (topics.LOG_ID_BYTES_MAX // 2 + 1))
