"""`onefold bench processor`: events folded a second."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from onefold.cli.commands.bench.common import PARTITIONS, AsJson, Events, Partitions, Seed, run


class Folded(StrEnum):
    """Whose events a processor can be measured with."""

    RUNNER = "runner"
    TRADES = "trades"


def command(
    events: Events = 500_000,
    instances: Annotated[int, typer.Option(min=0, max=16, help="Processors side by side; 0: one for each core.")] = 0,
    domain: Annotated[Folded, typer.Option(help="Whose events are folded.")] = Folded.RUNNER,
    partitions: Partitions = PARTITIONS,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Events folded a second, from a topic that was filled beforehand.

    Example: onefold bench processor --instances 1
    """
    from onefold.bench import processor

    count = instances or min(os.cpu_count() or 1, partitions)
    run("processor", partitions, as_json, lambda place: processor.measure(place, domain, events, count, seed))
