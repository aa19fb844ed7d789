"""Shared by the measurements: options, a separate stack, and the display of the figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from onefold.cli.console import console
from onefold.config.errors import UserError
from onefold.config.settings import PARTITIONS_MAX, Settings
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.operate import pipelines
from onefold.operate.progress import StageProgress

if TYPE_CHECKING:
    from onefold.bench.environment import BenchmarkEnvironment
    from onefold.bench.workload import MeasuredPipeline

Figures = dict[str, Any]

PARTITIONS: int = Settings.model_fields["partitions"].default

DEFAULT = "runner"

Pipeline = Annotated[
    str,
    typer.Option(
        help=f"A pipeline with an event generator; {DEFAULT} if none is named, or the project's first.",
        show_default=False,
    ),
]
Events = Annotated[int, typer.Option(min=1000, help="Events in the topic beforehand.")]
Partitions = Annotated[int, typer.Option(min=1, max=PARTITIONS_MAX, help="Partitions of every topic.")]
Seed = Annotated[int, typer.Option(help="The same seed generates the same events.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print machine and figures as JSON.")]


def run(
    what: str,
    name: str,
    partitions: int,
    as_json: bool,
    measure: Callable[[BenchmarkEnvironment, MeasuredPipeline], Figures],
) -> None:
    """Measure a pipeline on a fresh stack and print the figures.

    Args:
        name: the pipeline; "" for the default.

    Raises:
        UserError: the pipeline has no event generator, or the measurement failed.
    """
    from onefold.bench.workload import workload

    found = workload(name or _default())
    with fresh_stack(found.name, partitions) as (place, described):
        figures = measure(place, found)
    if as_json:
        typer.echo(json.dumps({"bench": what, "machine": described, "figures": figures}, indent=1))
    else:
        render(f"bench {what}", described, figures)


def _default() -> str:
    """The pipeline of docs/performance.md; in another project, the first pipeline with an event generator."""
    found = pipelines.found().pipelines
    able = [name for name, pipeline in found.items() if pipeline.workload]
    if not able:
        raise UserError(
            Code.NO_GENERATOR,
            "no pipeline of this project has an event generator",
            "`onefold new orders` makes one with a generator.",
            USAGE,
        )
    return DEFAULT if DEFAULT in able else able[0]


@contextmanager
def fresh_stack(pipeline: str, partitions: int) -> Iterator[tuple[BenchmarkEnvironment, dict[str, str]]]:
    """A separate broker and database with a pipeline's topics and tables, and the description of the machine.

    Raises:
        UserError: the measurement failed.
    """
    from onefold.bench import machine
    from onefold.bench.environment import benchmark_environment

    progress = StageProgress()
    try:
        with benchmark_environment(pipeline, partitions, progress.say) as place:
            yield place, machine.describe(place.infrastructure)
    except RuntimeError as error:
        raise UserError(Code.MEASUREMENT_FAILED, f"nothing was measured: {error}") from None
    finally:
        progress.clear()


def render(verb: str, described: dict[str, str], figures: Figures) -> None:
    """Print machine and figures as a table, without the figures that are None."""
    table = Table(title=f"onefold {verb}", title_justify="left", title_style="bold", show_header=False)
    for name, value in described.items():
        table.add_row(name, value, style="dim")
    table.add_section()
    for name, value in figures.items():
        if value is not None:
            table.add_row(name.replace("_", " "), _as_text(value))
    console().print(table)


def _as_text(value: str | float | list[float]) -> str:
    if isinstance(value, list):
        return ", ".join(map(_as_text, value))
    return value if isinstance(value, str) else f"{value:,}"
