"""Ticks on a real broker: the processors write them, and a tick drives an output, also after a kill."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from onefold import pipelines
from onefold.processor.core.topology import Topology
from onefold.processor.io.admin import lag
from onefold.processor.io.tick_writer import TickWriter
from tests.support.command_line import ROOT
from tests.support.processes import instance, produce, records
from tests.support.waiting import eventually

SALES = ROOT / "examples" / "sales"


@pytest.fixture
def sales(fresh_domain: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch) -> Topology:
    """The example's topics, empty."""
    monkeypatch.setenv(pipelines.PROJECT_VARIABLE, str(SALES))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return fresh_domain("sales", 2)


def sell(client: dict[str, str], shops: str) -> None:
    """An order of two minutes ago in each shop."""
    at = time.time_ns() // 1_000_000 - 120_000
    produce(
        client,
        "sales.orders",
        [(shop.encode(), json.dumps({"shop": shop, "cents": 100, "at": at}).encode()) for shop in shops],
    )


def ticks(client: dict[str, str]) -> dict[int, list[int]]:
    """By partition the times, in the order of the records."""
    found: dict[int, list[int]] = defaultdict(list)
    for record in records(client, "sales.ticks"):
        found[record.partition].append(json.loads(record.value or b"")["at_ms"])
    return found


@pytest.mark.parametrize("replicas", [1, 2], ids=["elastic", "hot-hot"])
def test_a_tick_drives_an_output_and_another_instance_goes_on_with_the_time(
    sales: Topology, client: dict[str, str], tmp_path: Path, replicas: int
) -> None:
    """No order follows the first ones, and their minutes are told all the same: in both partitions, once, also by who takes
    over. Each tick is of a whole second, and there is one a second at most from each instance.
    """
    started = time.time_ns() // 1_000_000
    with instance(sales, client, tmp_path / "b", name="b", replicas=replicas):
        with instance(sales, client, tmp_path / "a", name="a", replicas=replicas) as killed:
            sell(client, "abcdefgh")
            eventually(lambda: len(records(client, "sales.minutes")) == 8, 30, "the minute of every shop is told")
            killed.kill()
        sell(client, "ijklmnop")
        eventually(lambda: len(records(client, "sales.minutes")) == 16, 30, "and of those that were sold in later")
        eventually(lambda: lag(sales, client) == 0, 30, "nothing is left to fold")
    minutes = records(client, "sales.minutes")
    assert {record.partition for record in minutes} == {0, 1}
    assert {(record.header("onefold-source") or b"").split(b"/")[0] for record in minutes} == {b"sales.ticks"}
    assert records(client, "sales.ticks.dead") == []
    seconds = (time.time_ns() // 1_000_000 - started) // 1000
    for times in ticks(client).values():
        assert all(at % 1000 == 0 and at >= started - 1000 for at in times)
        assert 2 <= len(set(times)) <= seconds + 2
        assert len(times) <= 2 * len(set(times)), "each twice at most: from either instance"


def test_ticks_that_cannot_be_written_are_left_out_and_said_once(sales: Topology, client: dict[str, str]) -> None:
    """Time stands still, which nothing else would show; a broker that is away holds nobody up."""
    writer, nowhere = TickWriter(sales, client), TickWriter(sales, {"bootstrap.servers": "127.0.0.1:1"})
    with capture_logs() as said:
        for at_ms in range(1000, 4000, 1000):
            nowhere.write([(0, at_ms)])

        def is_said() -> bool:
            nowhere.write([])
            return bool(said)

        eventually(is_said, 20, "it is said")
        for at_ms in range(4000, 6000, 1000):
            nowhere.write([(0, at_ms)])
    assert [entry["event"] for entry in said] == ["timer ticks cannot be written, so timers are stalled"]
    nowhere.close()
    writer.write([(0, 1000), (1, 2000)])
    # Before it leaves: on a machine that stands still for seconds it leaves without them, as it may.
    eventually(lambda: ticks(client) == {0: [1000], 1: [2000]}, 20, "the others are there")
    writer.close()
