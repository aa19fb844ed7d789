"""examples/mails: a mail for each order, over a real mail server, with the worker killed where it hurts most."""

import importlib
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.testing import TopologyDriver
from tests.support.command_line import Onefold
from tests.support.examples import EXAMPLES
from tests.support.smtp import MailServer, mail_server
from tests.support.waiting import eventually

ORDERS = 30
QUEUE = "mails.letters"


@pytest.fixture
def server() -> Iterator[MailServer]:
    with mail_server() as made:
        yield made


@pytest.fixture
def onefold(tmp_path: Path, bootstrap_servers: str, database: str, server: MailServer) -> Onefold:
    """The example against the tests' broker and database, with its topics made."""
    shutil.copytree(EXAMPLES / "mails", tmp_path / "mails")
    (tmp_path / "home").mkdir()
    onefold = Onefold(tmp_path / "home")
    onefold.environment |= {
        "ONEFOLD_PROJECT": str(tmp_path / "mails"),
        "ONEFOLD_BOOTSTRAP_SERVERS": bootstrap_servers,
        "ONEFOLD_POSTGRES_DSN": database,
        "ONEFOLD_JOB_TIMEOUT_S": "2",
        "MAIL_SERVER": server.address,
    }
    onefold("check", "mails")
    onefold("migrate", "mails")
    return onefold


@pytest.fixture
def start(onefold: Onefold) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts a command, which is killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str) -> "subprocess.Popen[bytes]":
        started.append(onefold.start(*arguments))
        return started[-1]

    yield begin
    for one in started:
        if one.poll() is None:
            one.kill()
        one.wait(10)


def orders(number: int) -> bytes:
    """Each three times, as networks have it; the last one has no address."""
    lines = [{"id": f"o{n}", "address": f"c{n}@home.example", "cents": 100 * n} for n in range(1, number + 1)]
    lines.append({"id": "odd", "address": "nowhere", "cents": 1})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines * 3)


def test_each_order_gets_its_mail(
    onefold: Onefold, start: Callable[..., "subprocess.Popen[bytes]"], server: MailServer
) -> None:
    """The worker is killed twice, in the moment after a mail was taken and before it knows: at least once, and the same
    Message-ID, by which a service that has such a key would have known.
    """
    workers, kills = list[Any](), list[int]()

    def kill_in_that_moment() -> None:
        if len(server.mails) in (5, 15) and len(kills) < 2:
            kills.append(len(server.mails))
            workers[-1].kill()
            workers[-1].wait(10)

    server.taken = kill_in_that_moment
    onefold("produce", "mails.orders", says=orders(ORDERS))
    start("process", "mails")
    for number in range(3):
        workers.append(start("work", "mails", "--instance", str(number)))
        ends = eventually(lambda: workers[-1].poll() is not None or sent(server) == ORDERS, 90, "it is killed, or done")
        assert ends

    mails = Counter(str(mail["Message-ID"]) for mail in server.mails)
    assert len(mails) == ORDERS
    assert mails["<mails.letters%2Fo7%2F0%2F1@shop.example>"] >= 1
    assert len(kills) == 2
    assert 0 < sum(mails.values()) - ORDERS <= 2
    eventually(lambda: onefold.status()["jobs"][QUEUE]["done"] == ORDERS, 60, "all are entered as done")
    shown = onefold.status()["jobs"][QUEUE]
    assert (shown["pending"], shown["reason"]) == (1, "refused: 'nowhere' is no address")


def sent(server: MailServer) -> int:
    return len({str(mail["Message-ID"]) for mail in server.mails})


def test_a_repeated_order_asks_for_no_second_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is the fold's part, and is tried without any server."""
    monkeypatch.syspath_prepend(EXAMPLES / "mails")
    topology = importlib.import_module("mails").TOPOLOGY
    driver = TopologyDriver(topology, contracts=EXAMPLES / "mails" / "avro")
    for _ in range(3):
        driver.send("mails.orders", {"id": "o1", "address": "a@home.example", "cents": 7})
    driver.run()

    letters = [{"log_id": "o1", "segment": 0, "entry": 1, "address": "a@home.example", "cents": 7}]
    assert driver.read(QUEUE) == letters
