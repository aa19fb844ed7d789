"""The command line on a running stack: what it prints, what it answers, and how it ends."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.support.command_line import CANARIES, Onefold
from tests.support.told import asked, sums
from tests.support.waiting import eventually


@pytest.mark.long  # 46 s
def test_status_says_how_to_connect_and_how_far(onefold: Onefold) -> None:
    """For a program: addresses, a state for each service, and the lag to the database commit."""
    onefold.drained()
    status = onefold.status()

    assert status["bootstrap_servers"].startswith("127.0.0.1:")
    password = psycopg.conninfo.conninfo_to_dict(onefold.dsn)["password"]
    assert status["postgres_dsn"] == onefold.dsn.replace(f":{password}@", "@")
    assert json.loads(onefold("status", "--json", "--show-password"))["postgres_dsn"] == onefold.dsn
    assert {"running"} == {service["state"] for name, service in status["services"].items() if name != "migrate"}
    assert status["services"]["migrate"]["state"] == "done"
    shipped, own = {"averages", "bank", "campaigns", "runner", "sheets", "trades"}, {"big", "orders", "sales", "shop"}
    assert shipped | own == set(status["lag"])
    # A pipeline with ticks has one to process now and then.
    eventually(lambda: {(0, 0.0)} == lags(onefold.status()), 60, "nothing waits")
    assert status["held"] == status["problems"] == []


def lags(status: dict[str, Any]) -> set[tuple[int | None, float | None]]:
    """Of all pipelines: events that wait, and for how long the oldest one has."""
    return {(lag["events"], lag["seconds"]) for lag in status["lag"].values()}


@pytest.mark.promise("logs-for-people")
def test_logs_are_for_programs_in_their_files_and_for_people_where_asked(onefold: Onefold) -> None:
    onefold.drained()
    for service in ("processor-runner-1", "sink-1"):
        written = [
            json.loads(line)
            for line in (onefold.home / "logs" / f"{service}.log").read_text(encoding="utf-8").splitlines()
        ]
        assert all(line.keys() >= {"event", "level", "timestamp"} for line in written), service
    guaranteed = next(line for line in written if "guaranteed: " in line["event"])
    assert json.loads(onefold("logs", "sink-1", "-n", "100000").splitlines()[0])["level"]
    shown = onefold("logs", "sink-1", "-n", "100000", ONEFOLD_LOG_FORMAT="human")
    assert f"{guaranteed['timestamp']} [{guaranteed['level']:9}] {guaranteed['event']}" in shown


def environment_of(process: psutil.Process) -> str:
    """Empty when the process has ended meanwhile."""
    with suppress(OSError):
        return Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace")
    return ""


@pytest.mark.promise("secrets-stay")
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="environments of processes are read in /proc")
def test_keys_of_the_callers_shell_reach_only_services_that_run_code_of_pipelines(onefold: Onefold) -> None:
    """Not Kafka, PostgreSQL, the sink, nor any process that these have started; and no argument holds a password."""
    onefold.drained()
    password = str(psycopg.conninfo.conninfo_to_dict(onefold.dsn)["password"])
    seen = {}
    for name, service in onefold.services().items():
        if not service["pid"]:
            continue
        root = psutil.Process(service["pid"])
        family = [root, *root.children(recursive=True)]
        said = [environment_of(process) for process in family]
        assert "PATH=" in said[0], name  # a backend of PostgreSQL writes its title over it
        seen[name] = {value for value in CANARIES.values() if any(value in each for each in said)}
        for process in family:
            with suppress(psutil.NoSuchProcess):  # has ended meanwhile: a zombie has no arguments
                assert not any(password in word for word in process.cmdline()), name
    code = ("processor-", "worker-", "auditor-", "dashboard")
    assert seen == {name: set(CANARIES.values()) if name.startswith(code) else set() for name in seen}
    assert {"kafka", "postgres", "sink-1", "dashboard", "processor-runner-1"} <= seen.keys()


@pytest.mark.long  # 10 s
def test_every_service_says_that_it_gets_on(onefold: Onefold) -> None:
    """On a port of its own, and the dashboard for the whole; one that was killed has its port again."""
    onefold.drained()
    status = onefold.status()
    ports = {name: int(address.rpartition(":")[2]) for name, address in status["metrics"].items()}
    own = ("processor-", "sink-", "worker-", "auditor-")
    assert ports.keys() == {name for name in status["services"] if name.startswith(own)}
    ports["dashboard"] = int(status["dashboard"].rpartition(":")[2])
    onefold.kill("processor-runner-1")
    for name, port in ports.items():
        eventually(lambda port=port: asked(port, "/healthz")[0] == 200, 60, f"{name} gets on")  # type: ignore[misc]  # a default is how a loop's value is kept
        assert sums(port)["onefold_healthy"] == 1
    eventually(lambda: sums(ports["dashboard"])["onefold_lag_input_offsets"] == 0, 60, "nothing waits")


@pytest.mark.promise("totals-never-change")
@pytest.mark.promise("recovery-in-time")
def test_generated_load_with_kills_is_valid(onefold: Onefold) -> None:
    """Both domains under load; the processors and the sink are killed while it goes on; verify says valid."""
    load = [onefold.start("produce", f"{topic}", "--count", "4000", "--seed", "7", "--rate", "1500")
            for topic in ("runner.updates", "campaigns.sends")]  # fmt: skip
    for service in ("processor-runner-1", "sink-1", "processor-campaigns-1"):
        onefold.kill(service)
    assert [process.wait(60) for process in load] == [0, 0]
    onefold.drained()

    for domain in ("campaigns", "runner"):
        verdict = json.loads(onefold("verify", domain, "--json"))
        assert verdict["outcome"] == "valid"
        assert verdict["counts"]["accepted"] > 0
    assert json.loads(onefold("verify", "runner", "--json"))["proved"] >= verdict["counts"]["records"]
    whole = json.loads(onefold("verify", "runner", "--json", "--from-start"))
    assert (whole["outcome"], whole["proved"], whole["checks"]) == ("valid", 0, verdict["checks"])


@pytest.mark.promise("totals-never-change")
@pytest.mark.matrix
def test_a_counter_in_the_database_is_increased_once_whatever_is_killed(onefold: Onefold) -> None:
    """Two streams into one pipeline, whose alarms are added to a counter: an addition that came twice would stay."""
    load = [onefold.start("produce", f"averages.{side}", "--count", "4000", "--seed", "7", "--rate", "1000")
            for side in ("left", "right")]  # fmt: skip
    for service in ("sink-1", "processor-averages-1", "sink-1"):
        onefold.kill(service)
    assert [process.wait(60) for process in load] == [0, 0]
    onefold.drained()

    assert json.loads(onefold("verify", "averages", "--json"))["outcome"] == "valid"
    ((alarms, told),) = onefold.rows(
        "SELECT (SELECT sum(alarms) FROM averages.alarms), (SELECT count(*) FROM averages.averages WHERE numbers > 100)"
    )
    assert alarms == told > 0


def test_a_line_of_a_live_pipe_is_in_the_table_while_the_pipe_stays_open(onefold: Onefold) -> None:
    """As from `tail -f`: nobody waits for the end of the input."""
    with onefold.pipe("produce", "campaigns.sends") as produce:
        assert produce.stdin is not None
        produce.stdin.write(new_send(97_000) + b"\n")
        produce.stdin.flush()
        landed = lambda: onefold.rows("SELECT computed FROM campaigns.totals WHERE id = 97000")  # noqa: E731
        assert eventually(landed, 60, "the send is landed") == [(1,)]
        produce.stdin.close()
        assert produce.wait(30) == 0


@pytest.mark.promise("totals-never-change")
@pytest.mark.long  # 31 s
def test_broker_and_database_killed_in_the_middle(onefold: Onefold) -> None:
    """With a backlog being folded and landed; everything finds its way back by itself, and nothing is missing."""
    for service in ("kafka", "postgres"):
        onefold("produce", "runner.updates", "--count", "15000", "--seed", "17")
        onefold.kill(service)
    onefold.drained()

    assert json.loads(onefold("verify", "runner", "--json"))["outcome"] == "valid"


def new_send(campaign: int) -> bytes:
    return json.dumps({"id": campaign, "email": "A", "subject": "A", "sent": 1, "date": "2021-12-01 12:00:00"}).encode()


@pytest.mark.promise("totals-never-change")
@pytest.mark.matrix
def test_two_sinks_at_once_are_safe(onefold: Onefold) -> None:
    """A second sink on the same tables, from the same topics, while the first one works."""
    second = onefold.start("sink", "campaigns", "--instance", "second")
    try:
        eventually(
            lambda: "writing from" in (onefold.home / "sink.out").read_text(encoding="utf-8"),
            60,
            "the second sink lands",
        )
        for number in range(5):
            onefold("produce", "campaigns.sends", says=new_send(95_000 + number))
        # Whoever is faster lands a batch; while the first one is away it is the second.
        os.kill(onefold.pid("sink-1"), signal.SIGKILL)
        onefold("produce", "campaigns.sends", says=new_send(96_000))
        writers = "SELECT 1 FROM onefold.ledger WHERE sink = 'campaigns' AND writer = 'sink-second'"
        eventually(lambda: onefold.rows(writers), 60, "the second sink has landed a batch")
        onefold.drained()
        assert json.loads(onefold("verify", "campaigns", "--json"))["outcome"] == "valid"
    finally:
        second.terminate()
        assert second.wait(30) == 0


@pytest.mark.long  # 13 s
def test_verify_names_what_is_wrong(onefold: Onefold) -> None:
    """Exit code 1, and each wrong row with the input record behind it; valid again when the rows are mended."""
    value = {"user_id": 1, "distance_meters": 5, "timestamp_utc": 1, "sequence_id": 10**9, "run_id": 1}
    onefold("produce", "runner.updates", says=json.dumps(value).encode())
    onefold.drained()
    onefold.rows("UPDATE runner.stats SET total_meters = total_meters + 1 WHERE user_id = 1 RETURNING 1")
    onefold.rows("UPDATE runner.messages SET user_id = -1 - user_id WHERE user_id = 1 RETURNING 1")
    found = json.loads(onefold("verify", "runner", "--json", code=1))
    onefold.rows("UPDATE runner.stats SET total_meters = total_meters - 1 WHERE user_id = 1 RETURNING 1")
    onefold.rows("UPDATE runner.messages SET user_id = -1 - user_id WHERE user_id = -2 RETURNING 1")

    assert found["outcome"] == "invalid"
    for kind in ("different row", "missing row"):
        assert found["kinds"][kind]["first"]["source"].startswith("runner.updates/")
    onefold("verify", "runner")
