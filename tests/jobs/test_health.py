"""Whether workers get on: by the rows of the jobs, which all of them share."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.jobs.pending import PostgresPending
from onefold.stack.ports import free_ports
from onefold.telemetry import HEALTHY, JOB_S, JOBS, PAUSED, WORKER_WAITS
from tests.support.job_project import Project
from tests.support.model_effect import job_of
from tests.support.told import asked, sums
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("unhealthy-is-said")

TIMEOUT_S = 30.0


@pytest.fixture
def pending(jobs_database: str) -> Iterator[PostgresPending]:
    made = PostgresPending(jobs_database, "test", "orders")
    yield made
    made.close()


def claimed(pending: PostgresPending, job: Any) -> int:
    pending.add(job)
    row = pending.find(job)
    assert row is not None
    increment = pending.claim(row, TIMEOUT_S)
    assert increment is not None
    return increment


def test_how_long_nothing_has_moved(pending: PostgresPending) -> None:
    """Not while somebody is at work, whoever that is; and not because of what only a person can help."""
    job, queue = job_of("a", 1), job_of("a", 1).queue

    def quiet_s() -> float:
        return pending.quiet_s(queue, TIMEOUT_S)

    age = "UPDATE onefold.pending SET created = created - interval '100 s', modified = modified - interval '100 s'"
    assert quiet_s() == 0
    pending.add(job)
    pending._connection.execute(age)
    assert 100 <= quiet_s() < 130
    increment = claimed(pending, job)
    assert quiet_s() < 30
    pending._connection.execute(age)
    assert quiet_s() >= 200
    assert pending.release(job, increment, reason="ValueError: not today")
    assert quiet_s() >= 200
    assert pending.finish(job_of("b", 1), claimed(pending, job_of("b", 1)), None)
    assert pending.remove(job_of("b", 1))
    assert quiet_s() < 30
    assert pending.release(job, claimed(pending, job), reason="refused: nobody has this address")
    pending._connection.execute("UPDATE onefold.done SET done_at = done_at - interval '100 s'")
    assert quiet_s() == 0


@pytest.mark.long  # 12 s
def test_a_job_that_never_ends(tmp_path: Path, client: dict[str, str], database: str) -> None:
    """Well while jobs are done, and when there are none; red when one hangs, though the process lives."""
    project, port = Project(tmp_path, client, database), free_ports(1)[0]
    worker: subprocess.Popen[bytes] = project.onefold.start(
        "work", project.name, ONEFOLD_METRICS_PORT=str(port), ONEFOLD_STALL_S="10"
    )
    try:
        project.put([("a", 1, "hello"), ("b", 1, "hello")])
        project.until_sent(project.key("a", 1), project.key("b", 1))
        told = {JOBS: 2, f"{JOB_S}_count": 2, WORKER_WAITS: 0, HEALTHY: 1}
        eventually(lambda: sums(port).items() >= told.items(), 30, f"it tells {told}")
        (project.sent / "held").touch()
        project.put([("a", 2, "hello")])
        eventually(lambda: asked(port, "/healthz")[0] == 503, 60, "it is red")
        assert f"{project.queue}: no progress for " in asked(port, "/healthz")[1]
        (project.sent / "held").unlink()
        eventually(lambda: asked(port, "/healthz")[0] == 200, 60, "it is well again")
    finally:
        worker.kill()
        worker.wait(10)


@pytest.mark.promise("one-pipeline-pauses")
@pytest.mark.long  # 17 s
def test_a_paused_pipeline_has_no_job_done(tmp_path: Path, client: dict[str, str], database: str) -> None:
    """The job at hand is handed over at its checkpoint; the process stays, is well, and goes on when the pause ends."""
    project, port = Project(tmp_path, client, database), free_ports(1)[0]
    worker: subprocess.Popen[bytes] = project.onefold.start(
        "work", project.name, ONEFOLD_METRICS_PORT=str(port), ONEFOLD_STALL_S="10"
    )
    try:
        project.put([("a", 1, "hello")])
        project.until_sent(project.key("a", 1))
        project.onefold("pause", project.name)
        eventually(lambda: "is paused since " in asked(port, "/healthz")[1], 30, "it halts")
        project.put([("a", 2, "hello")])
        began = time.monotonic()
        eventually(lambda: time.monotonic() > began + 11, 30, "it would be unhealthy by now")
        assert asked(port, "/healthz")[0] == 200
        assert project.mails() == [project.key("a", 1)]
        project.onefold("resume", project.name)
        project.until_sent(project.key("a", 2))
        assert sums(port)[PAUSED] == 0
    finally:
        worker.kill()
        worker.wait(10)
