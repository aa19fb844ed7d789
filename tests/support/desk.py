"""Pipeline `desk`, which parks keys, in the version given by an environment variable."""

import json
import os
from pathlib import Path
from typing import Any

from msgspec import Struct

from onefold import Event, Outputs, Rejected, Topology
from onefold.model import Inadmissible
from onefold.verify.expect import Table, Workload
from onefold.verify.model import model

PARTITIONS = 2
EVENTS, OTHERS, TAKEN = "desk.events", "desk.others", "desk.taken"
DEAD = f"{EVENTS}.dead"
#: The version that accepts every event.
LAST = 3
SCHEMAS: dict[str, dict[str, Any]] = {
    EVENTS: {"desk": "string", "number": "long", "wants": "long"},
    OTHERS: {"desk": "string", "number": "long", "wants": "long"},
    TAKEN: {"desk": "string", "numbers": "string"},
}


class Desk(Struct):
    """Numbers of the accepted events, in order."""

    numbers: str


class Program:
    """The handler in several versions: each accepts events that want the same or an earlier version.

    Of the refused events, those with an even number are rejected, and those with an odd number hit a bug. A negative number
    has no effect.
    """

    def __init__(self) -> None:
        self.version = int(os.environ.get("DESK_VERSION", "0"))

    def handle(self, desk: Desk | None, event: Event) -> tuple[Desk | None, Outputs]:
        """Append the number."""
        number, wants = event.value.number, event.value.wants
        if wants > self.version:
            if number % 2:
                raise ZeroDivisionError(f"{number} / 0")
            raise Rejected(f"{number} wants version {wants}")
        if number < 0:
            return desk, ()
        numbers = f"{desk.numbers} {number}" if desk else str(number)
        return Desk(numbers), ((TAKEN, {"desk": event.value.desk, "numbers": numbers}),)

    def topology(self, on_dead_letter: Any = "park", inputs: tuple[str, ...] = (EVENTS,), **more: Any) -> Topology:
        """Build the pipeline's topology."""
        return Topology(
            name="desk",
            inputs=inputs,
            key=lambda value: value.desk,
            state=Desk,
            handle=lambda state, event: self.handle(state, event),
            outputs={TAKEN: ("desk",)},
            on_dead_letter=on_dead_letter,
            **more,
        )


def _apply(value: Any, tables: Any) -> None:
    if value["wants"] > LAST:
        raise Inadmissible("no version takes it")
    if value["number"] >= 0:
        held = tables[TAKEN].get(value["desk"])
        numbers = f"{held['numbers']} {value['number']}" if held else str(value["number"])
        tables[TAKEN].put({"desk": value["desk"], "numbers": numbers})


def workload(on_dead_letter: str = "park", inputs: tuple[str, ...] = (EVENTS,)) -> Workload:
    """Verification model."""
    return model(
        "desk",
        _apply,
        inputs=inputs,
        key="desk",
        tables=(Table(TAKEN, TAKEN, ("desk",)),),
        on_dead_letter=on_dead_letter,
    )


def schemas() -> dict[str, dict[str, Any]]:
    """Avro schema of each topic."""
    found = {}
    for topic, fields in SCHEMAS.items():
        columns = [{"name": name, "type": kind} for name, kind in fields.items()]
        found[topic] = {"type": "record", "name": topic.partition(".")[2], "namespace": "desk", "fields": columns}
    return found


def write_schemas(folder: Path) -> None:
    """Write a schema file for each topic."""
    folder.mkdir(exist_ok=True)
    for topic, schema in schemas().items():
        (folder / f"{topic}.avsc").write_text(json.dumps({**schema, "topics": [topic]}), encoding="utf-8")


PROGRAM = Program()
TOPOLOGY = PROGRAM.topology()
WORKLOAD = workload()
