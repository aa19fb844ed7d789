"""What the live page shows of an update, ready for its template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from onefold.dashboard import known
from onefold.dashboard.engine import DomainState
from onefold.dashboard.flow import Flow
from onefold.dashboard.rollups import Level, Rollup, Row
from onefold.dashboard.snapshot import Snapshot, Sums, comparison
from onefold.dashboard.standing import headline
from onefold.dashboard.watcher import Update

NUMBERS_SHOWN = 12  # points of a chart's table: the last minute


@dataclass(frozen=True)
class Crumb:
    """A step of the way from the total to here."""

    name: str
    items: dict[str, str]


@dataclass(frozen=True)
class Part:
    """A row of the level below.

    Attributes:
        items: the address of its own page.
        share: its bar, 0 to 100.
    """

    row: Row
    items: dict[str, str]
    share: float


def of(update: Update, view: Sums, stall_s: float) -> dict[str, Any]:
    """The names that the template `live.html` uses. stall_s: of `standing.of`."""
    snapshot = update.snapshot
    found: dict[str, Any] = {
        "trouble": update.trouble,
        "snapshot": snapshot,
        "lag": update.asked.lag,
        "dead": update.asked.dead,
        "services": update.asked.services,
        "replicas": update.replicas,
        "address": dict(view),
    }
    if snapshot is None:
        return found
    found["standings"] = known.standings(snapshot, update.asked, stall_s)
    found["headline"] = headline(found["standings"])
    found["compared"] = comparison(snapshot, update.asked.lag)
    found["domains"] = {name: snapshot.engine.domains.get(name, DomainState()) for name in found["standings"] if name}
    if snapshot.rollup and snapshot.level:
        found |= {
            "crumbs": crumbs(snapshot.rollup, snapshot.level, view),
            "parts": parts(snapshot.rollup, snapshot.level, view),
            "below": _below(snapshot.rollup, snapshot.level),
        }
    if snapshot.flow:
        found |= charts(snapshot.flow)
    return found


def charts(flow: Flow) -> dict[str, Any]:
    """The names that the template `flow.html` uses."""
    return {"rates": rate_points(flow), "latencies": latency_points(flow), "numbers": _numbers(flow)}


def crumbs(rollup: Rollup, level: Level, view: Sums) -> list[Crumb]:
    """From the total to the node, the node included."""
    here = _beside_levels(rollup, view)
    made = [Crumb("Total", dict(here))]
    for column, name in zip(rollup.levels, level.path, strict=False):
        here[column] = name
        made.append(Crumb(name, dict(here)))
    return made


def parts(rollup: Rollup, level: Level, view: Sums) -> list[Part]:
    """The rows of the level below."""
    column = _below(rollup, level)
    here = _beside_levels(rollup, view) | dict(zip(rollup.levels, level.path, strict=False))
    largest = max((abs(row.ours.value) for row in level.parts if row.ours is not None), default=Decimal(0)) or Decimal(
        1
    )
    return [
        Part(
            row, here | {column: row.name}, float(abs(row.ours.value) / largest * 100) if row.ours is not None else 0.0
        )
        for row in level.parts
    ]


def rate_points(flow: Flow) -> str:
    """The throughput chart's points, as its script reads them: [times, [rates]]."""
    return json.dumps([flow.times, [round(rate) for rate in flow.rates]])


def latency_points(flow: Flow) -> str:
    """The latency chart's points: [times, [medians], [99th percentiles]]."""
    return json.dumps([flow.times, flow.p50s, flow.p99s])


def _numbers(flow: Flow) -> Sequence[tuple[Any, ...]]:
    """(time, rate, p50, p99), the newest first."""
    return list(zip(flow.times, flow.rates, flow.p50s, flow.p99s, strict=True))[: -NUMBERS_SHOWN - 1 : -1]


def _below(rollup: Rollup, level: Level) -> str:
    """The column of the level below, "" at a leaf."""
    return rollup.levels[len(level.path)] if len(level.path) < len(rollup.levels) else ""


def _beside_levels(rollup: Rollup, view: Sums) -> dict[str, str]:
    return {name: value for name, value in view if name not in rollup.levels}


def window_title(snapshot: Snapshot | None) -> str:
    """The title of the window."""
    return f"{snapshot.rollup.name} · Onefold" if snapshot and snapshot.rollup else "Onefold"
