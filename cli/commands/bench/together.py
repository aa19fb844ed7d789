"""`onefold bench together`: one sink with several pipelines."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from onefold.cli import starter
from onefold.cli.commands.bench.common import AsJson, Events, Partitions, Seed, fresh_stack, measuring, shown
from onefold.pipelines import PROJECT_FILE, PROJECT_VARIABLE


def command(
    pipelines: Annotated[int, typer.Option(min=1, max=32, help="How many there are, as `onefold new` makes them.")] = 8,
    events: Events = 2_400_000,
    partitions: Partitions = 2,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """What it costs that one sink lands several pipelines: run it with 1, 2, 4 and 8 of them.

    Example: onefold bench together --pipelines 4
    """
    from onefold.bench import machine, together

    with measuring() as progress, _project(pipelines) as names, fresh_stack(names[0], partitions, progress) as place:
        described = machine.describe(place.infrastructure)
        figures = together.measure(place, names, events, seed)
    shown("together", described, figures, as_json)


@contextmanager
def _project(count: int) -> Iterator[list[str]]:
    """A project with so many pipelines, which is the one of this process and of what it starts."""
    names = [f"one{number}" for number in range(1, count + 1)]
    with tempfile.TemporaryDirectory(prefix="onefold-bench-") as folder:
        whole = Path(folder) / "project"
        declared = ["[tool.onefold]", "packages = []"]
        for name in names:
            made = Path(folder) / name
            starter.write(name, made)
            shutil.copytree(made, whole, dirs_exist_ok=True)
            declared += [
                f"[tool.onefold.pipelines.{name}]",
                f'topology = "{name}:TOPOLOGY"',
                f'workload = "{name}_workload"',
            ]
        (whole / PROJECT_FILE).write_text("\n".join([*declared, ""]), encoding="utf-8")
        os.environ[PROJECT_VARIABLE] = str(whole)
        yield names
