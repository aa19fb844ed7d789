"""What the page shows of the panels of a pipeline, ready for the template `panels.html`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from onefold.dashboard import panels
from onefold.dashboard.panels import Shown, Table
from onefold.dashboard.reader import FAILURES, UNFIT
from onefold.dashboard.rollups import Level, Row
from onefold.dashboard.snapshot import LagNow, Snapshot, comparison
from onefold.operate.panels import Rollup

Items = dict[str, str]
# A query of some 50 ms rests for a second, and its content is not worth a line that comes and goes.
OLD = timedelta(seconds=5)


@dataclass(frozen=True)
class Part:
    """A row of a level.

    Attributes:
        items: the address of its own level.
        share: its bar, 0 to 100.
    """

    row: Row
    items: Items
    share: float


def of(snapshot: Snapshot, name: str, lag: LagNow, kept: Items | None = None) -> list[dict[str, Any]]:
    """The names that the template uses of each panel. `kept`: what the addresses of its rows keep of the page's own."""
    return [_one(snapshot, name, shown, lag, kept or {}) for shown in snapshot.panels]


def is_old(taken_at: datetime, snapshot: Snapshot) -> bool:
    """Whether the page says how old something is that was read in a snapshot before."""
    return snapshot.engine.taken_at - taken_at > OLD


def _one(snapshot: Snapshot, name: str, shown: Shown, lag: LagNow, kept: Items) -> dict[str, Any]:
    try:
        return _panel(snapshot, shown) | _rollup(snapshot, name, shown, lag, kept)
    except FAILURES:
        return _panel(snapshot, replace(shown, content=None, trouble=UNFIT))


def _panel(snapshot: Snapshot, shown: Shown) -> dict[str, Any]:
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
    if isinstance(shown.content, Table) and shown.panel.kind == "bar":
        found["bars"] = panels.bars(shown.content)
    elif isinstance(shown.content, Table) and shown.panel.kind == "line":
        found["points"] = json.dumps(panels.points(shown.content))
    return found


def _rollup(snapshot: Snapshot, name: str, shown: Shown, lag: LagNow, kept: Items) -> dict[str, Any]:
    """From the total to the node, the node included; and the rows of the level below."""
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
