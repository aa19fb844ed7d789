"""`onefold work` as a process, on a real broker and a real Postgres."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from onefold import status_file
from onefold.error_codes import Code
from onefold.exit_codes import REFUSED
from tests.support.coded import code_of
from tests.support.job_project import Project
from tests.support.waiting import eventually


@pytest.fixture
def project(tmp_path: Path, client: dict[str, str], database: str) -> Project:
    return Project(tmp_path, client, database)


@pytest.fixture
def workers(project: Project) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Those that a test starts; killed at its end."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait(10)


def test_jobs_are_done_in_order_and_shown(project: Project, workers: list["subprocess.Popen[bytes]"]) -> None:
    """Without a sink that would have made the tables; and one that is refused keeps nobody waiting but its own log.
    Asked to stop, it ends with 0.
    """
    project.put([("a", 1, "hello"), ("b", 1, "refuse"), ("a", 2, "again"), ("b", 2, "never"), ("c", 1, "hello")])
    workers.append(project.onefold.start("work", project.name))
    project.until_sent(project.key("a", 1), project.key("a", 2), project.key("c", 1))
    sent = project.mails()
    assert sent.index(project.key("a", 1)) < sent.index(project.key("a", 2))
    assert len(sent) == 3

    def jobs() -> dict[str, object]:
        found: dict[str, object] = project.onefold.status()["jobs"][project.queue]
        return found

    eventually(lambda: (jobs()["done"], jobs()["deferred"]) == (3, 2), 30, "all are shown")
    shown = jobs()
    assert (shown["pending"], shown["active"]) == (2, 0)
    assert (shown["oldest"], shown["reason"]) == ("b 0/1", "refused: nobody has this address")
    text = project.onefold("status")
    assert re.search(
        rf"jobs of {project.queue} +2 pending, 0 active, 2 deferred, 3 done; b 0/1 waits for \d+ s: refused: nobody",
        text,
    )
    status = status_file.read(Path(project.onefold.environment["ONEFOLD_STATUS_FILE"]))
    assert status["state"] == "running"
    assert "3 done" in status["detail"]

    workers[0].send_signal(signal.SIGTERM)
    assert workers[0].wait(30) == 0
    status = status_file.read(Path(project.onefold.environment["ONEFOLD_STATUS_FILE"]))
    assert (status["state"], status["detail"]) == ("stopped", "asked to stop")


def test_a_killed_workers_job_is_taken_over(project: Project, workers: list["subprocess.Popen[bytes]"]) -> None:
    """By another one, after the time-out; all others are done meanwhile, and each once."""
    project.onefold.environment["ONEFOLD_JOB_TIMEOUT_S"] = "3"
    (project.sent / "held").touch()
    project.put([("a", 1, "hello"), ("a", 2, "hello"), ("b", 1, "hello")])
    workers.append(project.onefold.start("work", project.name))
    eventually(lambda: project.onefold.status()["jobs"].get(project.queue, {}).get("active"), 60, "it is at work")
    workers[0].kill()
    workers[0].wait(10)
    (project.sent / "held").unlink()
    workers.append(project.onefold.start("work", project.name, "--instance", "2"))
    project.until_sent(project.key("a", 1), project.key("a", 2), project.key("b", 1))

    assert len(project.mails()) == 3
    project.until_done(3)


def test_what_is_missing_is_requeued(project: Project, workers: list["subprocess.Popen[bytes]"]) -> None:
    """What was taken away, and in its log all that came after it; a second time nothing."""
    project.put([("a", 1, "x"), ("a", 2, "x"), ("a", 3, "x"), ("b", 1, "x")])
    workers.append(project.onefold.start("work", project.name))
    keys = [project.key("a", entry) for entry in (1, 2, 3)]
    project.until_sent(*keys, project.key("b", 1))
    queue = project.queue
    project.until_done(4)
    assert project.onefold("jobs", "requeue", project.name, "--since", "2020-01-01") == f"{queue}: nothing is missing\n"
    mails = project.sent / "mails"
    mails.write_text(
        "".join(line for line in mails.read_text(encoding="utf-8").splitlines(True) if keys[1] not in line),
        encoding="utf-8",
    )

    since = ("jobs", "requeue", project.name, "--since", "2020-01-01")
    dry = project.onefold(*since, "--dry-run", code=1)
    assert dry.splitlines() == [
        f"{queue} a 0/2: what it did is not there any more",
        f"{queue} a 0/3: an earlier one of its log has to be done",
        f"{queue}: 2 are missing",
    ]
    assert json.loads(project.onefold(*since, "--dry-run", "--json", code=1))["missing"][queue][0] == {
        "log": "a", "segment": 0, "entry": 2, "why": "what it did is not there any more"
    }  # fmt: skip
    assert project.onefold("jobs", "requeue", project.name, "--since", "2999-01-01") == f"{queue}: nothing is missing\n"
    assert (
        project.onefold("jobs", "requeue", project.name, "--since", "2020-01-01").splitlines()[-1]
        == f"{queue}: 2 were requeued"
    )
    project.until_sent(keys[1])
    project.until_done(4)
    sent = project.mails()
    assert [sent.count(key) for key in keys] == [1, 1, 2]
    assert sent.count(project.key("b", 1)) == 1
    assert project.onefold("jobs", "requeue", project.name, "--since", "2020-01-01") == f"{queue}: nothing is missing\n"


def test_what_is_wrong_is_one_sentence(project: Project) -> None:
    (project.folder / f"{project.name}_mails.py").write_text("mails = 7\n", encoding="utf-8")
    failed = project.onefold.run("work", project.name)
    assert failed.returncode == 2
    assert b"pyproject.toml: jobs." in failed.stdout
    assert b"which has no ordered, and is no function that makes an effect" in failed.stdout
    (project.folder / f"{project.name}_mails.py").write_text("", encoding="utf-8")
    assert b"has no mails" in project.onefold.run("work", project.name).stdout
    failed = project.onefold.run("jobs", "requeue", project.name, "--since", "yesterday")
    assert (failed.returncode, code_of(failed.stderr.decode(), "yesterday")) == (2, Code.ARGUMENT_WRONG)
    failed = project.onefold.run("work", "runner", ONEFOLD_PROJECT=str(project.onefold.home))
    assert failed.returncode == 2
    assert code_of(failed.stderr.decode(), "runner") is Code.NO_JOBS


def test_a_login_that_postgresql_refuses_at_the_start_is_for_a_person(project: Project, database: str) -> None:
    refused = project.onefold.run("work", project.name, ONEFOLD_POSTGRES_DSN=make_conninfo(database, password="wrong"))
    assert refused.returncode == REFUSED
    assert b"password authentication failed for user" in refused.stdout


def test_a_checked_declaration(project: Project) -> None:
    """`onefold check` says what is wrong with a queue's contract and effect."""
    assert project.onefold("check", project.name) == f"{project.name}: nothing is wrong\n"
    contract = project.folder / "avro" / "Mail.avsc"
    found = json.loads(contract.read_text(encoding="utf-8"))
    found["fields"] = [field for field in found["fields"] if field["name"] != "segment"]
    contract.write_text(json.dumps(found), encoding="utf-8")

    told = project.onefold.run("check", project.name)
    assert told.returncode == 2
    assert f"jobs names {project.queue}, whose schema" in told.stdout.decode()
    assert "lacks the field segment of type long" in told.stdout.decode()
    with (project.folder / "pyproject.toml").open("a", encoding="utf-8") as declared:
        declared.write(f'reports = ["{project.name}.sent"]\n')
    assert (
        f"reports names {project.name}.sent, which is no input"
        in project.onefold.run("check", project.name).stdout.decode()
    )
