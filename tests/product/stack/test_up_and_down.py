"""The stack is stopped and started again, with another configuration."""

import psutil
import pytest

from tests.support.command_line import Onefold
from tests.support.told import asked, sums
from tests.support.waiting import eventually


@pytest.mark.long  # 40 s
@pytest.mark.promise("totals-never-change")
def test_down_leaves_no_process_and_up_finds_the_data(onefold: Onefold) -> None:
    """And the second start takes seconds."""
    onefold.drained()
    before = onefold.rows("SELECT count(*) FROM runner.stats")
    pids = [service["pid"] for service in onefold.services().values() if service["pid"]]
    onefold("down")
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10, "all processes are gone")
    assert not onefold.status()["running"]
    onefold("up", ONEFOLD_AUDITED="runner")
    onefold.drained()

    assert before == onefold.rows("SELECT count(*) FROM runner.stats")
    onefold("verify", "runner")


@pytest.mark.long  # 62 s
@pytest.mark.promise("audit-may-be-killed")
def test_auditors_are_services_that_are_killed_and_name_what_diverges(onefold: Onefold) -> None:
    """A row that somebody changes turns it red; a replay makes the row right, and the next auditor is green."""
    onefold("up", ONEFOLD_AUDITED="runner")
    onefold("produce", "runner.updates", "--count", "500", "--seed", "9")
    onefold.drained()

    def says(outcome: str) -> bool:
        return str(onefold.services()["auditor-runner"]["detail"]).startswith(f"{outcome}: ")

    port = int(onefold.status()["metrics"]["auditor-runner"].rpartition(":")[2])
    onefold.kill("auditor-runner")
    eventually(lambda: says("valid"), 60, "it has looked at everything")
    assert asked(port, "/healthz")[0] == 200

    one = "SELECT min(ctid) FROM runner.stats"
    assert onefold.rows(f"UPDATE runner.stats SET total_meters = total_meters + 1 WHERE ctid = ({one}) RETURNING 1")
    eventually(lambda: asked(port, "/healthz")[0] == 503, 10, "it is named")
    assert sums(port)["onefold_audit_findings"] == 1
    eventually(lambda: says("invalid"), 10, "status says so")
    verdict = "SELECT outcome, reason, findings FROM onefold.verdict WHERE domain = 'runner'"
    eventually(lambda: onefold.rows(verdict)[0][0] == "invalid", 10, "the dashboard has it")
    ((_, reason, findings),) = onefold.rows(verdict)
    assert "the first: kind different row, where runner.stats" in reason
    assert [one["where"] for one in findings["first"]] == ["runner.stats"], "with the row"
    assert "different row" in onefold("logs", "auditor-runner")

    assert "\n1 rows changed; " in onefold("replay", "runner", "--from", "1h")
    onefold("restart", "auditor-runner")
    eventually(lambda: says("valid"), 60, "it is mended")
    onefold("verify", "runner")
