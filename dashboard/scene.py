"""What the live page shows of a frame, ready for its template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from onefold.dashboard.cubes import Cube, Level, Row
from onefold.dashboard.engine import DomainState
from onefold.dashboard.flow import Flow
from onefold.dashboard.picture import Picture, View, headline
from onefold.dashboard.watcher import Frame

NUMBERS_SHOWN = 12  # points of a chart's table: the last minute


@dataclass(frozen=True)
class Crumb:
    """A step of the way from the total to here."""

    name: str
    items: dict[str, str]


@dataclass(frozen=True)
class Part:
    """A row of the level below. items: the address of its own page; share: its bar, 0 to 100."""

    row: Row
    items: dict[str, str]
    share: float


def of(frame: Frame, view: View) -> dict[str, Any]:
    """The names that the template `live.html` uses."""
    picture = frame.picture
    found: dict[str, Any] = {
        "trouble": frame.trouble,
        "picture": picture,
        "lag": frame.lag,
        "services": frame.services,
        "address": dict(view),
    }
    if picture is None:
        return found
    found["headline"] = headline(picture, frame.lag)
    # Domains that Kafka knows and that have landed nothing yet stand there as well.
    names = sorted({*picture.engine.domains, *frame.lag.lag})
    found["domains"] = {name: picture.engine.domains.get(name, DomainState()) for name in names}
    if picture.cube and picture.level:
        found |= {
            "crumbs": crumbs(picture.cube, picture.level, view),
            "parts": parts(picture.cube, picture.level, view),
            "below": _below(picture.cube, picture.level),
        }
    if picture.flow:
        found |= {"rates": rate_points(picture.flow), "latencies": latency_points(picture.flow)}
        found["numbers"] = _numbers(picture.flow)
    return found


def crumbs(cube: Cube, level: Level, view: View) -> list[Crumb]:
    """From the total to the node, the node included."""
    here = _beside_levels(cube, view)
    made = [Crumb("Total", dict(here))]
    for column, name in zip(cube.levels, level.path, strict=False):
        here[column] = name
        made.append(Crumb(name, dict(here)))
    return made


def parts(cube: Cube, level: Level, view: View) -> list[Part]:
    """The rows of the level below."""
    column = _below(cube, level)
    here = _beside_levels(cube, view) | dict(zip(cube.levels, level.path, strict=False))
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


def _below(cube: Cube, level: Level) -> str:
    """The column of the level below, "" at a leaf."""
    return cube.levels[len(level.path)] if len(level.path) < len(cube.levels) else ""


def _beside_levels(cube: Cube, view: View) -> dict[str, str]:
    return {name: value for name, value in view if name not in cube.levels}


def picture_title(picture: Picture | None) -> str:
    """The title of the window."""
    return f"{picture.cube.name} · Onefold" if picture and picture.cube else "Onefold"
