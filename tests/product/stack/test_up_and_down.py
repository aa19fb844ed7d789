"""The stack is stopped and started again, with another configuration: replicas of a pipeline, and an auditor."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from onefold.pipelines import PROJECT_FILE, PROJECT_VARIABLE
from tests.support.command_line import Onefold
from tests.support.told import asked, sums
from tests.support.waiting import eventually


@contextmanager
def orders_and_payments(onefold: Onefold, seed: int) -> Iterator[None]:
    """Of the example `shop`, at once; at the end all are in their topics."""
    producers = [
        onefold.start("produce", topic, "--count", "3000", "--seed", str(seed), "--rate", "1500")
        for topic in ("shop.orders", "shop.payments")
    ]
    yield
    assert [producer.wait(120) for producer in producers] == [0, 0]


@pytest.mark.long  # 50 s
@pytest.mark.promise("judged-joins")
def test_down_leaves_no_process_and_up_finds_the_data_and_replicas_of_a_pipeline(onefold: Onefold) -> None:
    """A pipeline has replicas by configuration alone: the same handler and tables, with the states and rows that it has come to
    as an elastic one; one of the two is killed.
    """
    with orders_and_payments(onefold, 4):
        onefold("produce", "runner.updates", "--count", "500", "--seed", "8")
    onefold.drained()
    onefold("verify", "shop")
    everything = "SELECT sum(changes), count(*), (SELECT count(*) FROM runner.stats) FROM shop.bills"
    (before,) = onefold.rows(everything)
    pids = [service["pid"] for service in onefold.status()["services"].values() if service["pid"]]
    onefold("down")
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), 10, "all processes are gone")
    assert not onefold.status()["running"]
    project = Path(onefold.environment[PROJECT_VARIABLE]) / PROJECT_FILE
    declared = project.read_text(encoding="utf-8")
    project.write_text(declared.replace("pipelines.shop]\n", "pipelines.shop]\nreplicas = 2\n"), encoding="utf-8")
    onefold("up", ONEFOLD_AUDITED="runner")
    processors = {name for name in onefold.services() if name.startswith("processor-shop-")}
    assert processors == {"processor-shop-1", "processor-shop-2"}
    assert onefold.rows(everything) == [before]

    with orders_and_payments(onefold, 6):
        eventually(lambda: onefold.rows(everything)[0] > before, 120, "they go on")
        os.kill(onefold.pid("processor-shop-1"), signal.SIGKILL)
    onefold.drained()
    assert len(onefold.status()["replicas"]["shop"]["replicas"]) == 2
    # It goes on from the verdict of the elastic time, over what was decided since: the order between the topics too.
    onefold("audit", "shop", "--once")
    assert "shop: valid" in onefold("verify", "shop", "--timeout", "180")
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

    assert "\n1 rows changed; " in onefold("rebuild", "runner", "--since", "1h")
    onefold("restart", "auditor-runner")
    eventually(lambda: says("valid"), 60, "it is mended")
    onefold("verify", "runner")
