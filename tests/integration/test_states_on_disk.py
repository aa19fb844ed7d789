"""States on disk, on a real broker: processes that are killed, also in the middle of a checkpoint, and what they leave."""

import itertools
import re
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onefold.processor.core.topology import Topology
from onefold.processor.runtime.keeping import AUTO, DISK
from onefold.workloads import trades
from tests.support.processes import drained, instance, judge, produce
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("states-on-disk")

MakeDomain = Callable[..., Topology]


def wave(seed: int, count: int = 300) -> list[tuple[bytes | None, bytes | None]]:
    return [(made.key, made.value) for made in trades.generate(seed, count)]


def came(log: Path) -> list[str]:
    """How the states of each task that was opened came."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", log.read_text(encoding="utf-8"))
    return re.findall(r"task runs .*kept='(.*?)' ", plain)


def has_both(log: Path) -> bool:
    """Tasks, of two."""
    return len(came(log)) == 2


def test_kill_9_at_every_step_of_a_checkpoint(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path) -> None:
    """Whatever was on its way to disk, the answers are right; and a start goes on from the checkpoint when there is one."""
    topology = fresh_domain("trades")
    states: Any = [DISK, str(tmp_path / "states"), 16 << 20]
    for number, failpoint in enumerate(("before_checkpoint:1", "after_commit:3")):
        produce(client, topology.inputs[0], wave(number))
        with instance(topology, client, tmp_path / "log", failpoint=failpoint, states=states) as process:
            assert process.wait(30) == -signal.SIGKILL, f"killed at {failpoint}"
    for file in (tmp_path / "states" / "trades" / "0").glob("CURRENT"):
        file.write_text("junk", encoding="utf-8")
    with instance(topology, client, tmp_path / "log", failpoint="after_clear:1", states=states) as process:
        assert process.wait(30) == -signal.SIGKILL, "killed when the files were deleted"
    with instance(topology, client, tmp_path / "log", states=states):
        drained(topology, client)
    produce(client, topology.inputs[0], wave(9))
    with instance(topology, client, tmp_path / "last", states=states):
        drained(topology, client)

    assert came(tmp_path / "last") == ["disk (as set, gone on from their checkpoint)"] * 2
    assert judge(topology, client).counts.accepted > 100


def test_states_that_grow_go_to_disk_and_the_status_says_so(
    fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path
) -> None:
    """In the middle of the work; killed after that, the next one finds them there."""
    topology = fresh_domain("trades")
    options: dict[str, Any] = {"states": [AUTO, str(tmp_path / "states"), 200_000]}
    status = tmp_path / "status.json"
    with instance(topology, client, tmp_path / "log", **options, status_file=str(status)) as process:
        eventually(partial(has_both, tmp_path / "log"), 30, "it has both tasks")
        produce(client, topology.inputs[0], wave(1, 2_000))
        drained(topology, client)
        told = "states on disk (more than 0 MB, taken there while it ran)"
        eventually(lambda: told in status.read_text(encoding="utf-8"), 10, "the status says where they are")
        process.kill()
    produce(client, topology.inputs[0], wave(2, 2_000))
    with instance(topology, client, tmp_path / "last", **options):
        drained(topology, client)

    assert came(tmp_path / "log") == ["memory (less than 0 MB each)"] * 2
    assert came(tmp_path / "last") == ["disk (more than 0 MB, gone on from their checkpoint)"] * 2
    judge(topology, client)


@pytest.mark.long  # 11 s
def test_replicas_have_their_states_on_disk(fresh_domain: MakeDomain, client: dict[str, str], tmp_path: Path) -> None:
    """Two on one machine have files each. One is killed while it writes and while it deletes them; each start rebuilds them, also
    when both were killed. And back to one task, which makes its files anew.
    """
    topology = fresh_domain("trades")
    states = tmp_path / "states"
    options: dict[str, Any] = {"states": [DISK, str(states), 16 << 20], "replicas": 2}
    seeds = itertools.count(100)

    def dies(b: "subprocess.Popen[bytes]") -> bool:
        if b.poll() is None:
            produce(client, topology.inputs[0], wave(next(seeds), 20))
        return b.poll() is not None

    with instance(topology, client, tmp_path / "a", name="a", **options) as a:
        eventually(partial(has_both, tmp_path / "a"), 30, "it has both tasks")
        produce(client, topology.inputs[0], wave(0))
        for failpoint in ("before_flush:1", "after_clear:1", "after_apply:1"):
            drained(topology, client)  # else it may come to a decision before it has opened its other task
            with instance(topology, client, tmp_path / "b", name="b", failpoint=failpoint, **options) as b:
                if failpoint == "after_apply:1":
                    eventually(partial(has_both, tmp_path / "b"), 30, "it has both tasks again")
                eventually(partial(dies, b), 60, f"it comes to {failpoint}")
                assert b.wait(0) == -signal.SIGKILL
        drained(topology, client)
        a.kill()
    produce(client, topology.inputs[0], wave(8))
    with (
        instance(topology, client, tmp_path / "c", name="a", **options),
        instance(topology, client, tmp_path / "d", name="b", **options),
    ):
        for name in "cd":
            eventually(partial(has_both, tmp_path / name), 30, f"{name} has both tasks")
        drained(topology, client)
    rebuilt = "disk (as set, restored from the changelog)"
    assert came(tmp_path / "c") + came(tmp_path / "d") == [rebuilt] * 4
    assert {file.name for file in states.glob("trades/*.1")} == {"0.1", "1.1"}

    produce(client, topology.inputs[0], wave(9))
    with instance(topology, client, tmp_path / "e", name="e", states=options["states"]):
        drained(topology, client)
    assert {file.name for file in states.glob("trades/*.1")} == set()
    assert judge(topology, client).counts.accepted > 100
