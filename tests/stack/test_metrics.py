"""Which port each service's metrics are on."""

import os
import socket
from pathlib import Path

import psutil
import pytest

from onefold.cli.commands import status
from onefold.config import stack_state
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.stack import foreground, metrics
from onefold.stack.ports import free_ports
from onefold.stack.service import Ready, SupervisedService
from tests.support.coded import raises


def service(name: str) -> SupervisedService:
    return SupervisedService(name, ("true",), Path("log"), Ready("done"))


def stages(*names: str) -> list[list[SupervisedService]]:
    return [[service("kafka")], [service("prepare")], [*map(service, names), service("dashboard")]]


def ports_of(found: list[list[SupervisedService]]) -> dict[str, int]:
    return {
        one.name: int(one.environment[metrics.VARIABLE])
        for stage in found for one in stage if metrics.VARIABLE in one.environment
    }  # fmt: skip


def test_each_service_that_has_metrics_has_a_port_of_its_own() -> None:
    names = ("processor-orders-1", "worker-orders-1", "sink-1")
    told, public = metrics.placed(stages(*names), {"metrics": {}, "dashboard": None}, 0)

    assert ports_of(told) == public["metrics"]
    assert public["metrics"].keys() == set(names)
    assert len(set(public["metrics"].values())) == 3
    assert public["dashboard"] is None


def test_who_is_added_takes_a_port_from_nobody() -> None:
    """A service whose port changed would be started again."""
    _, public = metrics.placed(stages("processor-orders-1", "sink-1"), {"metrics": {}}, 0)
    told, more = metrics.placed(stages("processor-mails-1", "processor-orders-1", "sink-1"), public, 0)

    assert public["metrics"].items() <= more["metrics"].items()
    assert len(set(ports_of(told).values())) == 3


def test_a_stack_of_before_is_left_as_it_is() -> None:
    made = stages("processor-orders-1")
    assert metrics.placed(made, {"dashboard": None}, 0) == (made, {"dashboard": None})


def test_the_ports_begin_where_the_user_says() -> None:
    """What is taken is passed over."""
    first = free_ports(1)[0]
    with socket.create_server(("127.0.0.1", first)):
        _, public = metrics.placed(stages("processor-orders-1", "sink-1"), {"metrics": {}}, first)
        assert metrics.free_of({"sink-1": first}) == {}
    assert first < public["metrics"]["processor-orders-1"] < public["metrics"]["sink-1"]
    assert metrics.free_of({"sink-1": first}) == {"sink-1": first}
    with raises(UserError, Code.PORT_TAKEN):
        metrics.placed(stages(*(f"sink-{number}" for number in range(3))), {"metrics": {}}, metrics.PORT_MAX - 1)


@pytest.mark.parametrize(("first", "ports"), [(9464, ["9464", "9465"]), (0, ["0", "0"])])
def test_of_several_processes_in_one_command_each_has_the_next_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, ports: list[str]
) -> None:
    started: list[SupervisedService] = []
    monkeypatch.setattr(foreground, "run", lambda supervisor, publish: started.extend(
        managed.service for managed in supervisor.stages[0]))  # fmt: skip
    foreground.process({"orders": 1, "mails": 1}, "1", tmp_path / "status.json", first)

    assert [one.environment[metrics.VARIABLE] for one in started] == ports


def test_status_shows_them(tmp_path: Path) -> None:
    """Where each answers, by its name."""
    supervisor = {"supervisor_pid": os.getpid(), "create_time": psutil.Process().create_time()}
    running = {**supervisor, "metrics": {"sink-1": 21001, "processor-orders-1": 21002}}
    stack_state.write(stack_state.path(tmp_path), running)
    addresses = status.describe(Settings(home=tmp_path))["metrics"]

    assert addresses == {"sink-1": "http://127.0.0.1:21001", "processor-orders-1": "http://127.0.0.1:21002"}
