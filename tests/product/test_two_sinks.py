"""`ONEFOLD_SINKS=2`: how long no row is written when one of two sinks is killed."""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from onefold.cli import starter
from onefold.pipelines import PROJECT_VARIABLE
from tests.support.command_line import Onefold
from tests.support.waiting import eventually

# As tests/chaos/test_containers.py has it: the bound is for two quiet cores.
PATIENCE = float(os.environ.get("ONEFOLD_CHAOS_PATIENCE", "1"))
GAP_S = 2.0
RATE = 500
WARM_BATCHES = 60  # A JVM that has just started compiles its first batches.
KILLS = ("sink-1", "sink-2", "sink-1", "sink-2")

_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
_WRITTEN = "SELECT extract(epoch FROM landed_at)::float8, writer, partition FROM onefold.batch WHERE sink = 'orders' ORDER BY 1"


@pytest.mark.alone
@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.promise("two-sinks-in-time")
def test_rows_continue_within_two_seconds_of_a_kill(tmp_path: Path) -> None:
    """In each partition, also while the killed sink starts again on the same cores."""
    starter.write("orders", tmp_path)
    onefold = Onefold(tmp_path)
    onefold.environment |= {PROJECT_VARIABLE: str(tmp_path), "ONEFOLD_SINKS": "2", "ONEFOLD_DASHBOARD": "off"}
    try:
        onefold("up")
        load = onefold.start("produce", "orders.orders", "--count", "1000000", "--seed", "7", "--rate", str(RATE))
        since, longest = 0.0, {}
        for number, name in enumerate(KILLS, 1):
            eventually(lambda since=since: both_are_warm(onefold, since), 180, "both sinks write")  # type: ignore[misc]  # a default is how a loop's value is kept
            since = now(onefold)
            onefold.kill(name)
            longest[f"kill {number}, {name}"] = longest_gap(onefold, since, now(onefold))
        load.terminate()
        load.wait(30)
        onefold.drained()
        onefold("verify", "orders")
        assert max(longest.values()) <= PATIENCE * GAP_S, longest
    finally:
        onefold("down", "--wipe", "--yes")


def now(onefold: Onefold) -> float:
    """By the clock of the database."""
    ((at,),) = onefold.rows(_NOW)
    return float(at)


def both_are_warm(onefold: Onefold, since: float) -> bool:
    """Whether each sink has written so many batches of partitions since that moment."""
    writers = [writer for at, writer, _ in onefold.rows(_WRITTEN) if at > since]
    return min(writers.count(f"sink-{number}") for number in (1, 2)) >= WARM_BATCHES


def longest_gap(onefold: Onefold, since: float, until: float) -> float:
    """The longest time in seconds, between these moments, in which some partition got no rows."""
    written = onefold.rows(_WRITTEN)
    gaps = list[float]()
    for one in {partition for _, _, partition in written}:
        moments = [since, *(at for at, _, partition in written if partition == one and since < at < until), until]
        gaps += [after - before for before, after in pairwise(moments)]
    return max(gaps)
