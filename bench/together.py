"""What it costs that one sink lands several pipelines: the same number of events, shared out among more and more of them.

The pipelines are all alike, so that only their number differs. Their output topics are filled first, then one sink starts with
all of them on empty tables. So its figures are those of a start: from when its queries run until all is landed. Afterwards there
is nothing to land, and what it takes then is what waiting costs.
"""

import time
from collections.abc import Sequence
from typing import Any

from onefold.bench.cpu import CpuSampler
from onefold.bench.environment import BenchmarkEnvironment
from onefold.bench.processor import fold
from onefold.bench.workload import workload

_DRAIN_S = 600.0
# A commit is known this well; a batch takes a second or so.
_ASK_EVERY_S = 0.1
# Each query looks for new records several times in it.
_IDLE_S = 10.0


def measure(environment: BenchmarkEnvironment, names: Sequence[str], events: int, seed: int) -> dict[str, Any]:
    """The figures of one sink.

    Args:
        names: pipelines with a workload, all alike.
        events: of all of them together.
    """
    environment.run("migrate", *names)
    ends: dict[str, int] = {}
    for name in names:
        one = workload(name)
        fold(environment, one, one.generate(seed, events // len(names)), 1)
        ends[name] = environment.to_land(one.landed)
    rows = sum(ends.values())
    environment.say(f"writing {rows:,} output offsets of {len(names)} pipelines")
    asked = time.time()
    sink = environment.start("sink", "sink", *names)
    began = time.time()
    cpu = CpuSampler({"sink": [sink.pid or 0], "postgres": [environment.infrastructure.postgres.pid or 0]})
    environment.wait(
        lambda: all(environment.landed(name) >= end for name, end in ends.items()),
        _DRAIN_S,
        "all output records are written to PostgreSQL",
        _ASK_EVERY_S,
    )
    ended = time.time()
    environment.say("waiting for more")
    time.sleep(_IDLE_S)
    cpu.stop()
    sink.stop()
    idle_s = _IDLE_S / 2
    idle_from = ended + idle_s  # what the last batches still had to do is over by then
    return {
        "pipelines": len(names),
        "rows": rows,
        "running_after_seconds": round(began - asked, 1),
        "seconds": round(ended - began, 1),
        "rows_per_second": round(rows / (ended - began)),
        "sink_cpu_us_per_row": round(cpu.seconds("sink", began, ended) / rows * 1e6, 1),
        "postgres_cpu_us_per_row": round(cpu.seconds("postgres", began, ended) / rows * 1e6, 1),
        "idle_sink_percent_of_a_core": round(cpu.seconds("sink", idle_from, idle_from + idle_s) / idle_s * 100, 1),
        "idle_postgres_percent_of_a_core": round(
            cpu.seconds("postgres", idle_from, idle_from + idle_s) / idle_s * 100, 1
        ),
    }
