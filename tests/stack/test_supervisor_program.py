"""The supervisor as the program that `onefold up` starts."""

import signal
import subprocess
import sys
from pathlib import Path

from onefold.config import stack_state
from onefold.stack.plan import StackPlan
from onefold.stack.ports import choose_ports, free_ports
from tests.stack.test_ports import is_kept, linux_only
from tests.stack.test_supervisor import FOREVER, SAY_RUNNING, service
from tests.support.waiting import eventually


@linux_only
def test_a_hangup_has_the_plan_read_again(tmp_path: Path) -> None:
    """With a plan that gets one service more while it runs; the other one stays what it was.
    The ports of both are kept for them as long as it runs.
    """
    forever = f"{SAY_RUNNING} {FOREVER}"
    one, two = service(tmp_path, "one", forever), service(tmp_path, "two", forever)
    chosen = choose_ports(tmp_path)
    metrics = [port for port in free_ports(6) if port not in vars(chosen).values()][:2]
    StackPlan([[one]], {"metrics": {"one": metrics[0]}}).write(tmp_path)
    process = subprocess.Popen([sys.executable, "-P", "-m", "onefold.stack.supervisor", str(tmp_path)])

    def pids(*names: str) -> dict[str, int] | None:
        services = stack_state.read(tmp_path).get("services", {})
        well = services.keys() == set(names) and all(entry["state"] == "running" for entry in services.values())
        return {name: entry["pid"] for name, entry in services.items()} if well else None

    def kept() -> list[int]:
        return [port for port in (*vars(chosen).values(), *metrics) if is_kept(port)]

    try:
        eventually(lambda: pids("one"), 10, "the first plan runs")
        before = pids("one")
        assert kept() == [*vars(chosen).values(), metrics[0]]
        StackPlan([[one, two]], {"plan": 1, "metrics": {"one": metrics[0], "two": metrics[1]}}).write(tmp_path)
        process.send_signal(signal.SIGHUP)
        eventually(lambda: pids("one", "two"), 10, "the second plan runs")
        after = pids("one", "two")
        assert before is not None
        assert after is not None
        assert after["one"] == before["one"]
        assert stack_state.read(tmp_path)["plan"] == 1
        assert kept() == [*vars(chosen).values(), *metrics]
    finally:
        process.terminate()
        process.wait(20)
    assert kept() == []
