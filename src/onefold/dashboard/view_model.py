"""What the page of all pipelines shows of an update, ready for its template."""

from __future__ import annotations

from typing import Any

from onefold.dashboard import known
from onefold.dashboard.engine import DomainState
from onefold.dashboard.standing import headline
from onefold.dashboard.watcher import Update


def of(update: Update, stall_s: float) -> dict[str, Any]:
    """The names that the template `live.html` uses. stall_s: of `standing.of`."""
    snapshot = update.snapshot
    found: dict[str, Any] = {
        "trouble": update.trouble,
        "snapshot": snapshot,
        "lag": update.asked.lag,
        "dead": update.asked.dead,
        "services": update.asked.services,
        "replicas": update.asked.replicas,
    }
    if snapshot is not None:
        found["standings"] = known.standings(snapshot, update.asked, stall_s)
        found["headline"] = headline(found["standings"])
        domains = snapshot.engine.domains
        found["domains"] = {name: domains.get(name, DomainState()) for name in found["standings"] if name}
    return found
