"""Data for the template of the page of all pipelines."""

from __future__ import annotations

from typing import Any

from onefold.dashboard import pipeline_facts
from onefold.dashboard.engine import DomainState
from onefold.dashboard.pipeline_status import headline
from onefold.dashboard.watcher import Update


def of(update: Update, stall_s: float) -> dict[str, Any]:
    """Names for the template `live.html`. `stall_s`: as in `pipeline_status.of`."""
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
        found["standings"] = pipeline_facts.standings(snapshot, update.asked, stall_s)
        found["headline"] = headline(found["standings"])
        domains = snapshot.engine.domains
        found["domains"] = {name: domains.get(name, DomainState()) for name in found["standings"] if name}
    return found
