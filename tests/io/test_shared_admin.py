"""An admin client that is handed in is the one that is asked."""

from typing import Any

import pytest

from onefold.processor.io.decision_log import KafkaDecisionLog


class Asked(Exception):
    """It was this one."""


class Idle:
    """An admin client has a length, that of its queue: it is false while it has nothing to do."""

    def __len__(self) -> int:
        return 0

    def describe_topics(self, *_: Any, **__: Any) -> Any:
        raise Asked


def test_a_client_that_is_idle_is_used_all_the_same() -> None:
    admin: Any = Idle()
    log = KafkaDecisionLog("orders.decisions", 0, {"bootstrap.servers": "127.0.0.1:9"}, admin)
    with pytest.raises(Asked):
        log.identity()
    log.close()
