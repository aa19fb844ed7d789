"""Data for the templates of one pipeline's page."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from onefold.dashboard import panel_view, pipeline_facts
from onefold.dashboard.batches import SLOT_S, Slot
from onefold.dashboard.detail import Filled
from onefold.dashboard.engine import DomainState
from onefold.dashboard.flow import Flow
from onefold.dashboard.pipeline_shape import PipelineShape
from onefold.dashboard.pipeline_status import LATE_S, PipelineFacts, StackService, Tone, Waiting, of
from onefold.dashboard.snapshot import OfPipeline
from onefold.dashboard.watcher import Update
from onefold.dashboard.words import NONE, age, part, whole
from onefold.stack.log_files import around

BOXES_MAX = 6
NUMBERS_SHOWN = 12  # points of a chart in its table: the last minute
_HOUR_S = 3600
#: Time ranges with a link on the page, in seconds.
RANGES = {"5m": 300, "1h": 3600, "6h": 21_600, "1d": 86_400, "7d": 604_800}


def shown(update: Update, view: OfPipeline, shape: PipelineShape, stall_s: float) -> dict[str, Any]:
    """Names for the template `pipeline.html`. `stall_s`: as in `pipeline_status.of`."""
    snapshot, name = update.snapshot, view.name
    found: dict[str, Any] = {"trouble": update.trouble, "snapshot": snapshot, "name": name, "shape": shape}
    if snapshot is None:
        return found
    facts = pipeline_facts.facts(name, snapshot, update.asked)
    landed, made = update.asked.landed_a_second.get(name), update.asked.made_a_second.get(name)
    found |= {
        "facts": facts,
        "said": {
            one.name: around(Path(one.log_place[0]), *one.log_place[1:]) for one in facts.services if one.log_place
        },
        "standings": [*of(facts, stall_s), *pipeline_facts.of_services(snapshot, update.asked, stall_s)],
        "domain": snapshot.engine.domains.get(name, DomainState()),
        "behind": update.asked.lag.lag.get(name),
        "lag": update.asked.lag,
        "detail": snapshot.detail,
        "panels": panel_view.of(
            snapshot, name, update.asked.lag, {one: value for one, value in view.wanted if one == "since"}
        ),
        "ranges": _ranges(view),
        "span": age(view.span_s),
        "checked": snapshot.invariants.get(name),
        "landed_a_second": landed,
        "way": _way(update, shape, facts, stall_s, landed, made) if shape.inputs else (),
    }
    found["tasks"] = update.asked.tasks.get(name)
    found |= _day(snapshot.day)
    if snapshot.flow:
        found |= _flow(snapshot.flow) | {"flow_old": panel_view.is_old(snapshot.flow.taken_at, snapshot)}
    return found


def _ranges(view: OfPipeline) -> list[tuple[str, dict[str, str], bool]]:
    """Links to time ranges: name, address, and whether the range is the present one. Other items of the address remain."""
    names = [*RANGES] if view.span_s in RANGES.values() else [*RANGES, dict(view.wanted)["since"]]
    kept = dict(view.wanted)
    return [(name, kept | {"since": name}, RANGES.get(name, view.span_s) == view.span_s) for name in names]


def _flow(flow: Flow) -> dict[str, Any]:
    """Names for the template `flow.html`: the points of the charts, and the last points, the newest first."""
    numbers = list(zip(flow.times, flow.rates, flow.p50s, flow.p99s, strict=True))
    return {
        "rates": json.dumps([flow.times, [round(rate) for rate in flow.rates]]),
        "latencies": json.dumps([flow.times, flow.p50s, flow.p99s]),
        "numbers": numbers[: -NUMBERS_SHOWN - 1 : -1],
    }


def _day(slots: Sequence[Slot]) -> dict[str, Any]:
    """Names for the template `day.html`; `day_rates` is "" with fewer than two slots."""
    if len(slots) < 2:
        return {"day_rates": ""}
    hours: dict[int, list[Slot]] = {}
    for slot in slots:
        hours.setdefault((slot.until - SLOT_S) // _HOUR_S, []).append(slot)
    rows = [(datetime.fromtimestamp(hour * _HOUR_S, UTC), *_worst(hours[hour])) for hour in sorted(hours, reverse=True)]
    times = [slot.until for slot in slots]
    return {
        "day_rates": json.dumps([times, [round(slot.rate) for slot in slots]]),
        "day_ages": json.dumps([times, [None if slot.oldest_s is None else round(slot.oldest_s, 1) for slot in slots]]),
        "day_hours": rows,
        "day_most": max(slot.rate for slot in slots),
        "day_oldest": _worst(slots)[1],
    }


def _worst(slots: Sequence[Slot]) -> tuple[float, float | None]:
    """Mean rate, and the greatest age."""
    ages = [slot.oldest_s for slot in slots if slot.oldest_s is not None]
    return sum(slot.rate for slot in slots) / len(slots), max(ages, default=None)


class Box(NamedTuple):
    """A topic, a service or a table. `kind`: which of these, also the CSS class. `under`: the line below the name, or ""."""

    kind: str
    name: str
    under: str = ""
    link: str = ""


class Leg(NamedTuple):
    """An arrow. `text`, `under`: the numbers above and below the arrow. `flows`: whether the arrow is animated."""

    text: str
    under: str = ""
    tone: Tone = "quiet"
    flows: bool = False


class Stage(NamedTuple):
    """A step in the diagram of the data flow.

    Attributes:
        leg: arrow to this step; None for the first step.
        dead: arrow of the refused records, or None.
    """

    boxes: Sequence[Box]
    leg: Leg | None = None
    dead: Leg | None = None

    @property
    def most(self) -> int:
        """Number of boxes to show. If more than BOXES_MAX exist, the last box shows the number of hidden ones."""
        return BOXES_MAX if len(self.boxes) <= BOXES_MAX else BOXES_MAX - 1


def _way(
    update: Update, shape: PipelineShape, facts: PipelineFacts, stall_s: float, landed: float | None, made: float | None
) -> Sequence[Stage]:
    lag = update.asked.lag.lag.get(facts.name)
    exact = lag is None or lag.exact
    tables = update.snapshot.detail.tables if update.snapshot and update.snapshot.detail else ()
    flow = update.snapshot.flow if update.snapshot else None
    landing = flow.a_second if flow else landed
    dead = facts.dead
    count = NONE if dead is None else f"{'' if dead.exact else '≤ '}{whole(dead.count)}"
    boxes = [
        Box("table", one.text, f"about {whole(one.rows)} row{'s' * (one.rows != 1)}", _table(one)) for one in tables
    ]
    outputs = [
        Box("topic", topic, "" if topic in shape.landed else "stays in Kafka", _topic(facts.name, topic))
        for topic in shape.outputs
    ]
    return [
        Stage([Box("topic", topic, "input", _topic(facts.name, topic)) for topic in shape.inputs]),
        Stage(
            [Box("service", "processor", _running(facts.services, "processor-"))],
            _waits(facts.to_fold, "to process", stall_s, exact, bool(made)),
            Leg(count, "refused records", "busy" if dead and dead.count else "quiet"),
        ),
        Stage(
            outputs or [Box("topic", "no output")], Leg(_rate(made), "written", "good" if made else "quiet", bool(made))
        ),
        Stage(
            [Box("service", "sink", _running(facts.services, "sink-"))],
            _waits(facts.to_land, "to write", stall_s, exact, bool(landing)),
        ),
        Stage(
            boxes or [Box("table", "no table to see")],
            Leg(_rate(landing), "written", "good" if landing else "quiet", bool(landing)),
        ),
    ]


def _topic(name: str, topic: str) -> str:
    return f"/pipelines/{part(name)}/topics/{part(topic)}"


def _table(table: Filled) -> str:
    return f"/tables/{part(table.schema)}/{part(table.name)}"


def _waits(waiting: Waiting, what: str, stall_s: float, exact: bool, flows: bool) -> Leg:
    if waiting.events is None:
        return Leg(NONE, what)
    late = (waiting.oldest_s or 0.0) > LATE_S
    tone: Tone = "good" if flows else "quiet"
    tone = "bad" if waiting.stands(stall_s) else "busy" if late else tone
    under = f"oldest {age(waiting.oldest_s)}" if waiting.events and waiting.oldest_s is not None else what
    most = "" if exact or not waiting.events else "≤ "
    return Leg(f"{most}{whole(waiting.events)}", under, tone, flows and tone != "bad")


def _rate(value: float | None) -> str:
    return NONE if value is None else f"{whole(value) if value >= 10 or not value else f'{value:.1f}'}/s"


def _running(services: Collection[StackService], kind: str) -> str:
    mine = [service for service in services if service.name.startswith(kind)]
    running = sum(service.state == "running" for service in mine)
    return f"{running} of {len(mine)} running" if mine else ""
