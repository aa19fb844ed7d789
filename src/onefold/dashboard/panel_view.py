"""Data of a pipeline's panels for the template `panels.html`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from onefold.dashboard import panels
from onefold.dashboard.panels import PanelContent, ShownPanel
from onefold.dashboard.reader import FAILURES, UNFIT
from onefold.dashboard.rollups import Level, LevelRow
from onefold.dashboard.snapshot import LagNow, ViewSnapshot, comparison
from onefold.operate.panels import Rollup

Items = dict[str, str]
# Cached content is often a second or two old, and a note of so short an age would flicker.
OLD = timedelta(seconds=5)


@dataclass(frozen=True)
class Part:
    """A row of a level.

    Attributes:
        items: address of the row's own level.
        share: length of the bar, 0 to 100.
    """

    row: LevelRow
    items: Items
    share: float


def of(snapshot: ViewSnapshot, name: str, lag: LagNow, kept: Items | None = None) -> list[dict[str, Any]]:
    """Names for the template, one dict per panel. `kept`: items of the page's address that the rows' addresses keep."""
    return [_one(snapshot, name, shown, lag, kept or {}) for shown in snapshot.panels]


def is_old(taken_at: datetime, snapshot: ViewSnapshot) -> bool:
    """Whether the page shows the age of content from an earlier snapshot."""
    return snapshot.engine.taken_at - taken_at > OLD


def _one(snapshot: ViewSnapshot, name: str, shown: ShownPanel, lag: LagNow, kept: Items) -> dict[str, Any]:
    try:
        return _panel(snapshot, shown) | _rollup(snapshot, name, shown, lag, kept)
    except FAILURES:
        return _panel(snapshot, replace(shown, content=None, trouble=UNFIT))


def _panel(snapshot: ViewSnapshot, shown: ShownPanel) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": f"panel-{shown.number}",
        "kind": shown.panel.kind,
        "title": shown.panel.title,
        "units": shown.panel.units,
        "trouble": shown.trouble,
        "taken_at": shown.taken_at,
        "old": is_old(shown.taken_at, snapshot),
        "content": shown.content,
    }
    if isinstance(shown.content, PanelContent) and shown.panel.kind == "bar":
        found["bars"] = panels.bars(shown.content)
    elif isinstance(shown.content, PanelContent) and shown.panel.kind == "line":
        found["points"] = json.dumps(panels.points(shown.content))
    return found


def _rollup(snapshot: ViewSnapshot, name: str, shown: ShownPanel, lag: LagNow, kept: Items) -> dict[str, Any]:
    """Path from the total to the node inclusive, and the rows of the level below."""
    rollup, level = shown.panel, shown.content
    if not isinstance(rollup, Rollup) or not isinstance(level, Level):
        return {}
    here = {**kept, "of": str(shown.number)}
    crumbs = [("Total", dict(here))]
    for column, part in zip(rollup.levels, level.path, strict=False):
        here[column] = part
        crumbs.append((part, dict(here)))
    below = rollup.levels[len(level.path)] if len(level.path) < len(rollup.levels) else ""
    largest = max((abs(row.ours.value) for row in level.parts if row.ours is not None), default=Decimal(0)) or Decimal(
        1
    )
    agreement = snapshot.agreements.get((name, rollup.title))
    return {
        "crumbs": crumbs,
        "below": below,
        "parts": [
            Part(row, here | {below: row.name}, float(abs(row.ours.value) / largest * 100) if row.ours else 0.0)
            for row in level.parts
        ],
        "compared": comparison(snapshot, name, shown, lag),
        "adds_up": agreement.adds_up if agreement else None,
        "things": rollup.count.replace("_", " "),
        "unit": rollup.units.get(rollup.value, ""),
    }
