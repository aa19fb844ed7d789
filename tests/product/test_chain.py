"""Two pipelines in a row: the second one's input is the first one's output, whose headers are none of its own."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees

from tests.support.command_line import Onefold
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("headers-of-others")

CUSTOMERS = 20
FILES = {
    "big.py": '''"""How often each customer's total has changed, and what it is."""

from dataclasses import dataclass

from onefold import Event, Output, Outputs, Topology


@dataclass(frozen=True)
class Seen:
    changes: int


def handle(seen: Seen | None, event: Event) -> tuple[Seen, Outputs]:
    changes = (seen.changes if seen else 0) + 1
    total = event.value
    fields = {"customer": total.customer, "cents": total.placed_cents + total.paid_cents, "changes": changes}
    return Seen(changes), (Output("big.out", fields),)


TOPOLOGY = Topology(
    name="big",
    inputs=("orders.totals",),
    key=lambda total: total.customer,
    state=Seen,
    handle=handle,
    outputs={"big.out": ("customer",)},
)
''',
    "big_workload.py": """from onefold.model import Table, model

OUT = Table(name="big.out", topic="big.out", key=("customer",))


def apply(total, tables):
    held = tables["big.out"].get(total["customer"])
    cents = total["placed_cents"] + total["paid_cents"]
    tables["big.out"].put({"customer": total["customer"], "cents": cents, "changes": (held["changes"] if held else 0) + 1})


WORKLOAD = model("big", apply, inputs=("orders.totals",), key="customer", tables=(OUT,))
""",
    "avro/big.Out.avsc": json.dumps(
        {
            "type": "record",
            "name": "Out",
            "namespace": "big",
            "topics": ["big.out"],
            "fields": [
                {"name": "customer", "type": "string"},
                {"name": "cents", "type": "long"},
                {"name": "changes", "type": "long"},
            ],
        }
    ),
    "sql/schema/big.01.sql": """CREATE SCHEMA IF NOT EXISTS big;
CREATE TABLE big.out (
    customer text PRIMARY KEY, cents bigint, changes bigint, topic text, partition integer, "offset" bigint
);
""",
    "sql/merge/big.out.sql": """INSERT INTO big.out AS held (customer, cents, changes, topic, partition, "offset")
SELECT DISTINCT ON (customer) customer, cents, changes, topic, partition, "offset" FROM :stage AS stage
ORDER BY customer, changes DESC
ON CONFLICT (customer) DO UPDATE SET cents = excluded.cents, changes = excluded.changes, topic = excluded.topic,
    partition = excluded.partition, "offset" = excluded."offset"
WHERE excluded.changes > held.changes;
""",
}
DECLARED = '\n[tool.onefold.pipelines.big]\ntopology = "big:TOPOLOGY"\nworkload = "big_workload"\n'


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Onefold]:
    """A stack with the template's pipeline, and one more that reads what it writes."""
    onefold = Onefold(tmp_path)
    onefold("new", "orders", "--into", "orders")
    project = tmp_path / "orders"
    onefold.environment["ONEFOLD_PROJECT"] = str(project)
    for name, text in FILES.items():
        (project / name).write_text(text, encoding="utf-8")
    declared = project / "pyproject.toml"
    text = declared.read_text(encoding="utf-8")
    before, tool, after = text.partition("\n[tool.pytest")
    declared.write_text(f"{before}{DECLARED}{tool}{after}", encoding="utf-8")
    onefold("check")
    try:
        onefold("up")
        yield onefold
    finally:
        onefold("down", "--wipe", "--yes")


def orders(version: int) -> bytes:
    """One of each customer."""
    made = [
        {"id": f"o{number}", "customer": f"c{number}", "version": version, "state": "placed", "cents": 100 * version}
        for number in range(CUSTOMERS)
    ]
    return b"".join(json.dumps(one).encode() + b"\n" for one in made)


@pytest.mark.broker
@pytest.mark.postgres
@pytest.mark.spark
def test_two_pipelines_in_a_row(chain: Onefold) -> None:
    """Both are *valid*. Then the topic between them gets a partition: the first one's sink lands what comes into it, and of the
    second one everything says that it does not read it.
    """
    for version in (1, 2):
        chain("produce", "orders.orders", says=orders(version))
        chain.drained()
    assert {one[:2] for one in chain.rows("SELECT cents, changes, customer FROM big.out")} == {(200, 2)}
    for name in ("orders", "big"):
        assert f"{name}: valid" in chain("verify", name, "--timeout", "120")

    status = chain.status()
    admin = AdminClient({"bootstrap.servers": status["bootstrap_servers"]})
    admin.create_partitions([NewPartitions("orders.totals", 5)])["orders.totals"].result()
    says = "orders.totals has 5 partitions, and big"
    eventually(lambda: says in chain.services()["processor-big-1"]["detail"], 60, "the service says so")
    assert says in chain.status()["partitions"]["big"]

    os.kill(chain.pid("processor-orders-1"), signal.SIGKILL)  # its next producer sees the new partition at once
    chain("produce", "orders.orders", says=orders(3))
    landed = "SELECT count(*) FILTER (WHERE partition = 4) > 0, count(*), min(placed_cents) FROM orders.totals"
    eventually(lambda: chain.rows(landed) == [(True, CUSTOMERS, 300)], 120, "the sink lands what lies in it")
