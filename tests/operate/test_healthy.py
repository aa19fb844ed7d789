"""A container's health check asks whether a service gets on, and not only whether it is there."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from onefold import status_file
from onefold.config import metrics_server
from onefold.operate import healthy
from onefold.stack import foreground

pytestmark = pytest.mark.promise("unhealthy-is-said")

NOW = 100.0


@pytest.fixture
def status(tmp_path: Path) -> Path:
    """Of a service that is there."""
    path = tmp_path / "status.json"
    status_file.write(path, "running", "4 tasks", NOW)
    return path


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Two, one after the other, at which nobody listens."""
    for port in range(20_011, 30_000, 2):
        with ExitStack() as taken:
            try:
                for each in (port, port + 1):
                    taken.enter_context(socket.create_server(("127.0.0.1", each)))
            except OSError:
                continue
        yield port, port + 1
        return
    pytest.fail("no two ports are free")


def serve(port: int, stands: str = "") -> metrics_server.Exposed:
    """A process that says how it is: well, or what keeps it."""
    told = metrics_server.Exposed("worker", ["orders"], 60)
    if stands:
        told.stands("orders", "", -1e6, stands)
    metrics_server.serve(told, "127.0.0.1", port)
    return told


def asked(status: Path, port: int = 0) -> str:
    return healthy.trouble(status, NOW, port)


def test_one_that_is_there_and_does_not_get_on_is_not_healthy(status: Path, ports: tuple[int, int]) -> None:
    """Though its status is fresh. One whose process does not answer is not, either."""
    assert asked(status) == ""
    assert asked(status, ports[0]) == f"127.0.0.1:{ports[0]} does not say how it is: [Errno 111] Connection refused"
    told = serve(ports[0])
    assert asked(status, ports[0]) == ""
    told.stands("orders", "", -1e6, "a handler hangs")
    assert asked(status, ports[0]).startswith("orders: no progress for ")
    assert asked(status, ports[0]).endswith(" s: a handler hangs")
    told.stands("orders", "", 1e12, "")
    assert asked(status, ports[0]) == ""


def test_of_several_processes_each_is_asked(status: Path, ports: tuple[int, int]) -> None:
    """They have the next ports, and status files beside the one of all."""
    serve(ports[0])
    for name in ("orders", "mails"):
        status_file.write(foreground.beside(status, name), "running", "2 tasks", NOW)
    assert asked(status, ports[0]).startswith(f"127.0.0.1:{ports[1]} does not say how it is: ")
    told = serve(ports[1], "its job never ends")
    assert asked(status, ports[0]).endswith(": its job never ends")
    told.stands("orders", "", 1e12, "")
    assert asked(status, ports[0]) == ""


def test_one_that_is_no_process_answers_nowhere(status: Path, ports: tuple[int, int]) -> None:
    """As workers where no pipeline has jobs."""
    status_file.write(status, **{**foreground.summary({}, {}), "updated_at": NOW})
    assert asked(status, ports[0]) == ""


def test_one_that_has_only_begun_is_not_asked(status: Path, ports: tuple[int, int]) -> None:
    """It need not answer yet, and says itself what it waits for."""
    status_file.write(status, "waiting", "Kafka does not answer", NOW)
    assert asked(status, ports[0]) == "waiting: Kafka does not answer"


def test_one_that_is_frozen_is_not_waited_for(status: Path, ports: tuple[int, int]) -> None:
    """Its port takes the connection, and nothing comes."""
    with closing(socket.create_server(("127.0.0.1", ports[0]))):
        found = healthy.trouble(status, NOW, ports[0], answer_s=0.2)
    assert found == f"127.0.0.1:{ports[0]} does not say how it is: timed out"


def test_the_command_takes_a_port(status: Path, ports: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    """And does without."""
    status_file.write(status, "running", "4 tasks", time.time())
    assert (healthy.main([str(status)]), capsys.readouterr().out) == (0, "running\n")
    assert healthy.main([str(status), str(ports[0])]) == 1
    assert "does not say how it is" in capsys.readouterr().out
    told = serve(ports[0])
    assert (healthy.main([str(status), str(ports[0])]), capsys.readouterr().out) == (0, "running\n")
    told.faulty("orders", "3 differences")
    assert (healthy.main([str(status), str(ports[0])]), capsys.readouterr().out) == (1, "orders: 3 differences\n")
