"""`onefold bench`: how fast Onefold is here, on a stack of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from console.errors import UserError
from console.progress import Progress
from console.settings import PARTITIONS_MAX

if TYPE_CHECKING:
    from proof.bench.stand import Stand


class What(StrEnum):
    """What can be measured."""

    PROCESSOR = "processor"
    SINK = "sink"
    LATENCY = "latency"


def command(
    what: Annotated[What, typer.Argument(help="What to measure.")],
    events: Annotated[int, typer.Option(min=1000, help="Events in the topic beforehand (processor, sink).")] = 500_000,
    instances: Annotated[int, typer.Option(min=1, max=16, help="Processors side by side (processor).")] = 1,
    rate: Annotated[int, typer.Option(min=1, help="Events a second (latency).")] = 1000,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long, after a warm-up (latency).")] = 30.0,
    partitions: Annotated[int, typer.Option(min=1, max=PARTITIONS_MAX, help="Partitions of every topic.")] = 4,
    seed: Annotated[int, typer.Option(help="The same seed generates the same events.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine and figures as JSON.")] = False,
) -> None:
    """Measure on a broker and a database of its own, with the runner domain, and print figures with what they ran on.

    processor: events folded a second. sink: output records landed a second. latency: from produce to a visible row.

    Example: onefold bench processor --instances 2
    """
    from proof.bench import latency, machine, processor, sink
    from proof.bench.stand import stand

    measure: dict[What, Callable[[Stand], dict[str, Any]]] = {
        What.PROCESSOR: lambda place: processor.measure(place, events, instances, seed),
        What.SINK: lambda place: sink.measure(place, events, seed),
        What.LATENCY: lambda place: latency.measure(place, rate, seconds, seed),
    }
    progress = Progress()
    try:
        with stand(partitions, progress.say) as place:
            told = machine.describe(place.infrastructure)
            figures = measure[what](place)
    except RuntimeError as error:
        raise UserError(f"nothing was measured: {error}") from None
    finally:
        progress.clear()
    if as_json:
        typer.echo(json.dumps({"bench": what, "machine": told, "figures": figures}, indent=1))
        return
    _render(what, told, figures)


def _render(what: What, told: dict[str, str], figures: dict[str, Any]) -> None:
    table = Table(title=f"onefold bench {what}", title_justify="left", title_style="bold", show_header=False)
    for name, value in told.items():
        table.add_row(name, value, style="dim")
    table.add_section()
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), f"{value:,}")
    Console().print(table)
