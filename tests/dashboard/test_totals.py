"""Metrics and health of the whole, as the dashboard tells them."""

import pytest

from onefold.dashboard.movement import Seen
from onefold.dashboard.totals import Totals
from onefold.operate import pipelines
from onefold.operate.settings import Settings
from onefold.telemetry import LAG_TO_FOLD, LAG_TO_LAND, METRICS
from tests.support.clock import Clock
from tests.support.site import Site
from tests.support.told import families

AWAY = "Kafka does not answer"


class Looked:
    """Totals, and what they see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipelines, "domains", lambda: ["orders"])
        self.clock = Clock()
        self.totals = Totals(Settings(), lambda: ({}, ""), self.clock)
        self.totals._told.health._clock = self.clock

    def trouble(self, to_fold: int | None, to_land: int | None, landed: int | None, problem: str = "") -> str:
        """After 40 more seconds: what is wrong, with what is seen then."""
        self.clock.now += 40
        self.totals.take({} if problem else {"orders": Seen(to_fold, to_land, landed)}, problem)
        return self.totals._told.health.trouble()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    return Looked(monkeypatch)


def test_what_is_drained_is_well(looked: Looked) -> None:
    assert [looked.trouble(0, 0, 5) for _ in range(4)] == [""] * 4


def test_events_that_nobody_folds(looked: Looked) -> None:
    """More and more of them come, and that is no progress."""
    told = [looked.trouble(waiting, 0, 5) for waiting in (0, 3, 4, 5)]
    assert told == ["", "", "", "orders to fold: nothing has moved for 80 s: 5 offsets wait"]
    assert looked.trouble(4, 0, 5) == ""


def test_a_backlog_that_grows_although_it_is_folded(looked: Looked) -> None:
    assert [looked.trouble(100 * n, 0, 10 * n) for n in range(1, 6)] == [""] * 5


def test_events_that_nobody_lands(looked: Looked) -> None:
    """While the processor goes on."""
    told = [looked.trouble(1, waiting, 5) for waiting in (0, 3, 6, 9)]
    assert told[-1] == "orders to land: nothing has moved for 80 s: 9 offsets wait"
    assert looked.trouble(1, 12, 6) == ""


def test_what_cannot_be_known_is_no_health(looked: Looked) -> None:
    looked.trouble(0, 0, 5)
    assert looked.trouble(None, None, None, AWAY) == ""
    assert looked.trouble(None, None, None, AWAY) == (
        "orders to fold: nothing has moved for 80 s: Kafka does not answer; "
        "orders to land: nothing has moved for 80 s: Kafka does not answer"
    )
    assert looked.trouble(None, None, None) == ""  # Kafka answers, and this pipeline has no topics
    shown = looked.totals._told.metrics().decode()
    assert f'{LAG_TO_FOLD}{{domain="orders"}} NaN' in shown
    looked.trouble(7, 3, 5)
    assert f'{LAG_TO_LAND}{{domain="orders"}} 3.0' in looked.totals._told.metrics().decode()


def test_they_are_on_the_page_s_own_address(site: Site) -> None:
    status, text = site.get("/metrics")
    assert (status, families(text)) == (
        200,
        {one.name: one.kind for one in METRICS if one.service in ("", "dashboard")},
    )
    assert site.get("/healthz") == (200, "everything moves, or has nothing to do\n")
    assert site.get("/metrics", Host="elsewhere.example")[0] == 400
