"""A contract gains a field, and a project's services are upgraded one by one while the old version still runs: on real parts, by
the commands that an operator has, in the order that docs/evolution.md gives.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from onefold.cli import starter
from tests.support.command_line import Onefold
from tests.support.infrastructure import delete_topics
from tests.support.processes import opened, produce, records
from tests.support.single_object import single_object
from tests.support.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.postgres, pytest.mark.spark, pytest.mark.promise("rolling-upgrades")]
NAME = "rolling"
ORDERS, TOTALS = f"{NAME}.orders", f"{NAME}.totals"
CUSTOMERS = 12
READY_S = 120  # Spark starts in ten on an idle machine
#: A file, what is in it, and what the new version has in its place: an order comes from the shop or from the web, and how many
#: came from the web is counted.
CHANGES = [
    ("avro/rolling.Order.avsc", '"type": "long", "doc": "goes up with every change of the order"}',
     '"type": "long"},\n{"name": "channel", "type": "string", "default": "shop"}'),
    ("avro/rolling.Total.avsc", '"type": "long", "doc": "how often anything changed; never goes back"}',
     '"type": "long"},\n{"name": "web", "type": "long", "default": 0}'),
    ("rolling.py", "    cents: int\n\n", '    cents: int\n    channel: str = "shop"\n\n'),
    ("rolling.py", "Order(value.version, value.state, value.cents)",
     "Order(value.version, value.state, value.cents, value.channel)"),
    ("rolling.py", '"changes": customer.changes,',
     '"changes": customer.changes, "web": sum(order.channel == "web" for order in orders),'),
    ("rolling_workload.py", "self._changes[customer], placed + paid)",
     'self._changes[customer], sum(order["channel"] == "web" for order in orders.values()), placed + paid)'),
    ("sql/merge/rolling.totals.sql", "changes, topic, partition", "changes, web, topic, partition"),
    ("sql/merge/rolling.totals.sql", "    topic        = ", "    web          = excluded.web,\n    topic        = "),
]  # fmt: skip


@pytest.fixture
def versions(tmp_path: Path, bootstrap_servers: str, database: str) -> Iterator[tuple[Onefold, Onefold]]:
    """The project as it was, and as it is to be, each in a folder of its own and with the same servers."""
    made = []
    for version in ("old", "new"):
        folder = tmp_path / version
        starter.write(NAME, folder)
        one = Onefold(folder)
        one.environment |= {
            "ONEFOLD_BOOTSTRAP_SERVERS": bootstrap_servers,
            "ONEFOLD_POSTGRES_DSN": database,
            "ONEFOLD_PARTITIONS": "2",
        }
        made.append(one)
    old, new = made
    (new.home / "avro" / "earlier").mkdir()
    for contract in ("rolling.Order", "rolling.Total"):
        shutil.copy(old.home / f"avro/{contract}.avsc", new.home / f"avro/earlier/{contract}.1.avsc")
    for name, was, becomes in CHANGES:
        path, text = new.home / name, (new.home / name).read_text(encoding="utf-8")
        assert was in text, f"{name} has other words"
        path.write_text(text.replace(was, becomes), encoding="utf-8")
    added = "ALTER TABLE rolling.totals ADD COLUMN web bigint NOT NULL DEFAULT 0;\n"
    (new.home / "sql/schema/rolling.02.sql").write_text(added, encoding="utf-8")
    yield old, new
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    delete_topics(admin, tuple(topic for topic in admin.list_topics().topics if topic.startswith(f"{NAME}.")))


@contextmanager
def running(onefold: Onefold, verb: str, *options: str) -> Iterator[Callable[[], int]]:
    """A service; what it gives stops it in order, and returns its exit code. Stopped at the end at the latest."""
    process: subprocess.Popen[bytes] = onefold.start(verb, NAME, *options)

    def stop() -> int:
        process.terminate()
        return process.wait(40)

    try:
        yield stop
    finally:
        if process.poll() is None:
            stop()


def orders(wave: int, **more: Any) -> list[dict[str, Any]]:
    """One of each customer."""
    of_all = {"cents": 100 + wave, "state": "placed", "version": 0, **more}
    return [{"id": f"A-{wave}-{number}", "customer": f"C-{number}", **of_all} for number in range(CUSTOMERS)]


def test_services_are_upgraded_one_by_one_while_the_old_version_runs(
    versions: tuple[Onefold, Onefold], client: dict[str, str], database: str
) -> None:
    """First the sink; then a new processor beside the old one, in one group: a task goes over with its states, and outputs of
    both contracts stand side by side. The old one stops, and producers of inputs, old and new ones, are last.
    """
    old, new = versions
    old("prepare", NAME)

    def folded(*inputs: bytes) -> set[bytes]:
        """When these are too, one of each customer: the fingerprints of what was written for them."""
        before = {(one.partition, one.offset) for one in records(client, TOTALS)}
        produce(client, ORDERS, [(f"C-{number}".encode(), value) for number, value in enumerate(inputs)])
        wanted = len(before) + len(inputs)
        eventually(lambda: len(records(client, TOTALS)) == wanted, 60, "all are folded")
        return {(one.value or b"")[:10] for one in records(client, TOTALS) if (one.partition, one.offset) not in before}

    def in_json(orders: list[dict[str, Any]]) -> list[bytes]:
        return [json.dumps(order).encode() for order in orders]

    with running(old, "process", "--processes", "1", "--instance", "old") as stop, running(new, "sink"):
        of_old = folded(*in_json(orders(1)))
        eventually(
            lambda: "writing from the positions" in (new.home / "sink.out").read_text(encoding="utf-8"),
            READY_S,
            "it lands",
        )
        with running(new, "process", "--processes", "1", "--instance", "new"):
            eventually(lambda: opened(new.home / "process.out"), 60, "a task goes over to the new version")
            of_both = folded(*in_json(orders(2)))
            assert len(of_old) == 1
            assert len(of_both) == 2, "each version has folded some"
            assert of_old < of_both
            assert stop() == 0
            eventually(lambda: opened(new.home / "process.out").keys() == {0, 1}, 60, "all tasks went over")
            was = json.loads((old.home / "avro/rolling.Order.avsc").read_text(encoding="utf-8"))
            of_new = folded(*in_json(orders(3, channel="web")))
            assert of_new == folded(*(single_object(was, order) for order in orders(4))) == of_both - of_old

            assert "rolling: valid" in new("verify", NAME)
    with psycopg.connect(database) as connection:
        asked = "SELECT DISTINCT orders, web, placed_cents FROM rolling.totals"
        assert connection.execute(asked).fetchall() == [(4, 1, 101 + 102 + 103 + 104)]
        assert connection.execute("SELECT count(*) FROM onefold.rejected").fetchall() == [(0,)]
