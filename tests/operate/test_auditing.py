"""What an auditor tells of itself: its figures, and whether it gets on, which is more than that it takes turns."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from onefold.operate import auditing
from onefold.status_file import Status
from onefold.telemetry import (
    AUDIT_BEHIND_S,
    AUDIT_CYCLE_S,
    AUDIT_FINDINGS,
    AUDIT_OUTPUTS,
    AUDIT_READ,
    AUDIT_ROWS,
    AUDIT_WAITING,
    Health,
)
from onefold.verify.audit.auditor import AuditStatus
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, Finding, Verdict
from tests.support.clock import Clock
from tests.support.told import Kept

pytestmark = pytest.mark.promise("unhealthy-is-said")

STALL_S = 60
LANDED = "the sink has written orders.out/0 up to 0 of 9"
ROWS = "not every row of the tables has been looked at yet"


class Told(Kept):
    """With the health that is asked for."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.health = Health(STALL_S, clock)

    def stands(self, domain: str, part: str, moved_at: float, why: str) -> None:
        self.health.stands(domain, part, moved_at, why)

    def faulty(self, domain: str, why: str) -> None:
        self.health.faulty(domain, why)


class Audit:
    """An auditor's turns, as it tells them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.told = Told(clock)
        self.kept: list[Verdict] = []
        self._teller = auditing.Teller("orders", self.told, Status(None), self._keep, clock)

    def _keep(self, verdict: Verdict) -> str:
        self.kept.append(verdict)
        return ""

    def turn(self, *, after_s: float = STALL_S / 2, **standing: Any) -> str:
        """Returns what is wrong."""
        self._clock.now += after_s
        self._teller.tell(AuditStatus(**standing))
        return self.told.health.trouble()


@pytest.fixture
def audit() -> Audit:
    return Audit(Clock())


def test_one_that_knows_gets_on(audit: Audit) -> None:
    """Also where nothing has come for hours, and there is no row."""
    level: dict[str, Any] = {"outcome": VALID, "reason": "all is right", "behind_s": 0.2, "cycle_s": 0.1}
    assert [audit.turn(**level) for _ in range(9)] == [""] * 9


def test_one_that_reads_what_was_there_gets_on(audit: Audit) -> None:
    """For minutes, while records come; and one that begins again and again, and never ends, does not."""
    assert [audit.turn(reads=number) for number in range(1, 10)] == [""] * 9
    assert [audit.turn(reads=number) for number in (1, 9)] == ["", ""]
    assert audit.turn(reads=9, troubled=True, reason="no") == "orders: no progress for 90 s: no"
    assert audit.turn(reads=10) == ""
    audit.turn(outcome=VALID, cycle_s=0.1)
    assert [audit.turn(reads=number) for number in range(1, 10)] == [""] * 9, "it had read that, and begins anew"


def test_one_that_waits_for_the_sink_to_land_compares_nothing(audit: Audit) -> None:
    """However much it reads, and however level it is with the processor."""
    found = [audit.turn(reason=LANDED, records=number, behind_s=3 - number) for number in range(3)]
    assert found == ["", "", f"orders: no progress for 90 s: {LANDED}"]


def test_one_that_looks_at_a_large_table_for_the_first_time_gets_on(audit: Audit) -> None:
    """While rows come round."""
    assert [audit.turn(reason=ROWS, rows=number, behind_s=0.2) for number in range(1, 10)] == [""] * 9
    found = [audit.turn(reason=ROWS, rows=9, behind_s=0.2) for _ in range(3)]
    assert found == ["", "", f"orders: no progress for 90 s: {ROWS}"]


@pytest.mark.parametrize(
    ("behind", "red"),
    [
        ((7200, 7230, 7260, 7290, 7320), True),
        ((7200, 7100, 7000, 6900, 6800), False),
        ((400, 300, 330, 250, 280, 200), False),  # a while in which nothing was compared is between any two
        ((100, 130, 110, 170, 120, 190, 140), True),  # less at times, and each time more than the time before
        ((2.5, 2.0, 1.5, 1.0, 0.5), True),  # level, and something else is in its way
    ],
)
def test_one_that_is_behind_gets_on_while_it_comes_nearer(audit: Audit, behind: tuple[float, ...], red: bool) -> None:
    audit.turn(outcome=VALID, cycle_s=0.1, behind_s=1.0)
    found = [
        audit.turn(reason="it is behind", cycle_s=0.1, behind_s=seconds, rows=n) for n, seconds in enumerate(behind)
    ]
    assert bool(found[-1]) is red, found


def test_one_that_cannot_see_does_not_get_on(audit: Audit) -> None:
    """Whatever it knew before."""
    away: dict[str, Any] = {"outcome": INVALID, "reason": "Kafka is away", "troubled": True, "cycle_s": 0.1}
    assert [bool(audit.turn(**away)) for _ in range(3)] == [False, False, True]


def test_a_verdict_that_stays_is_kept_now_and_then(audit: Audit) -> None:
    """Another verdict at once."""
    for _ in range(3):
        audit.turn(after_s=1.0, outcome=VALID, cycle_s=1.0)
    assert len(audit.kept) == 1
    audit.turn(after_s=1.0, outcome=INVALID, cycle_s=1.0)
    assert len(audit.kept) == 2
    audit.turn(after_s=60.0, outcome=INVALID, cycle_s=1.0)
    assert len(audit.kept) == 3


def test_the_code_of_what_it_cannot_see_is_logged(audit: Audit) -> None:
    with capture_logs() as lines:
        audit.turn(reason="Kafka is away", code="OF-201", troubled=True)
        audit.turn(outcome=VALID, reason="all is right", cycle_s=0.1)
    assert lines == [
        {"log_level": "info", "event": "audited", "domain": "orders", **told}
        for told in (
            {"outcome": UNKNOWN, "reason": "Kafka is away", "code": "OF-201"},
            {"outcome": VALID, "reason": "all is right"},
        )
    ]
    assert [verdict.code for verdict in audit.kept] == ["OF-201", ""]


def test_its_figures_are_told(audit: Audit) -> None:
    """And those of one that begins anew are added to them."""
    wrong = [Finding("extra row", "orders.rows"), Finding("missing row", "orders.rows")]
    audit.turn(records=9, judged=8, rows=7, waiting=5, behind_s=4.5, cycle_s=3.5, outcome=UNKNOWN)
    trouble = audit.turn(
        records=12, judged=10, rows=8, waiting=4, outcome=INVALID, findings=wrong, reason="2 differences"
    )
    audit.turn(records=1, judged=2, rows=3, outcome=INVALID, findings=wrong)
    audit.turn(records=2, judged=4, rows=6, behind_s=0.5, cycle_s=1.5, waiting=3, outcome=INVALID, findings=wrong)

    assert trouble == "orders: 2 differences; the first: kind extra row, where orders.rows"
    assert audit.told.counted == {AUDIT_READ: 13, AUDIT_OUTPUTS: 12, AUDIT_ROWS: 11}
    assert audit.told.gauges == {AUDIT_FINDINGS: 2, AUDIT_WAITING: 3, AUDIT_BEHIND_S: 0.5, AUDIT_CYCLE_S: 1.5}
    assert {verdict.outcome for verdict in audit.kept[1:]} == {INVALID}
