"""Gathers what is known of each pipeline, from the database, from Kafka and from the embedded stack, into the facts by which the
headline is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from onefold.dashboard import shapes
from onefold.dashboard.snapshot import NO_KAFKA, LagNow, Snapshot, is_conclusive, where_it_arose
from onefold.dashboard.standing import Dead, Facts, Rank, Service, Standing, Waiting, of
from onefold.dashboard.tasks import Task
from onefold.dashboard.words import whole
from onefold.operate.lag import UNKNOWN
from onefold.operate.replicas import ReplicasNow

# What services of one pipeline are called in the embedded stack; all others are of all pipelines.
_AUDITOR = "auditor-"
_OWN = ("processor-", "worker-", _AUDITOR)
#: The name under which stands what is true of no pipeline alone.
ALL = ""


@dataclass(frozen=True)
class Asked:
    """What is asked of others than the database.

    Attributes:
        still_s: per pipeline so long nothing has moved that waits to be folded, and to be landed.
        services: of the embedded stack, as in stack.json.
        dead: the dead letters, where they could be counted.
        replicas: of the pipelines that have some.
        tasks: of the pipelines that are looked at; None where Kafka did not answer.
        landed_a_second, made_a_second: offsets that the sink, and the processor, writes; None: not known yet.
    """

    lag: LagNow
    still_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    services: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dead: Mapping[str, Dead] = field(default_factory=dict)
    replicas: Mapping[str, ReplicasNow] = field(default_factory=dict)
    tasks: Mapping[str, Sequence[Task] | None] = field(default_factory=dict)
    landed_a_second: Mapping[str, float | None] = field(default_factory=dict)
    made_a_second: Mapping[str, float | None] = field(default_factory=dict)


def names(snapshot: Snapshot, asked: Asked) -> list[str]:
    """The pipelines that there is something to say of: also those that Kafka knows and that have landed nothing."""
    broken = (name for name, checked in snapshot.invariants.items() if checked.broken)
    return sorted({*snapshot.engine.domains, *asked.lag.lag, *broken})


def standings(snapshot: Snapshot, asked: Asked, stall_s: float) -> dict[str, Sequence[Standing]]:
    """How each pipeline stands; and as `ALL` how the services do that they share, where there is something to say."""
    found: dict[str, Sequence[Standing]] = {
        name: of(facts(name, snapshot, asked), stall_s) for name in names(snapshot, asked)
    }
    together = of_services(snapshot, asked, stall_s)
    return found | ({ALL: together} if together else {})


def of_services(snapshot: Snapshot, asked: Asked, stall_s: float) -> Sequence[Standing]:
    """What is to be said of the services that all pipelines share; none when they are well."""
    shared = [one for one in services(ALL, asked.services, snapshot.engine.taken_at) if one.shared]
    return [one for one in of(Facts(ALL, snapshot.engine.taken_at, services=shared), stall_s) if one.rank < Rank.WELL]


def facts(name: str, snapshot: Snapshot, asked: Asked) -> Facts:
    """What is known of one pipeline."""
    domain = snapshot.engine.domains.get(name)
    lag = asked.lag.lag.get(name, UNKNOWN)
    fold_s, land_s = asked.still_s.get(name, (0.0, 0.0))
    checked = snapshot.invariants.get(name)
    return Facts(
        name=name,
        now=snapshot.engine.taken_at,
        landed=domain is not None and domain.landed > 0,
        verdict=domain.verdict if domain else None,
        to_fold=Waiting(lag.input_events, lag.input_s, fold_s),
        to_land=Waiting(lag.output_events, lag.output_s, land_s),
        silent="" if asked.lag.problem == NO_KAFKA else asked.lag.problem,
        unknown="" if asked.lag.problem else lag.no_inputs or lag.no_outputs,
        held=[one for one in asked.lag.held if _is_of(name, one.topic)],
        partitions=asked.lag.partitions.get(name, ""),
        paused=asked.lag.paused.get(name, ""),
        dead=asked.dead.get(name),
        rejected=domain.rejected if domain else 0,
        queues=[one for one in snapshot.jobs if _is_of(name, one.queue)],
        services=services(name, asked.services, snapshot.engine.taken_at),
        broken=checked.broken if checked else (),
        unchecked=checked.unchecked if checked else (),
        sums=_sums(name, snapshot, asked.lag),
        uncompared=_uncompared(name, snapshot),
    )


def services(name: str, running: Mapping[str, Mapping[str, Any]], now: datetime) -> list[Service]:
    """The processes of a pipeline, and those that all share.

    Args:
        now: by the database's clock; what the stack says of a later moment is of now.
    """
    found = []
    for service, entry in running.items():
        shared = not service.startswith(_OWN)
        number = service.rpartition("-")[2]
        mine = [f"{_AUDITOR}{name}", *(f"{kind}{name}-{number}" for kind in _OWN)]
        if not shared and service not in mine:
            continue
        end = entry.get("last_end") or {}
        at = datetime.fromtimestamp(end["at"], UTC) if end else None
        ended_at = None if at is None else min(at, now)
        # A supervisor of before does not say where in the log that was.
        place = (entry.get("log", ""), end["log_at"], end.get("log_file", 0)) if "log_at" in end else None
        found.append(Service(service, entry["state"], entry["restarts"], end.get("why", ""), ended_at, shared, place))
    return found


def _is_of(name: str, topic: str) -> bool:
    """Whether a pipeline waits for it."""
    shape = shapes.of(name)
    return topic.startswith(f"{name}.") or (shape is not None and topic in (*shape.inputs, *shape.outputs))


def _sums(name: str, snapshot: Snapshot, lag: LagNow) -> tuple[str, str] | None:
    """The worst that is wrong with the sums of its rollups."""
    agreed = {title: one for (pipeline, title), one in snapshot.agreements.items() if pipeline == name}
    for title, one in agreed.items():
        if one.adds_up is False:
            return (
                "has levels that do not add up",
                f"In {title!r} the sums of one level differ from another level's sums.",
            )
    for title, one in agreed.items():
        if one.differing and is_conclusive(snapshot.engine.taken_at, name, one.reported_at, lag):
            many = "1 sum is" if one.differing == 1 else f"{whole(one.differing)} sums are"
            detail = f"Nothing is on the way, and {many} not the same in {title!r}. {where_it_arose(snapshot, name)}"
            return "differs from its producer", detail.rstrip()
    return None


def _uncompared(name: str, snapshot: Snapshot) -> list[str]:
    """Its rollups whose sums were not compared, each in a sentence."""
    named = snapshot.agreements.items()
    return [f"{title}: {one.problem}" for (pipeline, title), one in named if pipeline == name and one.problem]
