"""The stack in containers: Kafka's own producer, the walk through it, and workloads under nemeses.

Every pair of the matrix is `./onefold test -m matrix`; a seed of your own is ONEFOLD_SEED.
"""

import json
import os
import random
import re
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import psycopg
import pytest

from onefold.chaos import containers as stack
from onefold.chaos import run as chaos
from onefold.chaos.containers import Containers
from onefold.chaos.judging import judge
from onefold.chaos.nemeses.table import BOUNDS_OF_REPLICAS, PROCESSOR, nemeses
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.operate import pipelines
from tests.support.coded import raises
from tests.support.docker import ROOT, compose
from tests.support.processes import records
from tests.support.waiting import eventually

pytestmark = [pytest.mark.docker, pytest.mark.promise("recovery-in-time")]

NEMESES = nemeses()
SEED = int(os.environ.get("ONEFOLD_SEED", "0")) or random.randrange(1, 10**6)
OWN_IMAGE = "onefold/test-own:dev"
# How many times its bounds a stall may take: in the matrix 1, on two quiet cores; beside other tests what matters is the rows.
PATIENCE, PATIENCE_BESIDE_OTHERS = float(os.environ.get("ONEFOLD_CHAOS_PATIENCE", "1")), 10.0
IN_TIME = [pytest.mark.matrix, pytest.mark.alone]
# A first-time user's patience, on two busy cores; a quiet machine takes a third of it.
FIRST_ROW_S = 90.0
# One for each half of the pipeline, and the two that a first customer would try.
IN_CI = (("campaigns", "kill-spark_sink"), ("runner", "kill-processor"))
# What one of several replicas can suffer alone; in CI the first.
OF_REPLICAS = ("kill-processor", "pause-processor", "cut-processor", "restart-processor", "takeover")


@pytest.fixture(scope="module")
def first_row_s(started: Containers, asked_for: float) -> float:
    """Seconds from `docker compose up` to the first right row."""
    send = '{"id": -2, "email": "A", "subject": "A", "sent": 7, "date": "2021-12-01 12:00:00"}'
    console_producer(started, "campaigns.sends", f"-2|{send}\n")
    landed(started.settings(Settings()), "SELECT computed FROM campaigns.totals WHERE id = -2", [(7,)])
    return time.monotonic() - asked_for


@pytest.fixture(scope="module")
def containers(started: Containers, first_row_s: float) -> Containers:
    """The running stack. The first row comes before all tests, whatever their order, so that nothing is warm."""
    return started


@pytest.fixture
def patience(request: pytest.FixtureRequest) -> float:
    """Whether this test has the machine for itself."""
    return PATIENCE if request.node.get_closest_marker("alone") else PATIENCE_BESIDE_OTHERS


@pytest.fixture
def settings(containers: Containers, patience: float) -> Settings:
    """How this machine reaches the stack."""
    return containers.settings(Settings(chaos_patience=patience))


def check(containers: Containers, settings: Settings, workload: str, nemesis: str) -> chaos.Outcome:
    """One run, valid and in time; the whole outcome when it is not."""
    outcome = chaos.run(containers, settings, workload, NEMESES[nemesis], seed=SEED, say=print)
    whole = json.dumps(outcome.as_data(), indent=1)
    assert outcome.events > 0
    assert outcome.passed, whole + logs(containers)
    # A fault that does nothing would be survived by everything.
    hit = chaos.as_it_hits(containers, settings, workload, NEMESES[nemesis])
    assert not hit.held or max(outcome.stalls_while_held.values()) > hit.hold_s / 2, whole
    return outcome


def logs(containers: Containers) -> str:
    """The last lines of the services."""
    lines = ""
    for service in ("processor", "worker", "spark_sink"):
        for container in containers.of(service):
            ran = subprocess.run(
                ["docker", "logs", "--tail", "30", container], capture_output=True, encoding="utf-8", timeout=30
            )
            lines += f"\n--- {service}\n{ran.stdout}{ran.stderr}"
    return lines


def test_every_service_has_an_image(images: None) -> None:
    """Of its own, or of another service."""
    names = compose("--profile", "chaos", "config", "--images", timeout=60).split()
    assert names
    subprocess.run(["docker", "image", "inspect", *names], check=True, capture_output=True, timeout=60)


def test_a_pipeline_of_one_s_own_is_three_lines_on_top_of_an_image(images: None, tmp_path: Path) -> None:
    """The Dockerfile of docs/kubernetes.md, for the project that `onefold new` makes."""
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (dockerfile,) = re.findall(r"^ *```dockerfile\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    onefold = [sys.executable, "-m", "onefold.cli.main"]
    subprocess.run([*onefold, "new", "orders"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (tmp_path / "Dockerfile").write_text(textwrap.dedent(dockerfile), encoding="utf-8")
    build = ["docker", "build", "--tag", OWN_IMAGE, str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    try:
        asked = ["docker", "run", "--rm", "--read-only", "--network", "none", OWN_IMAGE, "check"]
        said = subprocess.run(asked, check=True, capture_output=True, encoding="utf-8", timeout=60).stdout
    finally:
        subprocess.run(["docker", "image", "rm", OWN_IMAGE], check=True, capture_output=True, timeout=60)
    assert "orders: nothing is wrong" in said


@pytest.mark.parametrize("within_s", [PATIENCE_BESIDE_OTHERS * FIRST_ROW_S, pytest.param(FIRST_ROW_S, marks=IN_TIME)])
def test_from_up_to_the_first_right_row(first_row_s: float, within_s: float) -> None:
    assert first_row_s < within_s


def test_a_kill_that_kills_nothing_is_reported(containers: Containers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that does nothing would be survived by everything."""
    monkeypatch.setattr(stack, "DEATH_S", 1.0)
    monkeypatch.setattr(stack, "_ask", lambda *command: subprocess.CompletedProcess(command, 0, "", "no shell there"))
    monkeypatch.setattr(Containers, "_lives", lambda self, container: "as before")
    monkeypatch.setattr(Containers, "of", lambda self, service: ["some container"])
    with raises(UserError, Code.CONTAINERS, "processor"):
        containers.kill("processor")


@pytest.mark.parametrize(
    "workload",
    # From day to day the one with workers. Two others have a run below, which tells as much.
    [pytest.param(name, marks=IN_TIME if name != "sheets" else []) for name in pipelines.domains()],
)
def test_control(containers: Containers, settings: Settings, workload: str) -> None:
    """Nothing happens: separates what is broken from what breaks under faults."""
    check(containers, settings, workload, "none")


@pytest.mark.parametrize(("workload", "nemesis"), IN_CI)
def test_chaos(containers: Containers, settings: Settings, workload: str, nemesis: str) -> None:
    """A killed processor's partitions and a killed sink are back, and every row is correct; the matrix has their bounds."""
    check(containers, settings, workload, nemesis)


@pytest.mark.parametrize(
    "nemesis", [OF_REPLICAS[0], *(pytest.param(nemesis, marks=IN_TIME) for nemesis in OF_REPLICAS)]
)
def test_the_other_replica_goes_on_when_the_one_that_publishes_is_hit(
    containers: Containers, patience: float, nemesis: str
) -> None:
    """The running stack becomes hot-hot and elastic again, by the commands of docs/hot-hot.md. How many replicas there are is
    known from the containers: nobody tells it here.
    """
    on, back = commands("hot-hot.md")
    try:
        shell(on)
        settings = containers.settings(Settings(chaos_patience=patience))
        assert (settings.replicas, containers.instances(PROCESSOR)) == (2, 2)
        outcome = check(containers.under("runner", settings), settings, "runner", nemesis)
        assert outcome.bounds == {stage: patience * BOUNDS_OF_REPLICAS[stage == "sink"] for stage in outcome.stalls}
        assert containers.instances(PROCESSOR) == 2, "as many as before"
    finally:
        shell(back)

    settings = containers.settings(Settings())
    assert (settings.replicas, containers.instances(PROCESSOR)) == (None, 1)
    user = -10 - OF_REPLICAS.index(nemesis)
    update = f'{{"user_id": {user}, "distance_meters": 150, "timestamp_utc": 0, "sequence_id": 1, "run_id": 1}}'
    console_producer(containers, "runner.updates", f"{user}|{update}\n")
    landed(settings, f"SELECT total_meters FROM runner.stats WHERE user_id = {user}", [(150,)])
    verdict = judge(containers, "runner", settings, 60.0)
    assert verdict.outcome == "valid", verdict.reason


def commands(page: str) -> list[str]:
    """What a page of docs/ has a user do to the containers, a block each."""
    blocks = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [block for block in blocks if "docker compose" in block]


def shell(session: str) -> str:
    """What the commands printed, in order, in one shell; each must succeed."""
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", session], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def console_producer(containers: Containers, topic: str, lines: str, separator: str = "|") -> None:
    """Kafka's own tool, in Kafka's own container: a key, the separator, and a JSON value a line."""
    reader = ("--reader-property", "parse.key=true", "--reader-property", f"key.separator={separator}")
    command = [
        "docker",
        "exec",
        "-i",
        containers.of("kafka")[0],
        "kafka-console-producer.sh",
        "--topic",
        topic,
        *reader,
    ]
    subprocess.run(command, input=lines.encode(), check=True, capture_output=True, timeout=60)


def landed(settings: Settings, query: str, rows: list[tuple[object, ...]]) -> None:
    """Wait until the database answers so."""

    def answer() -> bool:
        with psycopg.connect(settings.postgres()) as connection:
            return connection.execute(query).fetchall() == rows

    eventually(answer, 60, f"{query} gives {rows}")


def test_kafkas_own_producer(containers: Containers, settings: Settings) -> None:
    """Keyed JSON lines into both inputs, one that is broken, one sent twice: rows, one dead letter, valid."""
    send = '{"id": -1, "email": "A", "subject": "A", "sent": %d, "date": "2021-12-01 1%d:00:00"}'
    console_producer(
        containers, "campaigns.sends", f"-1|{send % (100, 2)}\n-1|{send % (1000, 3)}\n-1|{send % (1000, 3)}\n"
    )
    console_producer(containers, "campaigns.sends", "-1|no send at all\n")
    update = '{"user_id": -1, "distance_meters": %d, "timestamp_utc": %d, "sequence_id": %d, "run_id": 1}'
    # A tab between key and value, as Kafka's documentation shows it.
    console_producer(
        containers, "runner.updates", f"-1\t{update % (150, 0, 1)}\n-1\t{update % (120, 600_000, 2)}\n", separator="\t"
    )

    landed(settings, "SELECT sent_1, sent_2, computed FROM campaigns.totals WHERE id = -1", [(100, 1000, 1100)])
    landed(settings, "SELECT total_meters, total_time_ms FROM runner.stats WHERE user_id = -1", [(270, 600_000)])
    for domain in pipelines.domains():
        verdict = judge(containers, domain, settings, 60.0)
        assert verdict.outcome == "valid", verdict.reason
    dead = [letter.value for letter in records(settings.client(), "campaigns.sends.dead")]
    assert dead.count(b"no send at all") == 1


def test_a_judge_goes_on_from_what_the_one_before_it_has_proved(containers: Containers) -> None:
    """Each is a container of its own, which is gone when it has judged."""
    told = [
        json.loads(containers.told_by_judge("campaigns", "--json", "--timeout", "60", patience_s=60.0))
        for _ in range(2)
    ]
    assert [verdict["outcome"] for verdict in told] == ["valid", "valid"]
    assert told[1]["proved"] > 0


def test_the_walk_through_the_containers(containers: Containers) -> None:
    """Every command of it, in order, in one shell; each must succeed."""
    session = "\n".join(commands("walkthrough.md"))
    assert session.count("docker compose") >= 7

    printed = shell(session)

    for row in (r"1 \|\s+100 \|\s+1000 \|\s+1100", r"2 \|\s+100 \|\s+1000 \|\s+1100"):
        assert re.search(row, printed), printed
    assert printed.count("campaigns: valid") == 2


def test_the_dashboard_shows_the_tables(containers: Containers) -> None:
    """On the published port, to a browser on this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{os.environ['DASHBOARD_PORT']}/", timeout=30) as page:
        assert page.status == 200
        assert b"Onefold" in page.read()


@pytest.mark.parametrize("service", ["kafka", "postgres", "processor", "spark_sink", "dashboard"])
def test_a_container_can_do_little(containers: Containers, service: str) -> None:
    """It cannot write to its image, is not root, has no capabilities and a limit of memory, and publishes on loopback."""
    inspected = subprocess.run(
        ["docker", "inspect", containers.of(service)[0]], check=True, capture_output=True, timeout=30
    )
    (found,) = json.loads(inspected.stdout)

    assert found["HostConfig"]["ReadonlyRootfs"]
    assert found["Config"]["User"] not in ("", "root", "0")
    assert found["HostConfig"]["CapDrop"] == ["ALL"]
    assert found["HostConfig"]["Memory"] > 0
    published = [place for places in found["NetworkSettings"]["Ports"].values() for place in places or ()]
    assert {place["HostIp"] for place in published} <= {"127.0.0.1"}
    assert bool(published) == (service in ("kafka", "postgres", "dashboard"))


@pytest.mark.alone
@pytest.mark.matrix
@pytest.mark.parametrize("nemesis", NEMESES)
@pytest.mark.parametrize("workload", pipelines.domains())
def test_matrix(containers: Containers, settings: Settings, workload: str, nemesis: str) -> None:
    """Every workload under every nemesis."""
    check(containers, settings, workload, nemesis)
