"""The report of the evaluation: an HTML file with the seed's figures and the measured figures and charts.

pygal draws the charts as SVG inside the page, so the page needs no network and can be printed.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import pygal
from pygal.style import CleanStyle

from onefold.trades.evaluation import WINDOW_S, EvaluationRun, Landing, throughput

# pygal installs an import hook without `find_spec`. Python warns about the hook at each import, and pytest fails on the
# warning.
sys.meta_path[:] = [hook for hook in sys.meta_path if hasattr(hook, "find_spec")]

#: The figures from the seed's description.
SEED = {
    "messages": "10,000,000",
    "messages per second": "50,000",
    "latency, mean": "3 to 4 s, with failures as well",
    "latency, max": "about 20 s; with failures, unlucky ones above 60 s",
    "lost, duplicated": "0, 0",
    "machine": "about 500 concurrent functions, three cloud tables",
}

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Onefold: trade risk</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; margin: 1rem 0 }} th, td {{ text-align: left; padding: .2rem 1rem .2rem 0 }}
td {{ font-variant-numeric: tabular-nums }} svg {{ width: 100%; height: auto }}
</style>
<h1>Trade risk, from the producer to Postgres</h1>
{body}
</html>
"""


def write(path: Path, runs: Sequence[EvaluationRun], machine: dict[str, str]) -> None:
    """Write the report of all runs. Raises OSError if the file cannot be written."""
    parts = ["<h2>The seed</h2>", _table(SEED)]
    for run in runs:
        name = "With failures" if run.plan.failures else "Without failures"
        parts += [f"<h2>{name}</h2>", _table(run.figures), *_charts(run)]
    parts += ["<h2>The machine</h2>", _table(machine)]
    path.write_text(_PAGE.format(body="\n".join(parts)), encoding="utf-8")


def latencies(landings: Sequence[Landing], began: float) -> list[tuple[int, float, float]]:
    """The second since the beginning, the mean latency and the longest latency, in seconds, for each second with a commit."""
    found: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for at, made, count in landings:
        if made.timestamp() >= began:
            found[int(at.timestamp() - began)].append(((at - made).total_seconds(), count))
    return [
        (second + 1, sum(way * count for way, count in ways) / sum(count for _, count in ways), max(ways)[0])
        for second, ways in sorted(found.items())
    ]


def _charts(run: EvaluationRun) -> list[str]:
    ways = latencies(run.landings, run.began)
    return [
        _chart(
            f"Trades written to PostgreSQL a second, mean over {WINDOW_S} s",
            {"landed": throughput(run.landings, run.began)},
        ),
        _chart(
            "Seconds from produce to visible in Postgres",
            {"mean": [(at, mean) for at, mean, _ in ways], "longest": [(at, longest) for at, _, longest in ways]},
        ),
    ]


def _chart(title: str, series: dict[str, Any]) -> str:
    chart = pygal.XY(
        title=title,
        x_title="seconds",
        style=CleanStyle,
        dots_size=1.5,
        height=340,
        range=None,
        js=(),
        include_x_axis=True,
    )
    for name, points in series.items():
        chart.add(name, points)
    return f"<figure>{chart.render(is_unicode=True, disable_xml_declaration=True)}</figure>"


def _table(figures: dict[str, Any]) -> str:
    rows = [
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{escape(_cell(value))}</td></tr>"
        for name, value in figures.items()
        if value is not None
    ]
    return f"<table>{''.join(rows)}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return value if isinstance(value, str) else f"{value:,}"
