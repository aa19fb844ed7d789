"""The benchmarks run and count rightly. What they measure is not tested: it depends on the machine."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from console.commands import bench
from proof.bench.meter import Meter, _at, percentile
from tests.waiting import eventually


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
        meter = Meter({"busy": [busy.pid]})
        try:
            eventually(lambda: meter.seconds("busy", start, time.time()) > 0.2, 20, "its processor time is seen")
        finally:
            os.killpg(busy.pid, signal.SIGKILL)
            meter.stop()


def test_the_processor_bench_counts_every_event_once(capsys: pytest.CaptureFixture[str]) -> None:
    bench.command(bench.What.PROCESSOR, 3000, 2, 1000, 1.0, 2, 1, True)
    told = json.loads(capsys.readouterr().out)
    assert told["figures"]["events"] == 3000
    assert told["figures"]["transactions"] >= 2
    assert told["machine"]["kafka"] != "?"
