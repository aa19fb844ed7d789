"""`onefold trades evaluate`: the evaluation of the trade risk seed, with an HTML report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from onefold.cli.commands.bench.common import PARTITIONS, AsJson, Seed, fresh_stack, render
from onefold.config.errors import UserError
from onefold.config.settings import PARTITIONS_MAX
from onefold.error_codes import Code
from onefold.exit_codes import USAGE

# The default rates in messages a second: the seed's rate, and the rate of the latency bound, for --paced.
_RATE, _PACED_RATE = 50_000, 20_000


def command(
    messages: Annotated[int, typer.Option(min=1000, help="Messages of each run.")] = 1_000_000,
    rate: Annotated[int, typer.Option(min=0, help="Messages a second; 0: 50,000, or 20,000 with --paced.")] = 0,
    failures: Annotated[
        bool | None, typer.Option(help="Fail 1 % state, 2 % map, 2 % reduce; one run each way if not given.")
    ] = None,
    kills: Annotated[bool, typer.Option(help="In runs with failures also kill -9 each stage once.")] = False,
    duplicates: Annotated[float, typer.Option(min=0, max=0.5, help="Share of messages sent twice.")] = 0.03,
    disorder: Annotated[float, typer.Option(min=0, max=0.5, help="Share of messages that come late.")] = 0.02,
    backlog: Annotated[int, typer.Option(min=0, help="Drain so many messages that come all at once.")] = 0,
    paced: Annotated[bool, typer.Option(help="One run at 20,000 messages a second, nothing fails.")] = False,
    partitions: Annotated[
        int,
        typer.Option(
            min=0,
            max=PARTITIONS_MAX,
            help=f"Partitions of every topic; 0: {PARTITIONS}, and no more than cores with --paced.",
        ),
    ] = 0,
    seed: Seed = 1,
    report: Annotated[Path, typer.Option(help="Where the HTML report goes.")] = Path("onefold-trades.html"),
    as_json: AsJson = False,
) -> None:
    """The evaluation of the trade risk seed, with an HTML report; --messages 10000000 is the seed's own size.

    Each run has a fresh stack, independent of earlier runs.

    Example: onefold trades evaluate --messages 1000000 --no-failures
    """
    from onefold.trades import evaluation
    from onefold.trades.report import write
    from onefold.workloads.trade_feed import Mix

    mix = Mix(duplicates=duplicates, late=disorder)
    if backlog:
        messages, rate, failures = backlog, 0, bool(failures)
    elif paced:
        rate, failures = rate or _PACED_RATE, False
    else:
        rate = rate or _RATE
    ways = (False, True) if failures is None else (failures,)
    runs: list[evaluation.Run] = []
    for way in ways:
        plan = evaluation.Plan(messages, rate, mix, way, kills and way, seed)
        with fresh_stack(evaluation.PIPELINE, partitions or _partitions(paced=paced)) as (place, described):
            runs.append(evaluation.measure(place, plan))
    try:
        write(report, runs, described)
    except OSError as error:
        raise UserError(
            Code.FILE_UNUSABLE, f"the report {report} cannot be written: {error.strerror}", exit_code=USAGE
        ) from None
    if as_json:
        typer.echo(
            json.dumps({"bench": "trades", "machine": described, "runs": [run.figures for run in runs]}, indent=1)
        )
        return
    for run in runs:
        render("trades evaluate", described, run.figures)
    typer.echo(f"The report, with the seed's graphs and figures: {report}")


def _partitions(*, paced: bool) -> int:
    """The default number of partitions.

    More partitions than cores give a backlog larger transactions. A paced run has small batches, and fewer partitions make
    each batch cheaper for the sink.
    """
    return min(os.cpu_count() or 1, PARTITIONS) if paced else PARTITIONS
