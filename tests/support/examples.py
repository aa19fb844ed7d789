"""Examples of the documentation, and a project with several of them."""

import json
import shutil
from pathlib import Path

from onefold.cli import starter
from onefold.pipelines import PROJECT_FILE
from tests.support.command_line import ROOT

EXAMPLES = ROOT / "examples"

#: A pipeline whose input is the output of the pipeline from `onefold new orders`.
_BIG = {
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
_BIG_DECLARED = '[tool.onefold.pipelines.big]\ntopology = "big:TOPOLOGY"\nworkload = "big_workload"\n'
#: Line that excludes Onefold's built-in pipelines from a project.
_ALONE = "packages = []\n"
_HEAD = "[tool.onefold]\n"


def write_project(project: Path) -> None:
    """Write a project with the built-in pipelines, `orders` of the template, `big`, and the examples `shop` and `sales`."""
    starter.write("orders", project)
    file = project / PROJECT_FILE
    declared = [file.read_text(encoding="utf-8").replace(_ALONE, ""), _BIG_DECLARED]
    for name, text in _BIG.items():
        (project / name).write_text(text, encoding="utf-8")
    for example in ("shop", "sales"):
        shutil.copytree(EXAMPLES / example, project, dirs_exist_ok=True)
        declared.append(file.read_text(encoding="utf-8").replace(_HEAD + _ALONE, ""))
    file.write_text("\n".join(declared), encoding="utf-8")
