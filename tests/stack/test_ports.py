"""Which ports a stack gets, and that nobody else is given them while nobody listens on them."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML has no types

from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.operate.progress import Progress
from onefold.stack import control, ports
from onefold.stack.embedded import Infrastructure
from onefold.stack.plan import Plan
from onefold.stack.ports import PORTS, Keeping, Ports, choose_ports, free_ports
from tests.support.coded import raises

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nothing is kept")


def is_kept(port: int) -> bool:
    """Whether somebody has bound it."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


@pytest.fixture
def keeping() -> Iterator[Keeping]:
    with closing(Keeping()) as made:
        yield made


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two ports, and there are no others."""
    made = free_ports(2)
    monkeypatch.setattr(ports, "PORTS", made)
    return made


def test_ports_differ_lie_below_the_range_of_outgoing_connections_and_are_kept(tmp_path: Path) -> None:
    first = choose_ports(tmp_path)
    assert len(set(vars(first).values())) == 4
    assert all(port in PORTS for port in vars(first).values())
    assert choose_ports(tmp_path) == first


def test_a_port_that_another_program_took_meanwhile_is_replaced(tmp_path: Path) -> None:
    first = choose_ports(tmp_path)
    with socket.create_server(("127.0.0.1", first.kafka)):
        second = choose_ports(tmp_path)
    assert second.kafka != first.kafka
    assert Ports(first.kafka, second.controller, second.postgres, second.dashboard) == first


def test_taken_ports_are_an_error_that_names_the_ports_the_programs_and_the_settings(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        (postgres,), kafka, dashboard = free_ports(1), one.getsockname()[1], two.getsockname()[1]
        with pytest.raises(UserError) as refusal:
            choose_ports(tmp_path, kafka=kafka, postgres=postgres, dashboard=dashboard)
        assert ports._listener(postgres) == "another program"
    me = f"{psutil.Process().name()} (pid {os.getpid()})"
    assert refusal.value.code is Code.PORT_TAKEN
    assert refusal.value.message == (
        f"port {kafka} (ONEFOLD_KAFKA_PORT) is taken by {me}; port {dashboard} (ONEFOLD_DASHBOARD_PORT) is taken by {me}"
    )
    assert "ONEFOLD_KAFKA_PORT=0 ONEFOLD_DASHBOARD_PORT=0" in refusal.value.hint


def test_a_port_that_was_asked_for_wins_over_the_last_one(tmp_path: Path) -> None:
    first, (other,) = choose_ports(tmp_path), free_ports(1)
    assert choose_ports(tmp_path, kafka=other) == replace(first, kafka=other)


def test_the_default_ports_are_those_that_compose_publishes(monkeypatch: pytest.MonkeyPatch) -> None:
    compose = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    for name in ("kafka", "postgres", "dashboard"):
        monkeypatch.delenv(f"ONEFOLD_{name.upper()}_PORT")
        default = getattr(Settings(), f"{name}_port")
        assert compose[name]["ports"][0].startswith(f"127.0.0.1:${{{name.upper()}_PORT:-{default}}}:")


@linux_only
def test_a_port_that_is_kept_is_given_to_nobody_else(two: list[int], keeping: Keeping) -> None:
    assert set(free_ports(2)) == set(two)
    keeping.keep(two[:1])
    assert free_ports(1) == two[1:]
    with raises(UserError, Code.PORT_TAKEN):
        free_ports(2)
    keeping.close()
    assert set(free_ports(2)) == set(two)


@linux_only
def test_whoever_a_port_is_kept_for_can_listen_on_it_again_and_again(two: list[int], keeping: Keeping) -> None:
    keeping.keep(two)
    for _ in range(2):
        with socket.create_server(("127.0.0.1", two[0])) as server, socket.create_connection(server.getsockname()):
            assert server.accept()


@linux_only
def test_a_port_may_be_kept_by_two_and_what_cannot_be_kept_is_no_error(two: list[int], keeping: Keeping) -> None:
    """By whoever starts a stack, and by its supervisor; that another program has it says the service that wants it."""
    with closing(Keeping()) as first, socket.create_server(("127.0.0.1", two[1])):
        first.keep([0, *two])
        keeping.keep(two[:1])
    assert free_ports(1) == two[1:]


def kept_at(step: str, told: Callable[[], list[int]], home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, bool]:
    """Of these ports which are kept when `up` comes to a step of its own, which is its last one here."""
    seen: dict[int, bool] = {}

    def looks(*given: Any, **named: Any) -> None:
        seen.update({port: is_kept(port) for port in told()})
        raise UserError(Code.ARGUMENT_WRONG, "that is enough")

    monkeypatch.setattr(signal, "signal", lambda *given: None)  # `up` would take the test's own
    monkeypatch.setattr(control, step, looks)
    with pytest.raises(UserError, match="that is enough"):
        control.up(Settings(home=home), [], [], Progress())
    assert not any(map(is_kept, seen))
    return seen


@linux_only
def test_the_ports_of_a_stack_are_kept_while_its_parts_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jars may take minutes."""
    chosen = tmp_path / "run" / "ports.json"
    seen = kept_at("prepare", lambda: [*json.loads(chosen.read_text(encoding="utf-8")).values()], tmp_path, monkeypatch)
    assert [*seen.values()] == [True] * 4


@linux_only
def test_those_of_metrics_are_kept_until_the_supervisor_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (metrics,) = free_ports(1)
    monkeypatch.setattr(control, "_plan", lambda *given: Plan([], {"metrics": {"one": metrics}}))
    assert kept_at("_start_supervisor", lambda: [metrics], tmp_path, monkeypatch) == {metrics: True}


@linux_only
@pytest.mark.broker
@pytest.mark.postgres
def test_what_runs_in_the_foreground_keeps_its_ports_too(infrastructure: Infrastructure) -> None:
    """One of a dashboard is chosen with the others, and here nobody ever listens on it."""
    chosen = json.loads((infrastructure.broker.home.parent / "run" / "ports.json").read_text(encoding="utf-8"))
    assert is_kept(chosen["dashboard"])
