"""The benchmarks run and count rightly. What they measure is not tested: it depends on the machine."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from onefold.bench import environment, machine, sink
from onefold.bench.cpu import CpuSampler, _at, percentile
from onefold.bench.environment import benchmark_environment
from onefold.bench.latency import course
from onefold.bench.processor import _folded_after
from onefold.cli import starter
from onefold.cli.commands.bench import common, latency, processor
from onefold.cli.commands.bench import sink as sink_command
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate.pacing import Sender, paced, produce
from onefold.stack.postgres import Postgres
from onefold.workloads.shaping import Input
from tests.support.coded import code_of, raises
from tests.support.needs import first_of
from tests.support.waiting import eventually


def test_percentile() -> None:
    assert percentile([1.0], 0.99) == 1.0
    assert [percentile(list(range(100)), share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]


def test_used_time_between_samples_is_in_proportion() -> None:
    samples = [(10.0, 1.0), (20.0, 2.0), (30.0, 6.0)]
    assert [_at(samples, moment) for moment in (5.0, 15.0, 20.0, 25.0, 99.0)] == [1.0, 1.5, 2.0, 4.0, 6.0]


def test_a_busy_process_is_metered_with_its_children() -> None:
    start = time.time()
    shell = f"{sys.executable} -c 'while True: pass' & wait"
    with subprocess.Popen(shell, shell=True, start_new_session=True) as busy:
        cpu = CpuSampler({"busy": [busy.pid]})
        try:
            eventually(lambda: cpu.seconds("busy", start, time.time()) > 0.2, 20, "its processor time is seen")
        finally:
            os.killpg(busy.pid, signal.SIGKILL)
            cpu.stop()


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.matrix
def test_the_sink_bench_needs_a_warm_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table shows the figures of what came after the first batch; without such a batch there are none."""
    monkeypatch.setattr(sink, "MAX_OFFSETS_PER_BATCH", 1)
    with raises(UserError, Code.MEASUREMENT_FAILED, "--events"):
        sink_command.command(events=1000, pipeline="runner", partitions=1, seed=1, as_json=False)


class Queue:
    """A producer whose queue takes one record until it is polled."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.sent: list[bytes] = []

    def produce(self, topic: str, value: bytes, key: bytes | None) -> None:
        if self.waiting:
            raise BufferError
        self.waiting.append(value)

    def poll(self, within_s: float) -> None:
        self.sent += self.waiting
        self.waiting.clear()


def test_a_full_queue_loses_no_event() -> None:
    queue: Any = Queue()
    for number in range(3):
        produce(queue, "orders", None, b"%d" % number)
    assert (queue.sent, queue.waiting) == ([b"0", b"1"], [b"2"])


def test_an_event_is_not_due_before_its_time() -> None:
    producer: Any = Queue()
    began = time.monotonic()
    for number in paced(producer, range(20), 200):
        assert time.monotonic() - began >= number / 200


def test_a_sender_keeps_its_rate_and_its_order_and_stops() -> None:
    taken: list[tuple[Any, ...]] = []
    producer: Any = SimpleNamespace(
        produce=lambda *given: taken.append(given), poll=lambda seconds: 0, flush=lambda seconds: 0
    )
    began = time.monotonic()
    with Sender(producer, (Input("orders", b"%d" % number, None) for number in count()), 200) as sender:
        eventually(lambda: sender.sent >= 20, 30, "twenty are sent")
    assert time.monotonic() - began >= 19 / 200
    stopped = len(taken)
    assert [given[2] for given in taken] == [b"%d" % number for number in range(stopped)]
    assert (sender.sent, taken[0]) == (stopped, ("orders", None, b"0"))


def test_a_stack_on_which_nothing_can_be_measured_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it does not start, or what is measured fails."""

    def start(pipeline: str, partitions: int, say: object) -> NoReturn:
        raise RuntimeError("no broker")

    monkeypatch.setattr(environment, "benchmark_environment", start)
    with raises(UserError, Code.MEASUREMENT_FAILED, "no broker"), common.fresh_stack("runner", 1):
        pass
    monkeypatch.setattr(
        environment, "benchmark_environment", lambda *given: nullcontext(SimpleNamespace(infrastructure=None))
    )
    monkeypatch.setattr(machine, "describe", lambda infrastructure: {})
    with raises(UserError, Code.MEASUREMENT_FAILED, "no event"), common.fresh_stack("runner", 1):
        raise RuntimeError("no event")


def test_a_figure_that_there_is_none_of_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    common.render("sink", {"processor": "one"}, {"rows": 1234, "cpu": 1.5, "verify": "valid", "none": None})
    told = capsys.readouterr().out
    assert re.search(r"rows +│ 1,234 ", told)
    assert "none" not in told


def test_only_events_committed_after_the_clock_started_count() -> None:
    """Each commit tells how far its partition is by now."""
    commits = [(1.0, 0, 10), (2.0, 1, 20), (4.0, 0, 30), (5.0, 1, 25)]
    assert [_folded_after(commits, moment) for moment in (0.0, 1.0, 3.0, 4.5, 5.0)] == [55, 45, 25, 5, 0]


@pytest.mark.broker
@pytest.mark.postgres
def test_a_stand_leaves_nothing_behind() -> None:
    """Also not what lies outside of its folder: PostgreSQL's data when we are root."""
    with benchmark_environment("runner", 1, lambda text: None) as place:
        folders = [place.home, Postgres(place.home / "postgres", 0).data]
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)


def test_the_course_of_latency_is_told_from_the_first_event_on() -> None:
    """Quarter of a minute by quarter: a warm-up that does not count is not hidden."""
    ways = [(100.0, 3.0), (107.0, 1.0), (114.0, 2.0), (115.0, 0.5), (146.0, 0.25)]
    assert course(ways, 15) == [2.0, 0.5, 0.25]


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.matrix
def test_the_latency_bench_counts_what_comes_after_the_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    latency.command(rate=100, seconds=2.0, warm_up=1.0, pipeline="runner", partitions=1, seed=1, as_json=False)
    told = capsys.readouterr().out
    figures = dict(re.findall(r"│ (\w[\w ]+?) +│ ([\d.,]+) +│", told))
    assert 150 <= int(figures["events"]) <= 250, "two seconds of them"
    assert 0 < float(figures["p50 s"]) <= float(figures["p99 s"]) <= float(figures["max s"])
    assert int(figures["warm up s"]) >= 1


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.matrix
def test_events_that_one_processor_folded_are_no_figure_for_two() -> None:
    """The first one folds these before the second one has started."""
    with raises(UserError, Code.MEASUREMENT_FAILED, "--events"):
        processor.command(events=3000, instances=2, pipeline="runner", partitions=2, seed=1, as_json=True)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A project as `onefold new orders` makes it."""
    starter.write("orders", tmp_path)
    return tmp_path


def bench(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As its owner runs it, in its folder."""
    environment = {name: value for name, value in os.environ.items() if name != "ONEFOLD_PROJECT"}
    return subprocess.run(
        [sys.executable, "-P", "-m", "onefold.cli.main", "bench", *arguments],
        cwd=project, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.broker
@pytest.mark.postgres
def test_the_processor_bench_counts_every_event_of_a_project_once(orders: Path) -> None:
    """The project's generator makes the input, and it is the default where no other pipeline has a workload."""
    ran = bench(
        orders, "processor", "--events", "3000", "--instances", "1", "--metrics", "--partitions", "2", "--json"
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["figures"]["pipeline"] == "orders"
    assert told["figures"]["events"] == 3000
    assert 0 < told["figures"]["events_counted"] < 3000, "those of the first transaction do not count"
    assert told["figures"]["transactions"] >= 2
    assert told["figures"]["metrics_asked_for"] == "every 0.5 s"
    assert told["machine"]["kafka"] != "?"


# They take minutes beside other tests; the shipped pipelines are measured like that every time.
@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("arguments", "counted", "at_least"),
    [
        (("sink", "--events", "30000"), "rows", 1),
        (("latency", "--rate", "100", "--seconds", "2", "--warm-up", "1"), "events", 100),
    ],
    ids=["sink", "latency"],
)
def test_a_project_of_ones_own_is_measured(
    orders: Path, arguments: tuple[str, ...], counted: str, at_least: int
) -> None:
    ran = bench(orders, *arguments, "--partitions", "2", "--json")
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)["figures"]
    assert figures["pipeline"] == "orders"
    assert figures[counted] >= at_least


@pytest.mark.parametrize("which", first_of(["processor", "sink", "latency"]))
def test_a_pipeline_without_a_workload_is_not_measured(orders: Path, which: str) -> None:
    """Nothing is started for it."""
    project = orders / "pyproject.toml"
    project.write_text(
        project.read_text(encoding="utf-8").replace('workload = "orders_workload"', ""), encoding="utf-8"
    )
    named = bench(orders, which, "--pipeline", "orders")
    assert (named.returncode, named.stdout) == (USAGE, "")
    assert named.stderr == (
        f"error OF-106: there is no generator of events for orders\n"
        f"  Name a module with generate(seed, count) under `workload` in {project}.\n"
    )
    assert code_of(bench(orders, which).stderr) is Code.NO_GENERATOR
