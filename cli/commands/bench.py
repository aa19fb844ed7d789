"""`onefold bench`: how fast Onefold is here, on a stack of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from onefold.operate.errors import USAGE, UserError
from onefold.operate.progress import Progress
from onefold.operate.settings import PARTITIONS_MAX, Settings

if TYPE_CHECKING:
    from onefold.bench.stand import Stand
    from onefold.bench.trades import Plan

# Events a second when nothing is said: what a small deployment has; the seed's rate; the rate of the latency bar.
_LATENCY_RATE, _TRADES_RATE, _PACED_RATE = 1_000, 50_000, 20_000
_PARTITIONS: int = Settings.model_fields["partitions"].default
# A service runs for days; for its first minute and a half the JVM compiles Spark, which takes a quarter of a core from
# what is measured (median latency by quarter of a minute, on 2 cores: 1.15, 0.60, 0.49, 0.48, 0.51, 0.40, and 0.34 from
# then on).
_WARM_UP_S = 90.0


class What(StrEnum):
    """What can be measured."""

    PROCESSOR = "processor"
    SINK = "sink"
    LATENCY = "latency"
    TRADES = "trades"


class Folded(StrEnum):
    """Whose events a processor can be measured with."""

    RUNNER = "runner"
    TRADES = "trades"


def command(
    what: Annotated[What, typer.Argument(help="What to measure.")],
    events: Annotated[int, typer.Option(min=1000, help="Events in the topic beforehand (processor, sink).")] = 500_000,
    instances: Annotated[
        int, typer.Option(min=0, max=16, help="Processors side by side; 0: one for each core (processor).")
    ] = 0,
    rate: Annotated[int, typer.Option(min=0, help="Events a second; 0: 1,000 (latency), 50,000 (trades).")] = 0,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long, after the warm-up (latency).")] = 60.0,
    warm_up: Annotated[float, typer.Option(min=0.0, help="Seconds before that which do not count (latency).")] = (
        _WARM_UP_S
    ),
    domain: Annotated[Folded, typer.Option(help="Whose events are folded (processor).")] = Folded.RUNNER,
    partitions: Annotated[
        int,
        typer.Option(
            min=0,
            max=PARTITIONS_MAX,
            help=f"Partitions of every topic; 0: {_PARTITIONS}, and no more than cores with --paced.",
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="The same seed generates the same events.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine and figures as JSON.")] = False,
    messages: Annotated[int, typer.Option(min=1000, help="Messages of each run (trades).")] = 1_000_000,
    failures: Annotated[
        bool | None, typer.Option(help="Fail 1 % state, 2 % map, 2 % reduce; one run each way if not given (trades).")
    ] = None,
    kills: Annotated[bool, typer.Option(help="In runs with failures also kill -9 each stage once (trades).")] = False,
    duplicates: Annotated[float, typer.Option(min=0, max=0.5, help="Share of messages sent twice (trades).")] = 0.03,
    disorder: Annotated[float, typer.Option(min=0, max=0.5, help="Share of messages that come late (trades).")] = 0.02,
    backlog: Annotated[int, typer.Option(min=0, help="Drain so many messages that come all at once (trades).")] = 0,
    paced: Annotated[bool, typer.Option(help="One run at 20,000 messages a second, nothing fails (trades).")] = False,
    report: Annotated[Path, typer.Option(help="Where the HTML report goes (trades).")] = Path("onefold-trades.html"),
) -> None:
    """Measure on a broker and a database of its own, and print figures with what they ran on.

    processor: events folded a second. sink: output records landed a second. latency: from produce to a visible row.
    trades: the evaluation of the trade risk seed, with an HTML report; --messages 10000000 is the seed's own size.

    Example: onefold bench processor --instances 1
    """
    from onefold.bench import latency, machine, processor, sink
    from onefold.bench.stand import stand

    partitions = partitions or _partitions(paced=what is What.TRADES and paced)
    if what is What.TRADES:
        asked = _Trades(messages, rate, failures, kills, duplicates, disorder, backlog, paced, seed)
        _trades(asked, partitions, report, as_json)
        return
    measure: dict[What, Callable[[Stand], dict[str, Any]]] = {
        What.PROCESSOR: lambda place: processor.measure(
            place, domain, events, instances or min(os.cpu_count() or 1, partitions), seed
        ),
        What.SINK: lambda place: sink.measure(place, events, seed),
        What.LATENCY: lambda place: latency.measure(place, rate or _LATENCY_RATE, seconds, seed, warm_up),
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


def _partitions(*, paced: bool) -> int:
    """What is there all at once goes in larger transactions where there are more partitions; small batches are cheaper
    where the sink has fewer of them to open (docs/operating.md has both)."""
    return min(os.cpu_count() or 1, _PARTITIONS) if paced else _PARTITIONS


class _Trades(NamedTuple):
    """The options of the trades bench."""

    messages: int
    rate: int
    failures: bool | None
    kills: bool
    duplicates: float
    disorder: float
    backlog: int
    paced: bool
    seed: int

    def plans(self) -> list[Plan]:
        """The runs: without failures and with them, unless only one is asked for."""
        from onefold.bench.trades import Plan
        from onefold.proof.workloads.trade_feed import Mix

        mix = Mix(duplicates=self.duplicates, late=self.disorder)
        messages, rate, failures = self.messages, self.rate or _TRADES_RATE, self.failures
        if self.backlog:
            messages, rate, failures = self.backlog, 0, bool(failures)
        elif self.paced:
            rate, failures = self.rate or _PACED_RATE, False
        ways = (False, True) if failures is None else (failures,)
        return [Plan(messages, rate, mix, way, self.kills and way, self.seed) for way in ways]


def _trades(asked: _Trades, partitions: int, path: Path, as_json: bool) -> None:
    """Each run on a fresh stack, so that it owes nothing to the one before."""
    from onefold.bench import machine, report, trades
    from onefold.bench.stand import stand

    progress, runs, told = Progress(), [], {}
    try:
        for plan in asked.plans():
            with stand(partitions, progress.say) as place:
                told = machine.describe(place.infrastructure)
                runs.append(trades.measure(place, plan))
        report.write(path, runs, told)
    except RuntimeError as error:
        raise UserError(f"nothing was measured: {error}") from None
    except OSError as error:
        raise UserError(f"the report {path} can not be written: {error.strerror}", exit_code=USAGE) from None
    finally:
        progress.clear()
    if as_json:
        typer.echo(json.dumps({"bench": What.TRADES, "machine": told, "runs": [run.figures for run in runs]}, indent=1))
        return
    for run in runs:
        _render(What.TRADES, told, run.figures)
    typer.echo(f"The report, with the seed's graphs and figures: {path}")


def _render(what: What, told: dict[str, str], figures: dict[str, str | float | list[float] | None]) -> None:
    """What was not measured has no row."""
    table = Table(title=f"onefold bench {what}", title_justify="left", title_style="bold", show_header=False)
    for name, value in told.items():
        table.add_row(name, value, style="dim")
    table.add_section()
    for name, figure in figures.items():
        if figure is not None:
            table.add_row(name.replace("_", " "), _told(figure))
    Console().print(table)


def _told(value: str | float | list[float]) -> str:
    if isinstance(value, list):
        return ", ".join(map(_told, value))
    return value if isinstance(value, str) else f"{value:,}"
