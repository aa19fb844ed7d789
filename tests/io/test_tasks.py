"""What a task is made of."""

from typing import Any

import pytest

from onefold.error_codes import Code
from onefold.processor.core.abc import Codec
from onefold.processor.core.errors import Retriable
from onefold.processor.loading import topology_of
from onefold.processor.tasks import IN_MEMORY, Tasks
from tests.support.coded import raises


@pytest.mark.parametrize("replicas", [1, 2])
def test_without_a_codec_no_client_is_made(replicas: int) -> None:
    """To make a codec takes a question to the cluster. Nobody would close the clients of a task that was never made."""
    no_client: Any = {"bootstrap.servers": object()}  # no client can be made of it

    def codec() -> Codec:
        raise Retriable(Code.KAFKA_SILENT, "Kafka does not answer")

    admin: Any = None
    tasks = Tasks(topology_of("runner"), codec, no_client, admin, "a", 1, replicas, IN_MEMORY)
    with raises(Retriable, Code.KAFKA_SILENT):
        tasks.make(0, lambda: None)
