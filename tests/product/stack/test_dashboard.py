"""The dashboard as a service of the stack."""

import urllib.request

from tests.support.command_line import Onefold
from tests.support.waiting import eventually


def test_the_stack_has_a_page_and_says_where(onefold: Onefold) -> None:
    """It shows what landed, is started again when it is killed, at the same place, and what verify said is on it."""
    onefold("produce", "runner.updates", "--count", "200", "--seed", "5")
    onefold.drained()
    onefold("verify", "runner")
    url = onefold.status()["dashboard"]
    assert url in onefold("status")
    onefold.kill("dashboard")

    def page(path: str) -> str:
        with urllib.request.urlopen(url + path, timeout=30) as answer:
            return str(answer.read().decode())

    eventually(lambda: "valid" in page("/"), 30, "the page shows the verdict")
    assert "runner.stats/" in page("/tables/runner/stats")
