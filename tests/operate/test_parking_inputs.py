"""`check --servers`: a pipeline that parks keys has no compacted inputs."""

import pytest

from onefold.config.guarantee import TopicRole, TopicSettings
from onefold.operate.servers import _parking
from tests.support.desk import EVENTS, TAKEN, Program

pytestmark = pytest.mark.promise("parked-keys")


@pytest.mark.parametrize(
    ("on_dead_letter", "policy", "wrong"),
    [
        ("park", "compact,delete", True),
        ("park", "delete", False),
        ("pass", "compact", False),
    ],
)
def test_a_pipeline_that_parks_keys_and_a_compacted_input(on_dead_letter: str, policy: str, wrong: bool) -> None:
    topics = [
        TopicSettings(EVENTS, TopicRole.INPUT, 1, {"cleanup.policy": policy}),
        TopicSettings(TAKEN, TopicRole.OUTPUT, 1, {"cleanup.policy": "compact"}),
    ]
    said = [*_parking([Program().topology(on_dead_letter)], topics)]
    assert [f"its input {EVENTS} is compacted" in one for one in said] == [True] * wrong
